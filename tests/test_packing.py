import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ostinato.batching import padded_batch
from ostinato.errors import ConfigError, DataError
from ostinato.packing import packed_batch, packed_rows, unpacked
from ostinato.rollouts import Rollouts


def three_rollouts() -> Rollouts:
    return Rollouts.from_completions(
        prompts=[[1, 2], [3], [4, 5]],
        completions=[[6, 7, 8], [9], []],
        logprobs=[[-0.5, -1.0, -1.5], [-0.25], []],
        group_id=[11, 12, 13],
    )


def rollouts_of(lengths: list[tuple[int, int]]) -> Rollouts:
    """One rollout for each (prompt, completion); token ids and log-probs count up."""
    completions = [list(range(10, 10 + after)) for _, after in lengths]
    logprobs = [[-0.1 * (i + 1) - t for t in range(after)] for i, (_, after) in enumerate(lengths)]
    return Rollouts.from_completions([list(range(before)) for before, _ in lengths], completions, logprobs)


def test_packed_batch_when_worked_by_hand_has_positions_bounds_and_shifted_completions() -> None:
    batch = packed_batch(three_rollouts(), np.array([1, 0, 2]))
    assert batch.tokens.tolist() == [[3, 9, 1, 2, 6, 7, 8, 4, 5]]
    assert batch.position_ids.tolist() == [[0, 1, 0, 1, 2, 3, 4, 0, 1]]
    assert batch.loss_mask.int().tolist() == [[1, 0, 0, 1, 1, 1, 0, 0]]
    assert batch.behavior_logprobs.tolist() == [[-0.25, 0, 0, -0.5, -1.0, -1.5, 0, 0]]
    assert (batch.cu_seqlens.tolist(), batch.max_seqlen) == ([0, 2, 7, 9], 5)
    assert batch.rows.tolist() == [1, 0, 2]
    assert (batch.tokens.dtype, batch.position_ids.dtype, batch.cu_seqlens.dtype) == (
        torch.int64,
        torch.int64,
        torch.int32,
    )
    assert (batch.loss_mask.dtype, batch.behavior_logprobs.dtype) == (torch.bool, torch.float32)


def test_unpacked_when_worked_by_hand_drops_predictions_across_rollouts() -> None:
    batch = packed_batch(three_rollouts(), np.array([1, 0, 2]))
    values = torch.tensor([[1.0, math.nan, 2.0, 3.0, 4.0, 5.0, math.inf, 6.0]], requires_grad=True)
    rows = unpacked(values, batch)
    assert rows.tolist() == [[1, 0, 0, 0], [2, 3, 4, 5], [6, 0, 0, 0]]
    (rows * torch.arange(1.0, 13.0).view(3, 4)).sum().backward()
    assert values.grad.tolist() == [[1, 0, 5, 6, 7, 8, 0, 9]]


lengths = st.tuples(st.integers(1, 4), st.integers(0, 6))


@given(st.lists(lengths, min_size=1, max_size=6), st.data())
def test_packed_batch_when_unpacked_is_the_padded_batch(rollout_lengths, data) -> None:
    rollouts = rollouts_of(rollout_lengths)
    rows = np.array(data.draw(st.lists(st.integers(0, len(rollouts) - 1), max_size=8)), np.int64)
    packed, padded = packed_batch(rollouts, rows), padded_batch(rollouts, rows, pad_token_id=0)
    for name in ("loss_mask", "behavior_logprobs"):
        assert torch.equal(unpacked(getattr(packed, name), packed), getattr(padded, name))
    following = unpacked(packed.tokens[:, 1:], packed)
    assert torch.equal(following, padded.tokens[:, 1:])
    assert torch.equal(packed.tokens[0], padded.tokens[padded.attention_mask])
    assert packed.cu_seqlens.diff().tolist() == rollouts.lengths[rows].tolist()
    assert (packed.position_ids == 0).sum() == len(rows)


