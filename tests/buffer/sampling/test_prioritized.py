"""Prioritized draws against the worked numbers of the papers and against brute force."""

import numpy as np
import pytest
from fake_columns import FakeColumns
from scipy.stats import chisquare

from ostinato.buffer import ReplayBuffer
from ostinato.buffer.sampling import Exponential, Prioritized
from ostinato.buffer.sampling.draws import strata
from ostinato.buffer.schedule import Linear
from ostinato.buffer.sumtree import SumTree
from ostinato.errors import ConfigError, DataError

RNG = np.random.default_rng


def chances(sampler, columns) -> list[float]:
    return sampler.probabilities(columns, columns.live()).tolist()


def freshness_example(**settings) -> tuple[FakeColumns, Prioritized]:
    """R = (1, 0.5, 0, -0.15) at ages (200, 100, 0, 50), tau 500, alpha 0.6, eps 1e-6 (arXiv 2604.16918)."""
    reward = np.array([1, 0.5, 0, -0.15])
    columns = FakeColumns(4, train_step=200, reward=reward, insert_step=np.array([0, 100, 200, 150]))
    settings = {"eps": 1e-6, "decay": Exponential(500)} | settings
    return columns, columns.attach(Prioritized("reward", 0.6, **settings))


def drawn_weights(columns, sampler) -> np.ndarray:
    """Importance weight of each row, from a batch that holds every one."""
    picked = sampler(columns, len(columns), RNG(0))
    weights = np.empty(len(columns))
    weights[picked.rows] = picked.importance_weights
    return weights


def test_freshness_example_when_computed_has_the_probabilities_of_the_paper() -> None:
    columns, sampler = freshness_example()
    assert chances(sampler, columns) == pytest.approx([0.469981, 0.349605, 0.000150, 0.180264], abs=5e-7)
    columns, sampler = freshness_example(decay=None)
    leaves = np.array([1, 0.659755, 0.000251, 0.320373])
    assert chances(sampler, columns) == pytest.approx(leaves / leaves.sum(), abs=1e-6)


@pytest.mark.parametrize(
    ("beta", "normalize", "expected"),
    [
        (0.4, "buffer", [0.039966, 0.044988, 1, 0.058635]),
        (1.0, "buffer", [0.000319, 0.000429, 1, 0.000833]),
        (0.4, None, [0.776862, 0.874470, 19.43801, 1.139757]),
    ],
)
def test_freshness_example_when_corrected_has_the_weights_of_the_paper(beta, normalize, expected) -> None:
    columns, sampler = freshness_example(beta=beta, normalize=normalize, replacement=False)
    assert drawn_weights(columns, sampler) == pytest.approx(expected, rel=2e-3)


def test_batch_normalizer_when_the_rare_row_is_not_drawn_leaves_the_others_alone() -> None:
    columns, sampler = freshness_example(beta=0.4, normalize="batch")
    for seed in range(200):
        picked = sampler(columns, 2, RNG(seed))
        if sorted(picked.rows) == [0, 1]:
            weights = picked.importance_weights[np.argsort(picked.rows)]
            assert weights == pytest.approx([0.888381, 1.0], abs=1e-6)
            return
    raise AssertionError("rows 0 and 1 never came together")


def test_strata_when_both_uniforms_are_a_half_hit_rows_zero_and_one() -> None:
    leaves = np.array([0.786628, 0.585150, 0.000251, 0.301716])
    tree = SumTree()
    tree.reset(leaves)
    masses = strata(tree.total, np.array([0.5, 0.5]))
    assert masses == pytest.approx([0.418436, 1.255309], abs=1e-6)
    assert tree.find(masses).tolist() == [0, 1]


def test_advantage_example_when_computed_has_the_probabilities_of_the_paper() -> None:
    advantage = np.array([2.474867, -0.353552, 1.62018, -0.54006])
    columns = FakeColumns(4, advantage=advantage)
    sampler = columns.attach(Prioritized("advantage", 0.5, eps=1e-6))
    assert chances(sampler, columns) == pytest.approx([0.376760, 0.142402, 0.304839, 0.175999], abs=5e-7)


