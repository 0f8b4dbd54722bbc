"""Records out of rows as engines give them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinato.errors import DataError
from ostinato.rollouts import ROW_COLUMNS, TOKEN_COLUMNS, Rollouts

TOKENS = [[1, 7, 8, 9], [2, 3], [4]]
MASKS = [[False, True, False, True], [False, False], [True]]
LOGPROBS = [[0.0, -0.5, 0.0, -0.25], [0.0, 0.0], [-1.0]]


def equal(one: Rollouts, other: Rollouts) -> bool:
    names = (*TOKEN_COLUMNS, *ROW_COLUMNS, "offsets")
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in names)


@pytest.mark.parametrize("as_arrays", [False, True])
def test_rows_when_masks_have_holes_keep_them_and_prompts_end_before_the_first_true(as_arrays) -> None:
    rows = [TOKENS, MASKS, LOGPROBS]
    if as_arrays:
        kinds = TOKEN_COLUMNS.values()
        rows = [[np.array(row, kind) for row in column] for column, kind in zip(rows, kinds, strict=True)]
    rollouts = Rollouts.from_rows(*rows, reward=[1.0, 0.0, 0.5], group_id=4, policy_version_min=[2, 3, 4])
    assert rollouts.tokens.tolist() == [1, 7, 8, 9, 2, 3, 4]
    assert rollouts.loss_mask.tolist() == [False, True, False, True, False, False, True]
    assert rollouts.behavior_logprobs.tolist() == [0.0, -0.5, 0.0, -0.25, 0.0, 0.0, -1.0]
    assert rollouts.offsets.tolist() == [0, 4, 6, 7]
    assert rollouts.prompt_length.tolist() == [1, 2, 0]
    assert rollouts.policy_version_max.tolist() == [2, 3, 4] and rollouts.group_id.tolist() == [4, 4, 4]
    columns = {name: getattr(rollouts, name).dtype.type for name in TOKEN_COLUMNS | ROW_COLUMNS}
    assert columns == TOKEN_COLUMNS | ROW_COLUMNS


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=5), st.randoms(use_true_random=False))
def test_rows_when_a_prompt_is_followed_by_a_completion_are_what_completions_give(shapes, random) -> None:
    prompts = [[random.randrange(9) for _ in range(before)] for before, _ in shapes]
    completions = [[random.randrange(9) for _ in range(behind)] for _, behind in shapes]
    logprobs = [[-random.random() for _ in row] for row in completions]
    rewards = [random.random() for _ in shapes]
    expected = Rollouts.from_completions(prompts, completions, logprobs, reward=rewards)
    made = Rollouts.from_rows(
        [[*a, *b] for a, b in zip(prompts, completions, strict=True)],
        [[False] * len(a) + [True] * len(b) for a, b in zip(prompts, completions, strict=True)],
        [[0.0] * len(a) + b for a, b in zip(prompts, logprobs, strict=True)],
        reward=rewards,
    )
    assert equal(made, expected)


def test_rows_when_packed_share_no_memory_with_what_was_given() -> None:
    rows = [np.array([1, 2], np.int32)], [np.array([False, True])], [np.array([0, -1], np.float32)]
    rollouts = Rollouts.from_rows(*rows)
    for name, column in zip(TOKEN_COLUMNS, rows, strict=True):
        assert not np.shares_memory(getattr(rollouts, name), column[0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": TOKENS[:2]}, "got 2 rows of tokens, 3 masks, 3 log-probs"),
        ({"loss_mask": [*MASKS[:2], [True, True]]}, "rollout 2 has 1 tokens but 2 booleans in loss_mask"),
        ({"behavior_logprobs": [[0.0], *LOGPROBS[1:]]}, "rollout 0 has 4 tokens but 1 log-probs"),
        (
            {"loss_mask": [MASKS[0], [0, 1], MASKS[2]]},
            r"loss_mask of rollout 1 is int64 \(2,\), expected one row of bool",
        ),
        ({"tokens": [TOKENS[0], [2, -3], TOKENS[2]]}, "rollout 1 has the token id -3"),
        ({"tokens": [TOKENS[0], np.array([2, -3], np.int32), TOKENS[2]]}, "rollout 1 has the token id -3"),
        ({"tokens": [TOKENS[0], [True, False], TOKENS[2]]}, r"token ids of rollout 1 are bool \(2,\)"),
        ({"behavior_logprobs": [np.zeros((n, 2)) for n in (4, 2, 1)]}, r"rows of shape \(2,\), expected one number"),
        ({"prompt_length": [5, 0, 0]}, "prompt_length must lie between 0 and the length"),
        ({"rewards": 1.0}, "unknown rollout column 'rewards'"),
    ],
)
def test_rows_when_they_disagree_or_are_of_another_kind_are_refused(change, message) -> None:
    given_rows = {"tokens": TOKENS, "loss_mask": MASKS, "behavior_logprobs": LOGPROBS} | change
    with pytest.raises(DataError, match=message):
        Rollouts.from_rows(**given_rows)


def test_token_ids_that_numpy_cannot_hold_are_refused_by_rollout() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(DataError, match=r"token ids of rollout 1 cannot be an array"):
        Rollouts.from_rows([[1], torch.ones(2, requires_grad=True)], [[True], [True, True]], [[0.0], [0.0, 0.0]])