def test_packed_batch_when_there_is_nothing_has_no_tokens() -> None:
    batch = packed_batch(three_rollouts(), np.empty(0, np.int64))
    assert (batch.tokens.shape, batch.loss_mask.shape, batch.cu_seqlens.tolist()) == ((1, 0), (1, 0), [0])
    assert unpacked(batch.loss_mask, batch).shape == (0, 0)


def test_packed_batch_when_a_rollout_has_no_token_at_all_keeps_its_row() -> None:
    rollouts = Rollouts.from_completions([[], [1], []], [[], [2, 3], []], [[], [-1.0, -2.0], []])
    batch = packed_batch(rollouts, np.arange(3))
    assert batch.cu_seqlens.tolist() == [0, 0, 3, 3]
    assert unpacked(batch.behavior_logprobs, batch).tolist() == [[0, 0], [-1, -2], [0, 0]]


@pytest.mark.parametrize("logprob", [math.nan, -math.inf, 0.25])
def test_packed_batch_when_a_log_prob_is_none_refuses_as_the_padded_one_does(logprob) -> None:
    rollouts = Rollouts.from_completions([[1], [2]], [[3], [4, 5]], [[-1.0], [-1.0, logprob]], group_id=[7, 8])
    with pytest.raises(DataError) as padded:
        padded_batch(rollouts, np.array([1, 0]), pad_token_id=0, rollout_ids=np.array([70, 80]))
    with pytest.raises(DataError) as packed:
        packed_batch(rollouts, np.array([1, 0]), rollout_ids=np.array([70, 80]))
    assert str(packed.value) == str(padded.value)
    assert "80" in str(packed.value)


@pytest.mark.parametrize("shape", [(1, 9), (8,), (2, 8)])
def test_unpacked_when_values_are_not_of_the_predicted_positions_refuses(shape) -> None:
    batch = packed_batch(three_rollouts(), np.arange(3))
    with pytest.raises(DataError, match=r"expected \(1, 8\): the tokens without the first"):
        unpacked(torch.zeros(shape), batch)


def test_unpacked_of_what_is_no_tensor_is_refused() -> None:
    with pytest.raises(DataError, match="values: expected a tensor, got ndarray"):
        unpacked(np.zeros((1, 8)), packed_batch(three_rollouts(), np.array([1, 0, 2])))


def test_packed_rows_when_worked_by_hand_fill_the_first_row_with_room() -> None:
    # 7 and 3 fill a row of 10; 6 and 4; 5 and 2; 11 fits nowhere
    rows = packed_rows(np.array([5, 7, 2, 6, 11, 4, 3]), 10)
    assert [row.tolist() for row in rows] == [[4], [1, 6], [3, 5], [0, 2]]
    assert packed_rows(np.empty(0, np.int64), 10) == []


@given(st.lists(st.integers(0, 20), max_size=30), st.integers(1, 30))
def test_packed_rows_hold_every_rollout_once_within_the_bound(lengths_n, bound) -> None:
    lengths_n = np.array(lengths_n, np.int64)
    rows = packed_rows(lengths_n, bound)
    assert sorted(np.concatenate(rows).tolist() if rows else []) == list(range(len(lengths_n)))
    assert all(lengths_n[row].sum() <= bound or len(lengths_n[row][lengths_n[row] > 0]) == 1 for row in rows)
    # No two rows would fit into one.
    loads = sorted(int(lengths_n[row].sum()) for row in rows)
    assert len(loads) < 2 or loads[0] + loads[1] > bound


def test_packed_rows_when_bound_or_lengths_are_impossible_refuse() -> None:
    with pytest.raises(ConfigError, match="tokens_per_microbatch must be at least 1, got 0"):
        packed_rows(np.array([1]), 0)
    with pytest.raises(DataError, match="expected integers of at least 0"):
        packed_rows(np.array([-1]), 4)
