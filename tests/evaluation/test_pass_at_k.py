"""pass@k against published numbers, an exhaustive count, and its limits."""

from itertools import combinations
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinato.errors import ConfigError, DataError
from ostinato.evaluation import pass_at_k


@pytest.mark.parametrize(
    ("n", "c", "k", "expected"),
    [(10, 3, 1, 0.3), (10, 3, 5, 0.916667), (16, 1, 8, 0.5), (16, 0, 8, 0), (8, 6, 4, 1), (32, 2, 16, 0.758065)],
)
def test_pass_at_k_gives_the_known_values(n, c, k, expected):
    assert pass_at_k(n, c, k) == pytest.approx(expected, abs=5e-7)


def test_pass_at_k_equals_an_exhaustive_count():
    correct = [True, True, False, False, False, False]
    subsets = list(combinations(correct, 3))
    assert pass_at_k(6, 2, 3) == pytest.approx(sum(any(s) for s in subsets) / len(subsets))


@given(st.data())
def test_pass_at_k_equals_the_binomial_form(data):
    n = data.draw(st.integers(1, 60))
    c, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    assert pass_at_k(n, c, k) == pytest.approx(1 - comb(n - c, k) / comb(n, k), abs=1e-12)


def test_pass_at_k_broadcasts_over_tasks():
    assert pass_at_k(4, np.array([[0, 1], [2, 4]]), 2) == pytest.approx(np.array([[0, 0.5], [5 / 6, 1]]))


def test_pass_at_1_is_the_plain_fraction_when_counts_are_large():
    assert pass_at_k(10**6, np.array([1, 999_999]), 1) == pytest.approx(np.array([1e-6, 0.999999]))


@pytest.mark.parametrize("k", [0, 5])
def test_pass_at_k_is_refused_when_k_is_not_within_the_samples(k):
    with pytest.raises(ConfigError, match="1 <= k <= samples"):
        pass_at_k([8, 4], 1, k)


@pytest.mark.parametrize("c", [-1, 5])
def test_pass_at_k_is_refused_when_counts_are_impossible(c):
    with pytest.raises(DataError, match="between 0 and samples"):
        pass_at_k(4, c, 1)
