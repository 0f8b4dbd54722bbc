"""A rollout that comes alone is stored as one that comes in a record of its own."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostinato.buffer import FiniteLogprobs, ReplayBuffer
from ostinato.errors import DataError
from ostinato.rollouts import Rollouts

NUMBERS = {
    "reward": st.floats(-9, 9),
    "advantage": st.integers(-9, 9),
    "group_id": st.integers(0, 9),
    "policy_version_min": st.integers(0, 3),
    "policy_version_max": st.just(3),
    "temperature": st.just(0.5),
    "truncated": st.booleans(),
    "top_k": st.integers(0, 99),
    "source": st.sampled_from(["a", "a longer name"]),
}


@st.composite
def singles(draw) -> tuple[list, dict]:
    prompt, behind, lists = draw(st.integers(0, 30)), draw(st.integers(0, 60)), draw(st.booleans())
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    mask = np.arange(prompt + behind) >= prompt
    rows = [rng.integers(0, 9, prompt + behind).astype(np.int32), mask, -rng.random(len(mask), np.float32) * mask]
    names = draw(st.lists(st.sampled_from([*NUMBERS]), unique=True))
    columns = {"prompt_length": prompt, "prompt_id": 7} | {name: draw(NUMBERS[name]) for name in names}
    for name in draw(st.sampled_from([(), ("prompt_id",), ("prompt_length",)])):
        del columns[name]
    return [row.tolist() for row in rows] if lists else rows, columns


@settings(max_examples=60, deadline=None)
@given(st.lists(singles(), min_size=1, max_size=12), st.sampled_from(["numba", "numpy"]))
def test_buffers_when_one_gets_rollouts_alone_and_one_gets_records_stay_equal(given_rollouts, kernels) -> None:
    if kernels == "numba":
        pytest.importorskip("numba")
    one, other = (ReplayBuffer(5, kernels=kernels) for _ in range(2))
    for rows, columns in given_rollouts:
        record = Rollouts.from_rows(*([row] for row in rows), **{name: [value] for name, value in columns.items()})
        assert one.add_one(*rows, train_step=3, **columns) == other.add(record, train_step=3).item()
        one.check()
    states = ({name: array.tolist() for name, array in buffer.state_arrays().items()} for buffer in (one, other))
    assert next(states) == next(states)


def rows(*tokens: int) -> list[np.ndarray]:
    """One token of prompt, and what follows it."""
    mask = np.arange(len(tokens)) > 0
    return [np.array(tokens, np.int32), mask, np.where(mask, np.float32(-0.5), np.float32(0))]


def test_columns_when_left_out_the_next_time_are_what_they_are_by_default() -> None:
    buffer = ReplayBuffer(4)
    about = {"train_step": 5, "prompt_length": 1, "prompt_id": 3}
    buffer.add_one(*rows(1, 2), **about, reward=1.0, temperature=0.5, policy_version_min=4, policy_version_max=5)
    buffer.add_one(*rows(1, 2, 3), **about, policy_version_min=2)
    buffer.add_one(*rows(1), **about)
    columns = buffer.columns
    assert columns["reward"].tolist() == [1, 0, 0] and columns["temperature"].tolist() == [0.5, 1, 1]
    assert columns["policy_version_min"].tolist() == [4, 2, 0] and columns["policy_version_max"].tolist() == [5, 2, 0]
    assert columns["length"].tolist() == [2, 3, 1]


def test_row_when_changed_after_it_was_added_is_not_changed_in_the_buffer() -> None:
    buffer, given_rows = ReplayBuffer(4), rows(1, 2)
    buffer.add_one(*given_rows, train_step=0, prompt_length=1, prompt_id=3)
    for row in given_rows:
        row[:] = 1
    drawn = buffer.sample(1, train_step=0, rng=np.random.default_rng(0)).rollouts
    assert drawn.tokens.tolist() == [1, 2] and drawn.behavior_logprobs.tolist() == [0, -0.5]


def test_rollout_when_admission_refuses_it_has_no_id_and_else_its_priority() -> None:
    buffer = ReplayBuffer(4, admission=[FiniteLogprobs()])
    about = {"train_step": 0, "prompt_length": 1, "prompt_id": 3}
    assert buffer.add_one(*rows(1, 2), **about, priority=2.5) == 0
    tokens, mask, _ = rows(1, 2)
    assert buffer.add_one(tokens, mask, np.array([0, np.nan], np.float32), **about) == -1
    assert buffer.columns["priority"].tolist() == [2.5]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": np.array([1, -2], np.int32)}, "token id -2"),
        ({"tokens": np.array([1, 2, 3], np.int32)}, "3 tokens but 2 booleans"),
        ({"tokens": np.array([1.0, 2.0])}, "expected one row of integers"),
        ({"prompt_length": 3}, "prompt_length must lie"),
        ({"prompt_length": -1}, "prompt_length must lie"),
        ({"prompt_length": 1.5}, "prompt_length is float64"),
        ({"reward": float("nan")}, "reward of rollout 0 is nan"),
        ({"reward": 2**70}, "reward is object"),
        ({"reward": [1.0]}, r"reward is float64 \(1, 1\)"),
        ({"temperature": 2**70}, "temperature is object"),
        ({"group_id": 2**70}, "group_id"),
        ({"truncated": 3}, "truncated is int64"),
        ({"top_k": 2**31}, "top_k"),
        ({"rewards": 1.0}, "unknown rollout column 'rewards'"),
        ({"policy_version_min": 9}, "policy_version_min 9 at train step 0"),
        ({"behavior_logprobs": np.array([0, np.inf], np.float32)}, "expected a finite number"),
    ],
)
def test_rollout_when_it_is_wrong_is_refused_and_the_next_one_is_stored(change, message) -> None:
    buffer = ReplayBuffer(4)
    tokens, mask, logprobs = rows(1, 2)
    good = {"tokens": tokens, "loss_mask": mask, "behavior_logprobs": logprobs, "prompt_length": 1, "prompt_id": 3}
    buffer.add_one(**good, train_step=0)
    with pytest.raises(DataError, match=message):
        buffer.add_one(**good | change, train_step=0)
    assert buffer.add_one(**good, train_step=0) == 1
    assert buffer.columns["reward"].tolist() == [0, 0]
    buffer.check()
