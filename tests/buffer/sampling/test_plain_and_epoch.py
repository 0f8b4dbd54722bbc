"""Uniform, newest, oldest, epochs and never-used-first: which rows, how often, and never a dead one."""

import numpy as np
import pytest
from fake_columns import FakeColumns
from scipy.stats import chisquare

from ostinato.buffer.sampling import Epoch, NeverUsedFirst, Newest, Oldest, Uniform
from ostinato.errors import CheckpointError, DataError

RNG = np.random.default_rng
ALL = [Uniform, lambda: Uniform(False), Newest, Oldest, Epoch, NeverUsedFirst]


def holed(capacity) -> FakeColumns:
    """`capacity` live rows with dead ones before, between and behind them."""
    columns = FakeColumns(2 * capacity + 3)
    columns.kill(np.setdiff1d(np.arange(columns.span), np.arange(1, 2 * capacity, 2)))
    return columns


@pytest.mark.parametrize("make", ALL, ids=lambda make: type(make()).__name__)
@pytest.mark.parametrize("capacity", [1, 3, 5, 1000])
def test_batch_when_rows_are_dead_is_exact_and_alive(make, capacity) -> None:
    columns, sampler = holed(capacity), make()
    if hasattr(sampler, "rebuilt"):
        sampler.rebuilt(columns)
    for n in {1, capacity // 2 or 1, capacity}:
        rows = sampler(columns, n, RNG(n))
        assert rows.dtype == np.int64 and len(rows) == n and columns.alive[rows].all()
        assert sampler.repeats or len(set(rows)) == n
    for n, message in ((None, "does not decide"), (0, "at least 1"), (-1, "at least 1")):
        with pytest.raises(DataError, match=message):
            sampler(columns, n, RNG(0))
    if not sampler.repeats:
        with pytest.raises(DataError, match=f"cannot draw {capacity + 1} without replacement from the {capacity}"):
            sampler(columns, capacity + 1, RNG(0))


@pytest.mark.parametrize("make", ALL, ids=lambda make: type(make()).__name__)
def test_draw_when_nothing_is_held_is_refused(make) -> None:
    columns, sampler = FakeColumns(2), make()
    columns.kill([0, 1])
    if hasattr(sampler, "rebuilt"):
        sampler.rebuilt(columns)
    with pytest.raises(DataError, match="from the 0 rollouts held"):
        sampler(columns, 1, RNG(0))


def test_uniform_when_every_row_lives_draws_what_the_generator_says() -> None:
    columns = FakeColumns(50)
    np.testing.assert_array_equal(Uniform()(columns, 20, RNG(7)), RNG(7).integers(50, size=20))
    np.testing.assert_array_equal(Uniform(False)(columns, 20, RNG(7)), RNG(7).choice(50, size=20, replace=False))


@pytest.mark.parametrize("make", [Uniform, lambda: Uniform(False), Epoch, NeverUsedFirst])
@pytest.mark.parametrize("capacity", [1, 3, 5, 1000])
def test_draws_when_counted_pass_chi_square(make, capacity) -> None:
    columns, rng, sampler = holed(capacity), RNG(5), make()
    if hasattr(sampler, "rebuilt"):
        sampler.rebuilt(columns)
    n = max(1, capacity // 3)
    draws = 3000 if capacity < 1000 else 100
    rows = np.concatenate([sampler(columns, n, rng) for _ in range(draws)])
    counts = np.bincount(rows, minlength=columns.span)
    assert (counts > 0).tolist() == columns.alive.tolist()  # the first and the last row too
    assert capacity == 1 or chisquare(counts[columns.live()]).pvalue > 1e-3


def test_newest_and_oldest_when_rows_are_dead_skip_them() -> None:
    columns = holed(4)  # alive: 1, 3, 5, 7
    assert Newest()(columns, 3, RNG(0)).tolist() == [7, 5, 3]
    assert Oldest()(columns, 3, RNG(0)).tolist() == [1, 3, 5]


@pytest.mark.parametrize("n", [1, 4, 7, 10])
def test_epoch_when_drawn_on_shows_every_row_once_before_any_again(n) -> None:
    columns = FakeColumns(10)
    sampler = columns.attach(Epoch())
    rng, seen = RNG(n), np.zeros(10, np.int64)
    for _ in range(60):
        rows = sampler(columns, n, rng)
        assert len(set(rows)) == n
        np.add.at(seen, rows, 1)
        columns.use(rows)
        assert seen.max() - seen.min() <= (1 if 10 % n == 0 else 2)


@pytest.mark.parametrize("n", [1, 2, 5, 10])
def test_epoch_when_batches_divide_it_is_a_permutation(n) -> None:
    columns = FakeColumns(10)
    sampler, rng = columns.attach(Epoch()), RNG(n)
    epochs = [tuple(np.concatenate([sampler(columns, n, rng) for _ in range(10 // n)])) for _ in range(20)]
    assert all(sorted(epoch) == list(range(10)) for epoch in epochs)
    assert len(set(epochs)) == 20


def test_epoch_when_a_batch_wraps_takes_the_rest_first_and_counts_for_the_next() -> None:
    columns = FakeColumns(5)
    sampler = columns.attach(Epoch())
    first = sampler(columns, 3, RNG(0))
    second = sampler(columns, 3, RNG(1))
    rest = np.setdiff1d(np.arange(5), first)
    assert set(second[:2]) == set(rest) and second[2] in first
    third, fourth = sampler(columns, 2, RNG(2)), sampler(columns, 2, RNG(3))
    assert sorted([second[2], *third, *fourth]) == [0, 1, 2, 3, 4]


def test_epoch_when_rollouts_arrive_and_leave_keeps_its_promise_to_the_others() -> None:
    columns = FakeColumns(6)
    sampler = columns.attach(Epoch())
    drawn = columns["rollout_id"][sampler(columns, 2, RNG(0))].tolist()
    columns.add(3)  # ids 6, 7, 8 join the epoch
    gone = next(i for i in range(6) if i not in drawn)
    columns.kill(columns.rows_of([gone, drawn[0]]))
    columns.compact()
    columns.compact()
    waiting = sorted(set(range(9)) - set(drawn) - {gone})
    ids = np.concatenate([columns["rollout_id"][sampler(columns, 1, RNG(seed))] for seed in range(len(waiting))])
    assert sorted(ids) == waiting
    assert sorted(columns["rollout_id"][sampler(columns, 7, RNG(2))]) == sorted({*waiting, drawn[1]})


def test_newcomers_when_an_epoch_is_under_way_come_as_soon_as_any_other() -> None:
    firsts = []
    for seed in range(2000):
        columns = FakeColumns(4)
        sampler = columns.attach(Epoch())
        sampler(columns, 2, RNG(seed))
        columns.add(1)
        firsts.append(sampler(columns, 1, RNG(10_000 + seed))[0] == 4)
    assert np.mean(firsts) == pytest.approx(1 / 3, abs=0.04)


def test_epoch_when_saved_goes_on_in_another_process() -> None:
    columns = FakeColumns(12)
    sampler = columns.attach(Epoch())
    sampler(columns, 5, RNG(0))
    columns.kill([1, 4])
    again = Epoch()
    again.load_state_arrays(sampler.state_arrays())
    columns.compact()
    again.rebuilt(columns)
    for seed in range(10):
        np.testing.assert_array_equal(sampler(columns, 4, RNG(seed)), again(columns, 4, RNG(seed)))
    with pytest.raises(CheckpointError, match="lacks the array 'drawn'"):
        again.load_state_arrays({})


def test_never_used_first_when_some_were_used_takes_all_new_ones_then_others() -> None:
    columns = FakeColumns(8)
    sampler = columns.attach(NeverUsedFirst())
    columns.use(np.arange(5))
    for seed in range(30):
        rows = sampler(columns, 5, RNG(seed))
        assert set(rows[:3]) == {5, 6, 7} and set(rows[3:]) <= set(range(5)) and len(set(rows)) == 5
        assert set(sampler(columns, 2, RNG(seed))) < {5, 6, 7}
    columns.kill([6])
    assert sorted(sampler(columns, 7, RNG(0))) == [0, 1, 2, 3, 4, 5, 7]
    columns.compact()
    assert set(sampler(columns, 2, RNG(0))) == {5, 6}


def test_never_used_first_when_the_rest_is_filled_does_so_uniformly() -> None:
    columns = FakeColumns(6, uses=np.array([1, 1, 1, 1, 0, 0]))
    sampler = columns.attach(NeverUsedFirst())
    rest = np.concatenate([sampler(columns, 4, RNG(seed))[2:] for seed in range(2000)])
    assert chisquare(np.bincount(rest, minlength=4)).pvalue > 1e-3
