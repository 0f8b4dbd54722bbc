"""The compiled add in one step leaves a buffer exactly as the steps one by one do."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rollout_makers import group, plain

from ostinato.buffer import ReplayBuffer
from ostinato.buffer.holdings import Holdings
from ostinato.errors import DataError
from ostinato.rollouts import Rollouts, concatenate

pytest.importorskip("numba")
RNG = np.random.default_rng

ADDS = st.tuples(
    st.sampled_from(["plain", "gaps", "two groups", "two prompts"]),
    st.integers(1, 5),
    st.integers(0, 5),
    st.sampled_from([0, 3, 60]),
    st.integers(0, 3),
)
MANY = st.tuples(st.just("many"), st.integers(1, 4), st.integers(5, 40), st.integers(0, 99))
CALLS = st.lists(
    st.one_of(
        ADDS,
        MANY,
        st.tuples(st.just("sample"), st.integers(1, 4), st.integers(0, 99)),
        st.tuples(st.just("remove"), st.lists(st.integers(0, 200), min_size=1, max_size=4)),
        st.tuples(st.sampled_from(["clear", "save"])),
        st.tuples(st.just("resize"), st.integers(5, 40)),
    ),
    min_size=3,
    max_size=20,
)


class Steps(ReplayBuffer):
    """Never adds in one step."""

    def __init__(self, *args, **settings) -> None:
        super().__init__(*args, **settings)
        self._holdings.exchange = lambda *about: False  # type: ignore[method-assign]


def rollouts(kind: str, n: int, length: int, prompt: int, which: int) -> Rollouts:
    """n rollouts of a prompt of so many tokens, `which` of four that come again."""
    if kind == "gaps":
        return group(RNG(which), n, group_id=which)
    tokens = [which * (kind != "two prompts") + i * (kind == "two prompts") for i in range(n)]
    columns = {"group_id": which, "source": ("a", "b")[which % 2], "reward": float(which)}
    made = Rollouts.from_completions(
        [[token] * prompt for token in tokens],
        [[i] * (length * 100 + i) for i in range(n)],
        [[-0.5] * (length * 100 + i) for i in range(n)],
        **columns,
    )
    return concatenate([made, plain(1, group_id=9)]) if kind == "two groups" else made


def call(buffer: ReplayBuffer, name: str, *about):
    if name == "many":
        n, count, seed = about
        picks = RNG(seed).integers([0, 0, 0], [3, 3, 4], (count, 3)).tolist()
        return [call(buffer, "plain", n, length, (0, 3, 60)[prompt], which) for length, prompt, which in picks]
    if name == "sample":
        n, seed = about
        try:
            draw = buffer.sample(n, train_step=0, rng=RNG(seed))
        except DataError as error:
            return str(error)
        return [draw.rollout_ids.tolist(), draw.uses.tolist(), draw.rollouts.tokens.tolist()]
    if name == "remove":
        return buffer.remove(*about)
    if name == "clear":
        return buffer.clear()
    if name == "resize":
        return buffer.resize(*about)
    if name == "save":
        return {name: array.tolist() for name, array in buffer.state_arrays().items()}
    try:
        return buffer.add(rollouts(name, *about), train_step=0).tolist()
    except DataError as error:
        return str(error)


@settings(max_examples=150, deadline=None)
@given(capacity=st.integers(5, 40), calls=CALLS)
def test_buffers_when_one_adds_in_one_step_and_one_step_by_step_stay_equal(capacity, calls) -> None:
    one, other = (kind(capacity, kernels="numba") for kind in (ReplayBuffer, Steps))
    for name, *about in calls:
        assert call(one, name, *about) == call(other, name, *about)
        assert one.metrics() == other.metrics()
        one.check()
    assert call(one, "save") == call(other, "save")


@pytest.mark.parametrize(
    ("settings", "given_rollouts", "expected"),
    [
        ({}, plain(4, group_id=1), True),
        ({"capacity_bytes": 10**6}, plain(4, group_id=1), False),
        ({}, plain(4), False),
    ],
    ids=["a group", "bounded by bytes", "four groups"],
)
def test_add_when_nothing_stands_against_it_is_one_step(settings, given_rollouts, expected, monkeypatch) -> None:
    taken, original = [], Holdings.exchange
    monkeypatch.setattr(Holdings, "exchange", lambda *about: taken.append(original(*about)) or taken[-1])
    buffer = ReplayBuffer(8, kernels="numba", **settings)
    same_prompt = given_rollouts.select(np.zeros(4, np.int64)) if expected else given_rollouts
    for _ in range(4):
        buffer.add(same_prompt, train_step=0)
    assert any(taken) is expected
    assert buffer.sample(8, train_step=0, rng=RNG(0)).rollouts.completion(0).tolist() == [0, 0, 0] or not expected
    buffer.check()
