"""Whole groups: complete ones only, exactly n rollouts, in the asked order."""

import numpy as np
import pytest
from fake_columns import FakeColumns
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from ostinato.buffer.sampling import Groups
from ostinato.errors import ConfigError, DataError

RNG = np.random.default_rng


def grouped(sizes, *, sampler=None) -> FakeColumns:
    """One group of each size, oldest first, all in one step; group g has id 10 + g."""
    ids = np.repeat(10 + np.arange(len(sizes)), sizes)
    columns = FakeColumns(len(ids), group_id=ids, group_rows=np.repeat(sizes, sizes))
    if sampler is not None:
        columns.attach(sampler)
    return columns


def groups_of(columns, rows) -> list[int]:
    """Group ids of a batch in order; each must stand together and be whole."""
    ids = columns["group_id"][rows]
    order = [int(ids[i]) for i in range(len(ids)) if i == 0 or ids[i] != ids[i - 1]]
    assert len(set(order)) == len(order)
    for group in order:
        assert np.count_nonzero(ids == group) == columns["group_rows"][rows[ids == group][0]]
    return order


@pytest.mark.parametrize(("order", "expected"), [("newest", [14, 13, 12]), ("oldest", [10, 11, 12])])
def test_groups_when_ordered_come_whole_in_that_order(order, expected) -> None:
    columns = grouped([4] * 5)
    rows = Groups(order)(columns, 12, RNG(0))
    assert groups_of(columns, rows) == expected
    assert rows[:4].tolist() == (list(range(16, 20)) if order == "newest" else [0, 1, 2, 3])


def test_groups_when_uniform_come_equally_often_and_never_twice_in_a_batch() -> None:
    sampler = Groups()
    columns = grouped([2] * 6, sampler=sampler)
    rng = RNG(0)
    drawn = np.concatenate([groups_of(columns, sampler(columns, 4, rng)) for _ in range(2000)])
    assert chisquare(np.bincount(drawn - 10, minlength=6)).pvalue > 1e-3


def test_group_when_a_member_has_left_is_never_drawn() -> None:
    sampler = Groups("oldest")
    columns = grouped([3, 3, 3], sampler=sampler)
    assert groups_of(columns, sampler(columns, 3, RNG(0))) == [10]
    columns.kill([1])  # what eviction of the oldest rows leaves of a group
    assert groups_of(columns, sampler(columns, 6, RNG(0))) == [11, 12]
    with pytest.raises(DataError, match=r"cannot draw 9: the complete groups, by size, are \{3: 2\}"):
        sampler(columns, 9, RNG(0))
    columns.compact()
    assert groups_of(columns, sampler(columns, 3, RNG(0))) == [11]
    columns.add(2, group_id=99, group_rows=2)
    assert groups_of(columns, sampler(columns, 2, RNG(0))) == [99]


def test_groups_when_an_id_comes_again_in_a_later_step_are_two() -> None:
    sampler = Groups("newest")
    columns = grouped([2], sampler=sampler)
    columns.add(2, group_id=10, group_rows=2, insert_step=1)
    assert sampler(columns, 2, RNG(0)).tolist() == [2, 3]
    assert sorted(sampler(columns, 4, RNG(0))) == [0, 1, 2, 3]


def test_groups_when_members_lie_apart_are_found() -> None:
    columns = FakeColumns(6, group_id=np.array([1, 2, 1, 2, 1, 2]), group_rows=3)
    assert Groups("oldest")(columns, 3, RNG(0)).tolist() == [0, 2, 4]


def test_groups_when_sizes_differ_pass_over_what_would_leave_a_hole() -> None:
    columns = grouped([4, 4, 3])
    assert groups_of(columns, Groups("oldest")(columns, 7, RNG(0))) == [10, 12]
    assert groups_of(columns, Groups("newest")(columns, 8, RNG(0))) == [11, 10]
    with pytest.raises(DataError, match=r"cannot draw 5: the complete groups, by size, are \{3: 1, 4: 2\}"):
        Groups()(columns, 5, RNG(0))


@given(
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=8),
    n=st.integers(1, 30),
    order=st.sampled_from(["uniform", "newest", "oldest"]),
)
def test_batch_when_some_choice_adds_up_to_n_is_found_and_else_refused(sizes, n, order) -> None:
    columns = grouped(sizes)
    sums = {0}
    for size in sizes:
        sums |= {s + size for s in sums}
    if n in sums:
        rows = Groups(order)(columns, n, RNG(n))
        assert len(rows) == n == len(set(rows))
        groups_of(columns, rows)
    else:
        with pytest.raises(DataError, match=f"cannot draw {n}: the complete groups"):
            Groups(order)(columns, n, RNG(n))


def test_groups_when_nothing_is_held_or_the_order_is_unknown_say_so() -> None:
    with pytest.raises(DataError, match=r"the complete groups, by size, are \{\}"):
        Groups()(FakeColumns(), 1, RNG(0))
    with pytest.raises(DataError, match="does not decide"):
        Groups()(grouped([2]), None, RNG(0))
    with pytest.raises(ConfigError, match="order of groups"):
        Groups("best")
