"""Mixtures against the worked numbers of arXiv 2602.01915 and against counted draws."""

import numpy as np
import pytest
from fake_columns import FakeColumns
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from ostinato.buffer.sampling import Epoch, Mixture, Prioritized, Uniform
from ostinato.buffer.schedule import Linear
from ostinato.errors import ConfigError

RNG = np.random.default_rng


def judged(share, *, by="priority", **settings) -> tuple[FakeColumns, Mixture]:
    """Scores (1, 1, 0, 0), advantages (0.1, 0.4, 2, 0.5)."""
    columns = FakeColumns(4, priority=np.array([1.0, 1, 0, 0]), advantage=np.array([0.1, 0.4, 2.0, 0.5]))
    mixture = Mixture((Prioritized(by, exponent=1.0), Uniform()), share, **settings)
    return columns, columns.attach(mixture)


@pytest.mark.parametrize(
    ("share", "expected"),
    [
        (0.0, [0.25] * 4),
        (0.25, [0.3125, 0.3125, 0.1875, 0.1875]),
        (0.5, [0.375, 0.375, 0.125, 0.125]),
        (1.0, [0.5, 0.5, 0, 0]),
    ],
)
def test_probabilities_when_scores_are_mixed_are_those_of_the_paper(share, expected) -> None:
    columns, mixture = judged(share)
    assert mixture.probabilities(columns, columns.live()).tolist() == expected
    assert mixture.least_probability(columns) == min(expected)
    assert mixture.least_drawable(columns) == min(chance for chance in expected if chance)
    drawn = np.bincount(mixture(columns, 20_000, RNG(0)).rows, minlength=4)
    possible = np.array(expected) > 0
    assert not drawn[~possible].any()
    assert chisquare(drawn[possible], np.array(expected)[possible] * 20_000).pvalue > 1e-3


def test_probabilities_when_score_times_advantage_counts_are_those_of_the_paper() -> None:
    columns, mixture = judged(0.5, by=lambda c, rows: c["priority"][rows] * np.abs(c["advantage"][rows]))
    assert mixture.probabilities(columns, columns.live()) == pytest.approx([0.225, 0.525, 0.125, 0.125])


@pytest.mark.parametrize(
    ("beta", "normalize", "expected"),
    [
        (0.4, None, [0.850283, 0.850283, 1.319508, 1.319508]),
        (0.4, "buffer", [0.644394, 0.644394, 1, 1]),
        (1.0, "buffer", [1 / 3, 1 / 3, 1, 1]),
        (0.4, "batch", [0.644394, 0.644394, 1, 1]),
    ],
)
def test_weights_when_corrected_are_against_the_mixture(beta, normalize, expected) -> None:
    columns, mixture = judged(0.5, beta=beta, normalize=normalize)
    picked = mixture(columns, 100, RNG(1))
    assert picked.importance_weights == pytest.approx(np.array(expected)[picked.rows], abs=1e-6)


def test_share_when_warming_up_follows_the_train_step() -> None:
    columns, mixture = judged(Linear(0, 0.5, steps=100))
    chances = []
    for step in (0, 25, 100, 200):
        columns.train_step = step
        chances.append(mixture.probabilities(columns, np.array([0, 3])).tolist())
    assert chances == [[0.25, 0.25], [0.28125, 0.21875], [0.375, 0.125], [0.375, 0.125]]


def test_mixture_when_every_score_is_zero_is_uniform() -> None:
    columns, mixture = judged(0.9, beta=1.0)
    columns.write([0, 1], priority=0.0)
    assert mixture.probabilities(columns, columns.live()) == pytest.approx([0.25] * 4)
    assert mixture(columns, 9, RNG(0)).importance_weights == pytest.approx([1.0] * 9)


@given(
    scores=st.lists(st.one_of(st.just(0.0), st.floats(1e-6, 1e6)), min_size=1, max_size=40),
    share=st.floats(0, 0.95),
    beta=st.floats(0, 1),
)
def test_weights_when_a_uniform_part_remains_are_bounded(scores, share, beta) -> None:
    columns = FakeColumns(len(scores), priority=np.array(scores))
    mixture = columns.attach(Mixture((Prioritized(exponent=0.6), Uniform()), share, beta=beta, normalize=None))
    chances = mixture.probabilities(columns, columns.live())
    assert chances.sum() == pytest.approx(1)
    assert (chances >= (1 - share) / len(scores) * (1 - 1e-12)).all()
    assert mixture.least_probability(columns) == pytest.approx(chances.min(), rel=1e-9)
    weights = mixture(columns, 10, RNG(0)).importance_weights
    assert (weights <= (1 - share) ** -beta * (1 + 1e-9)).all()


def test_three_parts_when_mixed_add_up_and_find_their_least() -> None:
    columns = FakeColumns(3, priority=np.array([1.0, 3.0, 0.0]), advantage=np.array([1.0, 0.0, 1.0]))
    parts = (Prioritized(exponent=1.0), Prioritized("advantage", exponent=1.0), Uniform())
    mixture = columns.attach(Mixture(parts, (0.5, 0.25)))
    assert mixture.probabilities(columns, columns.live()) == pytest.approx([1 / 3, 0.375 + 1 / 12, 0.125 + 1 / 12])
    assert mixture.least_probability(columns) == pytest.approx(0.125 + 1 / 12)
    outer = columns.attach(Mixture((mixture, Prioritized(exponent=1.0)), 0.0))
    assert outer.least_drawable(columns) == 0.25 and outer.least_probability(columns) == 0
    both = columns.attach(Mixture(parts[:2], 0.5))
    assert both.least_drawable(columns) == pytest.approx(0.25)


def test_mixture_when_rows_change_keeps_its_parts_informed() -> None:
    columns, mixture = judged(1.0)
    columns.add(1, priority=6.0)
    columns.kill([0])
    columns.compact()
    assert mixture.probabilities(columns, columns.live()) == pytest.approx([1 / 7, 0, 0, 6 / 7])
    assert mixture.new_priority(columns) == 6


@pytest.mark.parametrize(
    ("parts", "shares", "message"),
    [
        ((Uniform(),), (), "one fewer, from 1"),
        ((Uniform(), Uniform()), (0.5, 0.5), "one fewer"),
        ((Epoch(), Uniform()), 0.5, "Epoch has no probabilities"),
        ((Uniform(False), Uniform()), 0.5, "without replacement inside a mixture"),
        ((Prioritized(beta=0.4), Uniform()), 0.5, "belongs to the mixture"),
        ((Uniform(), Uniform()), 1.1, r"within \[0, 1\], got 1.1"),
        ((Uniform(), Uniform()), Linear(0, 2, 5), r"within \[0, 1\], got 2"),
        ((Uniform(), Uniform(), Uniform()), (0.7, 0.7), "add up to 1.4"),
        ((Uniform(), Uniform()), float("nan"), "share of a mixture must be a finite number, got nan"),
    ],
)
def test_mixture_when_its_settings_contradict_is_refused(parts, shares, message) -> None:
    with pytest.raises(ConfigError, match=message):
        Mixture(parts, shares)


def test_shares_when_schedules_cross_one_are_refused_at_that_step() -> None:
    columns = FakeColumns(2, train_step=10)
    mixture = Mixture((Uniform(), Uniform(), Uniform()), (Linear(0, 1, 10), 0.5))
    with pytest.raises(ConfigError, match="at train step 10 add up to more than 1"):
        mixture(columns, 1, RNG(0))
