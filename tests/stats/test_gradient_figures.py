"""Norms and cosine of a gradient and its halves, from inner products."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinato.errors import DataError
from ostinato.stats import gradient_figures

vectors = st.lists(st.floats(-1e3, 1e3).map(lambda v: round(v, 3)), min_size=3, max_size=3).map(np.array)


@given(vectors, vectors)
def test_figures_when_vectors_are_known_are_their_norms_and_angle(fresh, replayed) -> None:
    figures = gradient_figures(fresh_square=fresh @ fresh, replayed_square=replayed @ replayed, dot=fresh @ replayed)
    sizes = np.linalg.norm(fresh), np.linalg.norm(replayed)
    assert figures["grad_norm"] == pytest.approx(np.linalg.norm(fresh + replayed), rel=1e-6, abs=1e-4)
    assert (figures["grad_norm_fresh"], figures["grad_norm_replayed"]) == pytest.approx(sizes)
    assert ("grad_cosine" in figures) == (min(sizes) > 0)
    if min(sizes) > 0:
        assert figures["grad_cosine"] == pytest.approx(fresh @ replayed / (sizes[0] * sizes[1]), abs=1e-9)
        assert -1 <= figures["grad_cosine"] <= 1


def test_figures_when_halves_cancel_or_rounding_is_coarse_stay_finite() -> None:
    figures = gradient_figures(fresh_square=2.0, replayed_square=2.0, dot=-2.0000001)
    assert figures["grad_norm"] == pytest.approx(0.0, abs=1e-7)
    assert figures["grad_cosine"] == -1


@pytest.mark.parametrize(
    ("products", "message"),
    [
        ((math.nan, 1.0, 0.0), "gradients need finite products"),
        ((-1.0, 1.0, 0.0), "squares of at least 0, got fresh_square -1"),
        ((1.0, 4.0, 2.1), r"dot 2\.1 is larger than the product of the norms, 2"),
    ],
)
def test_figures_when_products_are_impossible_are_refused(products, message) -> None:
    fresh, replayed, dot = products
    with pytest.raises(DataError, match=message):
        gradient_figures(fresh_square=fresh, replayed_square=replayed, dot=dot)


def test_gradient_figures_when_squares_are_the_largest_there_are_have_a_finite_norm() -> None:
    figures = gradient_figures(fresh_square=1e308, replayed_square=1e308, dot=1e308)
    assert figures["grad_norm"] == pytest.approx(2e154)
