"""Weighted draws without replacement against the closed form of successive sampling."""

from itertools import permutations

import numpy as np
import pytest
from fake_columns import FakeColumns
from scipy.stats import chisquare

from ostinato.buffer.sampling import Prioritized
from ostinato.buffer.sampling import draws as draws_module
from ostinato.buffer.sampling.draws import without_replacement
from ostinato.buffer.sumtree import SumTree

RNG = np.random.default_rng


def tree_of(values) -> SumTree:
    tree = SumTree()
    tree.reset(np.asarray(values, np.float64))
    return tree


def closed_form(values, n) -> dict[tuple[int, ...], float]:
    """Probability of each ordered result: v_1 / S * v_2 / (S - v_1) * ..."""
    chances = {}
    for order in permutations(np.flatnonzero(values), n):
        chance, left = 1.0, sum(values)
        for row in order:
            chance, left = chance * values[row] / left, left - values[row]
        chances[tuple(int(row) for row in order)] = chance
    return chances


# Equal and unequal values, some so unequal that rows are taken out of the tree, and the clocks alone (0 rounds).
@pytest.mark.parametrize("values", [[1.0, 2.0, 0.0, 4.0], [1.0, 1.0, 1.0, 1.0], [100.0, 1.0, 3.0, 0.0]])
@pytest.mark.parametrize("rounds", [16, 1, 0])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_orders_when_counted_have_the_chances_of_successive_sampling(monkeypatch, values, rounds, n) -> None:
    monkeypatch.setattr(draws_module, "ROUNDS", rounds)
    rng, tree, times = RNG(n), tree_of(values), 5000
    chances = closed_form(values, n)
    counts = dict.fromkeys(chances, 0)
    for _ in range(times):
        counts[tuple(without_replacement(tree, n, rng).tolist())] += 1
    expected = np.array(list(chances.values())) * times
    common = expected >= 5
    observed = np.array(list(counts.values()))
    assert (
        chisquare(
            np.append(observed[common], observed[~common].sum() + 1),
            np.append(expected[common], expected[~common].sum() + 1),
        ).pvalue
        > 1e-3
    )
    assert tree.leaves.tolist() == values and tree.total == sum(values) and tree.positive == np.count_nonzero(values)


def test_rows_when_values_span_hundreds_of_decades_all_come_in_falling_order() -> None:
    values = 10.0 ** -np.arange(0, 300, 3)
    tree = tree_of(values)
    rows = without_replacement(tree, 100, RNG(0))
    assert sorted(rows) == list(range(100)) and (np.diff(rows) > 0).mean() > 0.98
    np.testing.assert_array_equal(tree.leaves, values)


def test_batch_when_fewer_rows_are_positive_is_filled_uniformly_from_the_others() -> None:
    columns = FakeColumns(7, priority=np.array([0, 3.0, 0, 0, 1.0, 0, 0]))
    sampler = columns.attach(Prioritized(replacement=False, beta=1.0))
    columns.kill([5])
    fill, rng = [], RNG(0)
    for _ in range(2000):
        picked = sampler(columns, 4, rng)
        assert set(picked.rows[:2]) == {1, 4} and len(set(picked.rows)) == 4
        assert picked.importance_weights[2:].tolist() == [1, 1]  # as much as the least likely of the others
        fill.append(picked.rows[2:])
    counts = np.bincount(np.concatenate(fill), minlength=7)
    assert not counts[[1, 4, 5]].any() and chisquare(counts[[0, 2, 3, 6]]).pvalue > 1e-3
    assert sorted(sampler(columns, 6, rng).rows) == [0, 1, 2, 3, 4, 6]


def test_tree_when_the_generator_fails_in_the_middle_is_put_back() -> None:
    class Failing:
        calls = 0

        def random(self, n):
            self.calls += 1
            if self.calls == 2:
                raise KeyboardInterrupt
            return np.zeros(n)

    tree = tree_of([5.0, 1.0, 1.0, 1.0])
    with pytest.raises(KeyboardInterrupt):
        without_replacement(tree, 3, Failing())
    assert tree.leaves.tolist() == [5.0, 1.0, 1.0, 1.0] and tree.total == 8
