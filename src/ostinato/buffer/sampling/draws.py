"""Drawing rows from a sum tree, and the weights that undo unequal probabilities."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ostinato.buffer.sampling.protocol import Rows
from ostinato.buffer.sumtree import SumTree

ROUNDS = 16


def with_replacement(tree: SumTree, n: int, rng: np.random.Generator, *, stratified: bool) -> Rows:
    """n rows with probability proportional to their value, in random order.

    `stratified`: one draw in each of n equal parts of the total, which keeps every probability and lowers the variance
    of how often a row comes (Schaul et al. 2016, appendix B.2.1).
    """
    if not stratified:
        return tree.find(rng.random(n) * tree.total)
    return rng.permutation(tree.find(strata(tree.total, rng.random(n))))


def strata(total: float, uniforms: NDArray[np.float64]) -> NDArray[np.float64]:
    """One mass in each of n equal parts of [0, total), the uniform numbers saying where: float64 (n,)."""
    n = len(uniforms)
    return (np.arange(n) + uniforms) * (total / n)


def without_replacement(tree: SumTree, n: int, rng: np.random.Generator) -> Rows:
    """n different rows of positive value, n at most their number, in the order of being drawn.

    Successive sampling: each is drawn with probability proportional to its value among those not drawn yet (the law of
    Efraimidis and Spirakis 2006, and of Gumbel top-k). Independent draws of which only first occurrences count have
    exactly this law. When most of a round repeats what was found, the rows found are taken out of the tree until the
    end; after 16 rounds, which only extremely unequal values need, exponential clocks over all rows draw the rest.
    """
    rows = np.empty(0, np.int64)
    removed = 0
    values: list[NDArray[np.float64]] = []
    try:
        for _ in range(ROUNDS):
            if len(rows) == n:
                return rows
            wanted = n - len(rows)
            found = first_occurrences(tree.find(rng.random(wanted) * tree.total))
            rows = np.concatenate([rows, found[~np.isin(found, rows)]])
            if 2 * (n - len(rows)) > wanted:
                values.append(tree.leaves[rows[removed:]])
                tree.set(rows[removed:], np.zeros(len(rows) - removed))
                removed = len(rows)
        left = np.flatnonzero(tree.leaves)
        left = left[~np.isin(left, rows)]
        return np.concatenate([rows, _clocks(left, tree.leaves[left], n - len(rows), rng)])
    finally:
        if values:
            tree.set(rows[:removed], np.concatenate(values))


def first_occurrences(rows: Rows) -> Rows:
    """The different entries in the order in which they first appear."""
    _, first = np.unique(rows, return_index=True)
    return rows[np.sort(first)]


def _clocks(rows: Rows, values: NDArray[np.float64], n: int, rng: np.random.Generator) -> Rows:
    """The n rows whose clocks ring first; a clock of rate v rings after an exponential time of mean 1 / v."""
    rings = np.log(rng.standard_exponential(len(rows))) - np.log(values)
    return rows[np.argsort(rings)[:n]]


def importance_weights(
    probabilities: NDArray[np.float64], held: int, beta: float, normalizer: float | None
) -> NDArray[np.float64]:
    """(N P) ** -beta over (N P') ** -beta, where P' is the `normalizer` probability; None: over nothing."""
    raw = (held * probabilities) ** -beta
    return raw if normalizer is None else raw / (held * normalizer) ** -beta
