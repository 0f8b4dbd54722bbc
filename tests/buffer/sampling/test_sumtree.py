"""Sum and extreme trees against plain arrays, at sizes around their fan-out, and where rounding bites."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from ostinato.buffer.kernels import COMPILED
from ostinato.buffer.kernels import kernels as make_kernels
from ostinato.buffer.sumtree import FAN_OUT, ROOT, MaxTree, MinTree, SumTree
from ostinato.errors import DataError

RNG = np.random.default_rng
DEEP = FAN_OUT * ROOT + 1  # the smallest size with three levels below the root
VALUES = st.one_of(st.just(0.0), st.floats(1e-100, 1e6))
SIZES = [1, 3, 5, FAN_OUT - 1, FAN_OUT, FAN_OUT + 1, 1000, FAN_OUT * ROOT, DEEP]


def tree_of(values) -> SumTree:
    tree = SumTree()
    tree.reset(np.asarray(values, np.float64))
    return tree


@pytest.mark.parametrize("size", SIZES)
def test_find_when_leaves_are_units_maps_mass_i_and_a_half_to_row_i(size) -> None:
    tree = tree_of(np.ones(size))
    assert tree.total == size and tree.positive == size
    np.testing.assert_array_equal(tree.find(np.arange(size) + 0.5), np.arange(size))
    np.testing.assert_array_equal(tree.find(np.arange(size, dtype=np.float64)), np.arange(size))


@pytest.mark.parametrize("size", SIZES)
def test_find_when_only_one_row_has_mass_always_finds_it(size) -> None:
    for row in {0, size // 2, size - 1}:
        tree = tree_of(np.zeros(size))
        tree.set(np.array([row]), np.array([0.3]))
        masses = np.array([0.0, 0.1, 0.3, np.nextafter(0.3, 1), 1.0, 1e300])
        assert set(tree.find(masses)) == {row}


def test_find_when_mass_is_at_or_past_the_edge_never_returns_a_dead_row() -> None:
    rng = RNG(0)
    for _ in range(200):
        values = rng.random(rng.integers(1, 600)) ** 30
        values[rng.random(len(values)) < 0.5] = 0
        values[rng.integers(len(values))] = 1e-9
        values[-rng.integers(1, 5) :] = 0 if len(values) > 5 else 1e-5
        tree = tree_of(values)
        edges = np.cumsum(values)
        masses = np.concatenate([edges, np.nextafter(edges, 0), np.nextafter(edges, 9), [0.0, tree.total, 2.0]])
        assert (values[tree.find(masses)] > 0).all()


@given(st.data())
def test_tree_when_written_in_any_order_equals_a_fresh_one(data) -> None:
    size = data.draw(st.integers(1, 200))
    values = np.zeros(size)
    tree = SumTree(size)
    for _ in range(data.draw(st.integers(1, 6))):
        size = size + data.draw(st.integers(0, 150))
        tree.grow(size)
        values = np.concatenate([values, np.zeros(size - len(values))])
        rows = np.array(data.draw(st.lists(st.integers(0, size - 1), min_size=0, max_size=20)), np.int64)
        new = np.array(data.draw(st.lists(VALUES, min_size=len(rows), max_size=len(rows))))
        tree.set(rows, new)
        for row, value in zip(rows, new, strict=True):
            values[row] = value
    assert len(tree) == size
    np.testing.assert_array_equal(tree.leaves, values)
    assert tree.positive == np.count_nonzero(values)
    assert tree.total == pytest.approx(values.sum(), rel=1e-13)
    if tree.total > 0:
        masses = np.linspace(0, tree.total * (1 - 1e-12), 97)
        found = tree.find(masses)
        before = np.cumsum(values)[found] - values[found]
        slack = 1e-12 * tree.total
        assert (values[found] > 0).all()
        assert (before <= masses + slack).all() and (masses < before + values[found] + slack).all()


def test_sum_when_written_a_million_times_over_sixteen_decades_does_not_drift() -> None:
    rng, size = RNG(1), 5000
    tree, values = SumTree(size), np.zeros(size)
    for _ in range(1000):
        rows = rng.integers(size, size=1000)
        new = 10.0 ** rng.uniform(-8, 8, 1000)
        tree.set(rows, new)
        values[rows] = new
    values = values * 1e-12  # what follows a large sum must not inherit its rounding
    tree.set(np.arange(size), values)
    assert tree.total == pytest.approx(values.sum(), rel=1e-13)
    assert tree.total == tree_of(values).total


@pytest.mark.parametrize("size", [3, 5, 1000])
def test_draws_when_counted_pass_chi_square_with_first_and_last(size) -> None:
    values = np.linspace(1, 3, size)
    drawn = tree_of(values).find(RNG(2).random(200_000) * values.sum())
    counts = np.bincount(drawn, minlength=size)
    assert chisquare(counts, 200_000 * values / values.sum()).pvalue > 1e-3
    assert counts[0] and counts[-1]


def test_tree_when_given_values_without_meaning_refuses_and_stays_as_it_was() -> None:
    tree = tree_of([1.0, 2.0])
    for bad in (-1.0, np.nan, np.inf):
        with pytest.raises(DataError, match=f"at least 0, got {bad}"):
            tree.set(np.array([0, 1]), np.array([1.0, bad]))
    assert tree.leaves.tolist() == [1.0, 2.0] and tree.total == 3
    with pytest.raises(DataError, match=r"sum over 2 rows is 0.0"):
        tree_of([0.0, 0.0]).find(np.array([0.0]))


@pytest.mark.parametrize(("kind", "reduce", "empty"), [(MinTree, np.min, np.inf), (MaxTree, np.max, -np.inf)])
@pytest.mark.parametrize("size", [1, 3, 1000, DEEP])
def test_extreme_when_values_come_and_go_is_that_of_the_rows(kind, reduce, empty, size) -> None:
    rng, tree = RNG(3), kind()
    assert tree.value == empty
    values = rng.normal(size=size)
    tree.reset(values)
    assert tree.value == reduce(values)
    for _ in range(20):
        best = int(np.flatnonzero(values == reduce(values))[0])
        rows = np.unique(np.append(rng.integers(size, size=3), best))
        values[rows] = empty
        tree.set(rows, values[rows])
        assert tree.value == reduce(values)
        values[rows[:1]] = rng.normal()
        tree.set(rows[:1], values[rows[:1]])
    tree.grow(size + 70)
    tree.set(np.array([size + 69]), np.array([0.25]))
    assert tree.value == reduce(np.append(values, 0.25))


@given(st.sampled_from(SIZES), st.integers(0, 999))
def test_trees_when_compiled_are_to_the_last_bit_what_they_are_without(size, seed) -> None:
    pytest.importorskip("numba")
    make_kernels("numba")
    rng, compiled, results = RNG(seed), [*COMPILED], []
    values, written = rng.gamma(0.3, size=(2, size)) * 10.0 ** rng.integers(-8, 8, (2, size))
    rows = rng.integers(size, size=int(rng.integers(1, 600)))
    written = np.where(rng.random(size) < 0.3, 0, written)[: len(rows)].repeat(-(-len(rows) // size))[: len(rows)]
    written[-1] = 1.0
    try:
        for COMPILED[:] in (compiled, []):
            sums, greatest, least = trees = SumTree(), MaxTree(), MinTree()
            for tree in trees:
                tree.reset(values)
                tree.set(rows, written)
            found = sums.find(RNG(seed).random(99) * sums.total)
            results.append([sums.total, sums.positive, greatest.value, least.value, found.tolist()])
    finally:
        COMPILED[:] = compiled
    assert results[0] == results[1]
    assert results[0][1] == np.count_nonzero(sums.leaves)
