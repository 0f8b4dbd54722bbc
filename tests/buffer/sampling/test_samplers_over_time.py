"""Every sampler while rollouts come, go, are drawn and written: exact batches of live rows, and a right index."""

import numpy as np
import pytest
from fake_columns import FakeColumns
from hypothesis import given
from hypothesis import strategies as st

from ostinato.buffer.sampling import (
    Buckets,
    Epoch,
    Exponential,
    FreshAnchored,
    Groups,
    Mixture,
    NeverUsedFirst,
    Newest,
    Oldest,
    Picked,
    Prioritized,
    Quotas,
    Uniform,
    picked,
)
from ostinato.errors import DataError

RNG = np.random.default_rng
EXPONENTIAL = {"decay": Exponential(3.0), "beta": 0.4}
MAKERS = {
    "uniform": Uniform,
    "different": lambda: Uniform(False),
    "newest": Newest,
    "oldest": Oldest,
    "epoch": Epoch,
    "never used": NeverUsedFirst,
    "prioritized": lambda: Prioritized(beta=0.4),
    "prioritized different": lambda: Prioritized(replacement=False),
    "fresh": lambda: Prioritized(**EXPONENTIAL),
    "any law": lambda: Prioritized(decay=lambda ages: 1 / (1 + ages), normalize="batch", beta=1.0),
    "mixture": lambda: Mixture((Prioritized(**{**EXPONENTIAL, "beta": None}), Uniform()), 0.5, beta=0.4),
    "quotas": lambda: Quotas({"a": 0.7, "b": 0.3}, Prioritized(replacement=False)),
    "anchored": lambda: FreshAnchored(Prioritized(by="reward", replacement=False)),
    "groups": Groups,
    "buckets": lambda: Buckets(4),
}


def operate(columns: FakeColumns, kind: str, rng: np.random.Generator) -> None:
    """One thing that a buffer may do."""
    live = columns.live()
    if kind == "add":
        n = int(rng.integers(1, 5))
        columns.add(
            n,
            priority=rng.choice([0.0, 0.5, 2.0], n),
            reward=rng.choice([0.0, 1.0], n),
            insert_step=columns.train_step,
            source_code=rng.integers(0, 2, n),
            group_id=columns.next_id,
            group_rows=n,
            prompt_id=rng.integers(0, 4, n),
            group_reward_mean=rng.choice([0.25, 0.5]),
        )
    elif kind == "compact":
        columns.compact()
    elif kind == "step":
        columns.train_step += int(rng.integers(1, 4))
    elif len(live):
        rows = rng.choice(live, min(len(live), 3), replace=False)
        if kind == "kill":
            columns.kill(rows)
        elif kind == "kill oldest":
            columns.kill(live[:2])
        elif kind == "write":
            columns.write(rows, priority=rng.choice([0.0, 1.0, 3.0], len(rows)))


KINDS = st.lists(
    st.sampled_from(["add", "add", "draw", "draw", "kill", "kill oldest", "write", "step", "compact"]), max_size=25
)


@pytest.mark.parametrize("name", list(MAKERS))
@given(kinds=KINDS, seed=st.integers(0, 2**32))
def test_sampler_when_anything_happens_draws_exactly_n_live_rows(name, kinds, seed) -> None:
    rng, sampler = RNG(seed), MAKERS[name]()
    columns = FakeColumns(sources=("a", "b"))
    if hasattr(sampler, "rebuilt"):
        columns.attach(sampler)
    for kind in kinds:
        if kind != "draw":
            operate(columns, kind, rng)
            continue
        n = int(rng.integers(1, 6))
        if name not in ("groups", "buckets") and len(columns) < (1 if sampler.repeats else n):
            with pytest.raises(DataError, match=f"cannot draw {n}"):
                sampler(columns, n, rng)
            continue
        try:
            batch = picked(sampler(columns, n, rng))
        except DataError:
            assert name in ("groups", "buckets"), name
            continue
        assert len(batch.rows) == n and columns.alive[batch.rows].all()
        assert sampler.repeats or len(set(batch.rows)) == n
        assert batch.importance_weights is None or (
            np.isfinite(batch.importance_weights).all() and (batch.importance_weights > 0).all()
        )
        columns.use(batch.rows)


def results(sampler, columns) -> tuple[np.ndarray, ...]:
    """What can be compared between an index that followed all changes and a new one."""
    if hasattr(sampler, "probabilities"):
        return (
            sampler.probabilities(columns, columns.live()),
            np.array(
                [sampler.least_drawable(columns), sampler.least_probability(columns), sampler.new_priority(columns)]
            ),
        )
    batch: Picked = picked(sampler(columns, 1, RNG(0)))
    return (batch.rows,)


@pytest.mark.parametrize(
    "name", ["never used", "prioritized", "fresh", "any law", "mixture", "quotas", "anchored", "groups"]
)
@given(kinds=KINDS, seed=st.integers(0, 2**32))
def test_index_when_it_followed_every_change_equals_a_new_one(name, kinds, seed) -> None:
    rng, columns = RNG(seed), FakeColumns(sources=("a", "b"))
    followed = columns.attach(MAKERS[name]())
    for kind in kinds:
        if kind == "draw" and len(columns):
            columns.use(rng.choice(columns.live(), 2))
        operate(columns, kind, rng)
        new = MAKERS[name]()
        new.rebuilt(columns)
        try:
            expected = results(new, columns)
        except (DataError, ZeroDivisionError):
            continue
        for ours, theirs in zip(results(followed, columns), expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-9)


@pytest.mark.parametrize("name", ["prioritized", "fresh", "any law"])
@given(kinds=KINDS, seed=st.integers(0, 2**32))
def test_probabilities_when_anything_happened_are_those_of_the_definition(name, kinds, seed) -> None:
    rng, columns = RNG(seed), FakeColumns()
    sampler = columns.attach(MAKERS[name]())
    for kind in kinds:
        operate(columns, kind, rng)
        live = columns.live()
        if not len(live):
            continue
        ages = columns.train_step - columns["insert_step"][live]
        factor = {"prioritized": np.ones(len(live)), "fresh": np.exp(-ages / 3.0), "any law": 1 / (1 + ages)}[name]
        weights = (columns["priority"][live] * factor) ** 0.6
        expected = weights / weights.sum() if weights.any() else np.full(len(live), 1 / len(live))
        np.testing.assert_allclose(sampler.probabilities(columns, live), expected, rtol=1e-9)