def test_exponent_when_given_is_applied_once() -> None:
    columns = FakeColumns(2, priority=np.array([16.0, 1.0]))
    sampler = columns.attach(Prioritized(exponent=0.5))
    assert chances(sampler, columns) == [0.8, 0.2]  # weights 4 and 1
    columns.write([1], priority=16.0)
    assert chances(sampler, columns) == [0.5, 0.5]


def test_exponent_when_zero_is_uniform_whatever_the_priorities() -> None:
    columns = FakeColumns(4, priority=np.array([0, 1e-300, 1, 1e300]), insert_step=np.arange(4))
    for decay in (None, Exponential(0.01), lambda ages: 1 / (1 + ages)):
        assert chances(columns.attach(Prioritized(exponent=0, decay=decay)), columns) == [0.25] * 4


@pytest.mark.parametrize("settings", [{}, {"stratified": False}, {"replacement": False}])
@pytest.mark.parametrize("capacity", [1, 3, 5, 1000])
def test_draws_when_counted_pass_chi_square(settings, capacity) -> None:
    columns = FakeColumns(2 * capacity + 1, priority=np.linspace(1, 3, 2 * capacity + 1))
    sampler = columns.attach(Prioritized(exponent=1.0, **settings))
    columns.kill(np.arange(0, columns.span, 2))
    rng = RNG(3)
    rows = np.concatenate([sampler(columns, 1, rng).rows for _ in range(20_000)])
    counts = np.bincount(rows, minlength=columns.span)
    assert not counts[::2].any() and (capacity == 1000 or counts[1::2].all())
    expected = columns["priority"][1::2] / columns["priority"][1::2].sum() * len(rows)
    assert capacity == 1 or chisquare(counts[1::2], expected).pvalue > 1e-3


def test_strata_when_rows_are_equal_spread_a_batch_evenly_in_random_order() -> None:
    columns = FakeColumns(8)
    sampler = columns.attach(Prioritized())
    batches = [tuple(sampler(columns, 8, RNG(seed)).rows) for seed in range(20)]
    assert all(sorted(batch) == list(range(8)) for batch in batches)
    assert len(set(batches)) == 20


def test_zero_priorities_when_some_are_positive_are_never_drawn_and_when_all_are_zero_uniformly() -> None:
    columns = FakeColumns(5, priority=np.array([0, 2.0, 0, 0, 1.0]))
    sampler = columns.attach(Prioritized(beta=0.5))
    assert set(sampler(columns, 500, RNG(0)).rows) == {1, 4}
    columns.write([1, 4], priority=0.0)
    columns.kill([2])
    picked = sampler(columns, 4000, RNG(1))
    assert chisquare(np.bincount(picked.rows, minlength=5)[[0, 1, 3, 4]]).pvalue > 1e-3
    assert (picked.importance_weights == 1).all() and set(picked.rows) == {0, 1, 3, 4}
    columns.write([3], priority=1e-300)
    assert set(sampler(columns, 50, RNG(2)).rows) == {3}


def test_equal_priorities_when_drawn_are_uniform() -> None:
    columns = FakeColumns(3, priority=0.7)
    sampler = columns.attach(Prioritized(beta=1.0))
    assert chances(sampler, columns) == pytest.approx([1 / 3] * 3)
    assert sampler(columns, 9, RNG(0)).importance_weights == pytest.approx([1.0] * 9)


def test_new_priority_when_the_maximum_leaves_falls_to_the_next() -> None:
    columns = FakeColumns()
    sampler = columns.attach(Prioritized())
    assert sampler.new_priority(columns) == 1
    columns.add(3, priority=np.array([0.5, 7.0, 2.0]))
    assert sampler.new_priority(columns) == 7
    columns.kill([1])
    assert sampler.new_priority(columns) == 2
    columns.write([0], priority=3.0)
    columns.compact()
    assert sampler.new_priority(columns) == 3
    columns.kill([0, 1])
    assert sampler.new_priority(columns) == 1
    assert Prioritized(new_priority=0.25).new_priority(columns) == 0.25


