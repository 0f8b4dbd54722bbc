"""All new rollouts plus a replayed share (arXiv 2606.04560)."""

import numpy as np
import pytest
from fake_columns import FakeColumns
from scipy.stats import chisquare

from ostinato.buffer.sampling import Epoch, FreshAnchored, Prioritized, Uniform
from ostinato.errors import ConfigError, DataError

RNG = np.random.default_rng


def anchored(fresh, used, *, train_step=100, sampler=None, **columns) -> tuple[FakeColumns, FreshAnchored]:
    """`used` rollouts drawn before, then `fresh` new ones."""
    uses = np.repeat([1, 0], [used, fresh])
    given = FakeColumns(used + fresh, uses=uses, train_step=train_step, **columns)
    return given, given.attach(sampler or FreshAnchored())


def test_batch_when_half_is_replayed_has_the_size_of_the_paper() -> None:
    columns, sampler = anchored(fresh=5 * 8, used=200)  # 11 groups of 8, 6 without variance
    picked = sampler(columns, None, RNG(0))
    assert sampler.decides_size and len(picked.rows) == 60
    assert picked.rows[:40].tolist() == list(range(200, 240))
    assert len(set(picked.rows[40:])) == 20 and picked.rows[40:].max() < 200
    assert picked.importance_weights is None


@pytest.mark.parametrize(("train_step", "size"), [(0, 8), (20, 8), (21, 12)])
def test_replay_when_warming_up_starts_after_the_last_warm_up_step(train_step, size) -> None:
    columns, sampler = anchored(8, 50, train_step=train_step, sampler=FreshAnchored(warmup=20))
    assert len(sampler(columns, None, RNG(0)).rows) == size


def test_replay_when_there_is_no_warm_up_starts_with_the_first_step() -> None:
    columns, sampler = anchored(8, 50, train_step=0)
    assert len(sampler(columns, None, RNG(0)).rows) == 12


def test_replay_when_few_were_used_takes_what_there_is() -> None:
    columns, sampler = anchored(fresh=8, used=1)
    assert sorted(sampler(columns, None, RNG(0)).rows) == list(range(9))
    columns, sampler = anchored(fresh=8, used=0)
    assert len(sampler(columns, None, RNG(0)).rows) == 8
    columns, sampler = anchored(fresh=8, used=1, sampler=FreshAnchored(Uniform()))
    assert sampler(columns, None, RNG(0)).rows[8:].tolist() == [0] * 4  # with replacement


def test_batch_when_n_is_given_is_filled_to_exactly_n() -> None:
    columns, sampler = anchored(fresh=4, used=10)
    rows = sampler(columns, 9, RNG(0)).rows
    assert rows[:4].tolist() == [10, 11, 12, 13] and len(set(rows)) == 9
    assert sampler(columns, 4, RNG(0)).rows.tolist() == [10, 11, 12, 13]
    few = np.concatenate([sampler(columns, 2, RNG(seed)).rows for seed in range(1000)])
    assert few.min() == 10 and chisquare(np.bincount(few - 10)).pvalue > 1e-3
    with pytest.raises(DataError, match="cannot draw 15: 4 rollouts are new and 10 used"):
        sampler(columns, 15, RNG(0))
    columns, sampler = anchored(4, 10, train_step=3, sampler=FreshAnchored(warmup=3))
    with pytest.raises(DataError, match="10 used, none of which is replayed up to train step 3"):
        sampler(columns, 5, RNG(0))


def test_rollouts_when_drawn_become_replay_and_leave_the_fresh() -> None:
    columns, sampler = anchored(fresh=4, used=0)
    columns.use(sampler(columns, None, RNG(0)).rows)
    with pytest.raises(DataError, match="none of the 4 rollouts held is new"):
        sampler(columns, None, RNG(0))
    columns.add(2)
    columns.kill([0])
    columns.compact()
    rows = sampler(columns, None, RNG(0)).rows
    assert rows[:2].tolist() == [3, 4] and rows[2] in (0, 1, 2)


def test_replay_when_prioritized_draws_by_priority_among_the_used_only() -> None:
    replay = Prioritized("advantage", 1.0, replacement=False, beta=1.0, normalize=None)
    columns, sampler = anchored(
        2, 4, sampler=FreshAnchored(replay), advantage=np.array([0, 1.0, -3.0, 0, 50, 50]), priority=np.arange(6.0)
    )
    picked = [sampler(columns, None, RNG(seed)) for seed in range(2000)]
    replayed = np.array([p.rows[2] for p in picked])
    assert chisquare(np.bincount(replayed, minlength=4)[[1, 2]], [500, 1500]).pvalue > 1e-3
    assert set(replayed) == {1, 2}
    weights = {int(p.rows[2]): p.importance_weights.tolist() for p in picked}
    assert weights[1] == pytest.approx([1, 1, 1]) and weights[2] == pytest.approx([1, 1, 1 / 3])  # N = 4
    columns.use([4, 5])
    assert set(sampler(columns, 2, RNG(0)).rows) <= {1, 2, 4, 5}
    assert sampler.new_priority(columns) == 5


def test_replay_when_it_goes_by_epochs_is_saved_with_its_place() -> None:
    columns, sampler = anchored(fresh=2, used=6, sampler=FreshAnchored(Epoch()))
    first = sampler(columns, 5, RNG(0)).rows[2:]
    again = FreshAnchored(Epoch())
    again.load_state_arrays(sampler.state_arrays())
    again.rebuilt(columns)
    assert sorted([*first, *again(columns, 5, RNG(1)).rows[2:]]) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("settings", [{"ratio": -0.5}, {"ratio": np.nan}, {"ratio": np.inf}, {"warmup": -1}])
def test_settings_when_without_meaning_are_refused(settings) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings))):
        FreshAnchored(**settings)
