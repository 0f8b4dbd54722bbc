"""Every combination of sampler, retention, limiter, capacity and kernels, called in any order, against a plain list."""

from itertools import product

import numpy as np
import pytest
from families import LIMITERS, RETENTIONS, SAMPLERS
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from pair import Pair
from rollout_makers import EXTRAS

from ostinato.buffer import ReplayBuffer, Workspace

CAPACITY = 12
FEW_BYTES = 2500


def pair(sampler: str, retention: str, limiter: str, capacity_bytes: int | None, kernels: str, extras: str) -> Pair:
    make_sampler, new_priority = SAMPLERS[sampler]

    def make(capacity: int, **settings) -> ReplayBuffer:
        return ReplayBuffer(
            capacity,
            sampler=make_sampler(),
            retention=RETENTIONS[retention](),
            limiter=LIMITERS[limiter](),
            kernels=kernels,
            **settings,
        )

    return Pair(make, capacity=CAPACITY, capacity_bytes=capacity_bytes, extras=extras, new_priority=new_priority)


class Machine(RuleBasedStateMachine):
    """One sampler with everything else drawn."""

    def __init__(self, sampler: str, directory) -> None:
        super().__init__()
        self.sampler, self.path, self.workspace = sampler, directory / "buffer", Workspace()

    @initialize(
        retention=st.sampled_from(list(RETENTIONS)),
        limiter=st.sampled_from(list(LIMITERS)),
        capacity_bytes=st.sampled_from([None, FEW_BYTES]),
        kernels=st.sampled_from(["numpy", "numba"]),
        extras=st.sampled_from(EXTRAS),
    )
    def begin(self, **settings) -> None:
        self.pair = pair(self.sampler, **settings)

    @rule(sizes=st.lists(st.integers(1, 4), min_size=1, max_size=3), seed=st.integers(0, 99), data=st.data())
    def add(self, sizes, seed, data) -> None:
        some = st.lists(st.integers(0, 3).map(float), min_size=sum(sizes), max_size=sum(sizes))
        self.pair.add(sizes, seed, data.draw(st.none() | some))

    @rule(size=st.integers(1, 3), seed=st.integers(0, 99))
    def add_one_group(self, size, seed) -> None:
        self.pair.add([size], seed, None)

    @rule(
        n=st.integers(0, 8),
        seed=st.integers(0, 99),
        form=st.sampled_from(["packed", "left", "right"]),
        reuse=st.booleans(),
    )
    def sample(self, n, seed, form, reuse) -> None:
        self.pair.sample(n, seed, form, self.workspace if reuse else None)

    @rule(prompts=st.lists(st.integers(0, 13), max_size=4), per_prompt=st.integers(1, 3), seed=st.integers(0, 99))
    def sample_prompts(self, prompts, per_prompt, seed) -> None:
        self.pair.sample_prompts(prompts, per_prompt, seed)

    @rule(changes=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 3).map(float)), max_size=5))
    def write(self, changes) -> None:
        self.pair.write([i for i, _ in changes], [value for _, value in changes])

    @rule(changes=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 2).map(float)), max_size=5))
    def update(self, changes) -> None:
        self.pair.update([i for i, _ in changes], [value for _, value in changes])

    @rule(steps=st.integers(0, 3))
    def retain(self, steps) -> None:
        self.pair.retain(steps)

    @rule(picks=st.lists(st.integers(0, 40), max_size=6))
    def remove(self, picks) -> None:
        self.pair.remove(picks)

    @rule(capacity=st.integers(1, 2 * CAPACITY), capacity_bytes=st.sampled_from([None, 900, FEW_BYTES]))
    def resize(self, capacity, capacity_bytes) -> None:
        self.pair.resize(capacity, capacity_bytes)

    @rule()
    def clear(self) -> None:
        self.pair.clear()

    @rule(to_file=st.booleans())
    def reload(self, to_file) -> None:
        self.pair.reload(self.path if to_file else None)

    @invariant()
    def agree(self) -> None:
        if hasattr(self, "pair"):
            self.pair.agree()


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_buffer_when_called_in_any_order_agrees_with_a_list(sampler, tmp_path) -> None:
    run_state_machine_as_test(
        lambda: Machine(sampler, tmp_path),
        settings=settings(max_examples=10, stateful_step_count=40),
    )


def call(pair: Pair, rng: np.random.Generator, path, workspace: Workspace) -> None:
    """One call at random, most often an add or a draw."""
    picks = (pair.added - 1 - rng.integers(0, 20, 4)).tolist()
    values = rng.integers(0, 3, 4).astype(float).tolist()
    kind = rng.choice(["add", "add", "sample", "sample", "retain", "write", "update", "remove", "rare"])
    if kind == "add":
        sizes = rng.integers(1, 4, int(rng.integers(1, 4))).tolist()
        priorities = rng.integers(0, 4, sum(sizes)).astype(float).tolist() if rng.random() < 0.5 else None
        pair.add(sizes, int(rng.integers(1000)), priorities)
    elif kind == "sample":
        form = str(rng.choice(["packed", "left", "right"]))
        pair.sample(int(rng.integers(1, 6)), int(rng.integers(1000)), form, rng.choice([None, workspace]))
    elif kind == "retain":
        pair.retain(int(rng.integers(0, 3)))
    elif kind == "rare":
        rare = rng.integers(5)
        if rare == 0:
            pair.clear()
        elif rare == 1:
            pair.sample_prompts(rng.integers(0, 13, 3).tolist(), 2, int(rng.integers(1000)))
        elif rare == 2:
            pair.resize(int(rng.integers(4, 20)), pair.capacity_bytes)
        else:
            pair.reload(path if rare == 3 else None)
    else:
        {"write": pair.write, "update": pair.update, "remove": lambda picks, _: pair.remove(picks)}[kind](picks, values)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_combinations_when_each_is_called_at_random_agree_with_a_list(sampler, tmp_path) -> None:
    workspace = Workspace()
    for number, (retention, limiter, capacity_bytes) in enumerate(product(RETENTIONS, LIMITERS, (None, FEW_BYTES))):
        rng = np.random.default_rng(number)
        kernels, extras = ("numpy", "numba")[number % 2], EXTRAS[number % len(EXTRAS)]
        both = pair(sampler, retention, limiter, capacity_bytes, kernels, extras)
        for _ in range(10):
            call(both, rng, tmp_path / "buffer", workspace)
            both.agree()
