"""How often each rollout is drawn through the whole buffer, by chi-square: first and last rows, holes, small sizes."""

import numpy as np
import pytest
from rollout_makers import plain
from scipy.stats import chisquare

from ostinato.buffer import MinSize, ReplayBuffer
from ostinato.buffer.sampling import Epoch, Exponential, Mixture, Prioritized, Uniform

RNG = np.random.default_rng
LEAST_P = 1e-3
CAPACITIES = (1, 3, 5, 1000)

LAWS = {
    "uniform": (Uniform, lambda rows: np.ones(len(rows))),
    "uniform, different": (lambda: Uniform(False), lambda rows: np.ones(len(rows))),
    "epoch": (Epoch, lambda rows: np.ones(len(rows))),
    "prioritized": (lambda: Prioritized(exponent=0.5, stratified=False), lambda rows: rows["priority"] ** 0.5),
    "stratified": (lambda: Prioritized(exponent=1.0), lambda rows: rows["priority"]),
    "freshness": (
        lambda: Prioritized(exponent=0.6, stratified=False, decay=Exponential(4.0)),
        lambda rows: (rows["priority"] * np.exp(-(rows.train_step - rows["insert_step"]) / 4.0)) ** 0.6,
    ),
    "another decay": (
        lambda: Prioritized(exponent=0.6, stratified=False, decay=lambda age: 1 / (1 + age)),
        lambda rows: (rows["priority"] / (1 + rows.train_step - rows["insert_step"])) ** 0.6,
    ),
    "mixture": (
        lambda: Mixture((Prioritized(exponent=1.0, stratified=False), Uniform()), 0.3),
        lambda rows: 0.3 * rows["priority"] / rows["priority"].sum() + 0.7 / len(rows),
    ),
}
"""By name: a sampler, and the weight of each row by the definition."""


def counts(buffer: ReplayBuffer, draws: int, batch: int, step: int) -> dict[int, int]:
    """How often each held id is drawn."""
    rng = RNG(7)
    drawn = [buffer.sample(batch, train_step=step, rng=rng).rollout_ids for _ in range(draws // batch)]
    held = buffer.columns["rollout_id"]
    found = np.searchsorted(held, np.concatenate(drawn))
    assert (held[found] == np.concatenate(drawn)).all(), "a rollout that left was drawn"
    return dict(zip(held.tolist(), np.bincount(found, minlength=len(held)).tolist(), strict=True))


def priorities_of(ids: np.ndarray) -> np.ndarray:
    return 0.5 + ids % 7


def filled(sampler, capacity: int, *, holes: bool) -> ReplayBuffer:
    """A buffer turned over twice; with holes, every third rollout is removed, and of many the oldest and the newest."""
    buffer = ReplayBuffer(capacity, sampler=sampler, limiter=MinSize(1))
    for step in range(8):
        n = max(1, capacity // 4)
        ids = buffer.added + np.arange(n)
        buffer.add(plain(n, first=buffer.added), train_step=step, priorities=priorities_of(ids))
        buffer.sample(1, train_step=step, rng=RNG(step))
    if holes:
        held = buffer.columns["rollout_id"].copy()
        for gone in (held[1::3], held[:1], held[-1:])[: 1 if capacity == 3 else 3]:
            buffer.remove(gone)
    return buffer


@pytest.mark.parametrize("holes", [False, True])
@pytest.mark.parametrize("capacity", CAPACITIES)
@pytest.mark.parametrize("law", LAWS)
def test_draws_when_counted_follow_the_weights_of_the_law(law, capacity, holes) -> None:
    if holes and capacity == 1:
        return
    make, weights = LAWS[law]
    buffer = filled(make(), capacity, holes=holes)
    different = not buffer.sampler.repeats
    drawn = counts(buffer, 40_000 if capacity > 5 else 2500, 1 if different and capacity <= 5 else 20, step=9)
    rows = buffer.columns
    assert list(drawn) == rows["rollout_id"].tolist() and 0 < len(rows) <= capacity
    expected = weights(rows) / weights(rows).sum()
    observed = np.array(list(drawn.values()))
    if len(rows) == 1:
        assert observed[0] > 0
        return
    # Without replacement and in strata the counts vary less than independent ones would, never more.
    assert chisquare(observed, expected * observed.sum()).pvalue > LEAST_P
    for edge in (0, -1):
        pair = np.array([observed[edge], observed.sum() - observed[edge]])
        assert chisquare(pair, np.array([expected[edge], 1 - expected[edge]]) * observed.sum()).pvalue > LEAST_P


@pytest.mark.parametrize("sampler", [Uniform, lambda: Prioritized(exponent=0.0), Epoch])
def test_draws_when_groups_lie_side_by_side_reach_every_group(sampler) -> None:
    """Capacity counts rollouts: of 25 groups of 8 the newest 12 are held in 96 places, and a long run reaches all."""
    buffer = ReplayBuffer(96, sampler=sampler(), limiter=MinSize(1))
    for group in range(25):
        buffer.add(plain(8, first=8 * group, group_id=group), train_step=group)
    assert len(buffer) == 96
    assert sorted(set(buffer.columns["group_id"].tolist())) == list(range(13, 25))
    rng = RNG(1)
    drawn = np.concatenate([buffer.sample(4, train_step=25, rng=rng).rollouts.group_id for _ in range(1000)])
    count = np.bincount(drawn - 13, minlength=12)
    assert chisquare(count).pvalue > LEAST_P


def test_uniform_draws_when_the_generator_is_seeded_are_these() -> None:
    """Test vectors: other versions, machines and kernels must give the same draws for the same seed."""
    for kernels in ("numpy", "numba"):
        buffer, rng = ReplayBuffer(10, limiter=MinSize(1), kernels=kernels), RNG(2604_08706)
        for _ in range(2):
            buffer.add(plain(7), train_step=0)
        got = [buffer.sample(8, train_step=0, rng=rng).rollout_ids.tolist() for _ in range(3)]
        assert got == VECTORS["with replacement"]
        buffer.remove([5, 9])
        assert buffer.sample(8, train_step=0, rng=rng).rollout_ids.tolist() == VECTORS["with holes"]
        buffer.sampler = Uniform(False)
        assert buffer.sample(8, train_step=0, rng=rng).rollout_ids.tolist() == VECTORS["without replacement"]


VECTORS = {
    "with replacement": [[5, 9, 12, 10, 12, 5, 11, 11], [9, 12, 10, 10, 6, 7, 8, 9], [8, 12, 7, 12, 5, 13, 13, 11]],
    "with holes": [13, 8, 11, 4, 6, 6, 11, 8],
    "without replacement": [7, 11, 10, 12, 4, 13, 6, 8],
}