def test_beta_when_scheduled_follows_the_train_step() -> None:
    columns = FakeColumns(2, priority=np.array([3.0, 1.0]))
    sampler = columns.attach(Prioritized(exponent=1.0, beta=Linear(0, 1, steps=10), normalize=None, replacement=False))
    assert drawn_weights(columns, sampler).tolist() == [1, 1]
    columns.train_step = 10
    assert drawn_weights(columns, sampler) == pytest.approx([1 / 1.5, 1 / 0.5])
    assert Prioritized()(columns, 2, RNG(0)).importance_weights is None


def test_buffer_normalizer_when_the_least_likely_row_leaves_or_is_written_follows_it() -> None:
    columns = FakeColumns(3, priority=np.array([1.0, 2.0, 4.0]))
    sampler = columns.attach(Prioritized(exponent=1.0, beta=1.0))
    for change in (lambda: None, lambda: columns.write([1], priority=0.5), lambda: columns.kill([1])):
        change()
        picked, live = sampler(columns, 60, RNG(0)), columns.live()
        np.testing.assert_allclose(
            picked.importance_weights, columns["priority"][live].min() / columns["priority"][picked.rows]
        )


def test_function_when_it_is_the_priority_sees_columns_and_rows() -> None:
    columns = FakeColumns(3, priority=np.array([1.0, 0, 2.0]), advantage=np.array([-3.0, 5, 1]))
    judged = Prioritized(lambda c, rows: c["priority"][rows] * np.abs(c["advantage"][rows]), exponent=1.0)
    columns.attach(judged)
    assert chances(judged, columns) == [0.6, 0, 0.4]


@pytest.mark.parametrize(
    ("value", "message"), [(-1.0, "gives -1.0 for rollout 13"), (np.nan, "gives nan for"), (np.inf, "gives inf for")]
)
def test_function_when_it_gives_nonsense_is_named_with_the_rollout_until_mended(value, message) -> None:
    columns = FakeColumns(10)
    columns.add(5, reward=1.0)

    def judge(given, rows):
        return np.where(given["rollout_id"][rows] == 13, value, given["reward"][rows])

    sampler = columns.attach(Prioritized(judge))
    for _ in range(2):
        with pytest.raises(DataError, match=f"priority function judge {message}"):
            sampler(columns, 2, RNG(0))
    columns.kill([13])
    assert set(sampler(columns, 100, RNG(0)).rows) == {10, 11, 12, 14}


@pytest.mark.parametrize("result", [0.0, np.ones(3), np.ones((4, 1)), np.array(["a"] * 4)])
def test_function_when_its_result_has_another_shape_is_refused(result) -> None:
    columns = FakeColumns(4)
    sampler = columns.attach(Prioritized(lambda c, rows: result))
    with pytest.raises(DataError, match=r"priority function <lambda> gives .* for 4 rows, the first is rollout 0"):
        sampler(columns, 1, RNG(0))


def test_column_when_it_holds_nonsense_or_is_missing_is_named() -> None:
    columns = FakeColumns(2, reward=np.array([1.0, np.nan]))
    with pytest.raises(DataError, match="column 'reward' gives nan for rollout 1"):
        columns.attach(Prioritized("reward"))(columns, 1, RNG(0))
    with pytest.raises(ConfigError, match=r"no column 'advantge'; there are .*'advantage'"):
        ReplayBuffer(2, sampler=Prioritized("advantge"))


@pytest.mark.parametrize(
    "settings",
    [
        {"exponent": -0.1},
        {"exponent": np.nan},
        {"exponent": np.inf},
        {"beta": 1.5},
        {"beta": np.nan},
        {"beta": Linear(0, 2, 10)},
        {"normalize": "max"},
        {"eps": -1e-6},
        {"eps": np.nan},
        {"decay": 500},
        {"age_from": "reward"},
        {"new_priority": "min"},
        {"new_priority": -1.0},
        {"new_priority": np.nan},
        {"by": 3},
    ],
)
def test_settings_when_without_meaning_are_refused(settings) -> None:
    with pytest.raises(ConfigError):
        Prioritized(**settings)
