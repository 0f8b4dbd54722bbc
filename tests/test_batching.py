import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ostinato.batching import microbatch_rows, padded_batch
from ostinato.errors import ConfigError, DataError
from ostinato.rollouts import Rollouts


def three_rollouts(logprob: float = -0.25) -> Rollouts:
    return Rollouts.from_completions(
        prompts=[[1, 2], [3], [4, 5]],
        completions=[[6, 7, 8], [9], []],
        logprobs=[[-0.5, -1.0, -1.5], [logprob], []],
        group_id=[11, 12, 13],
    )


def test_padded_batch_holds_whole_sequences_and_shifted_completions():
    batch = padded_batch(three_rollouts(), np.array([1, 0, 2]), pad_token_id=0)
    assert batch.tokens.tolist() == [[3, 9, 0, 0, 0], [1, 2, 6, 7, 8], [4, 5, 0, 0, 0]]
    assert batch.attention_mask.sum(1).tolist() == [2, 5, 2]
    assert batch.attention_mask.int().diff().max() == 0
    assert batch.loss_mask.int().tolist() == [[1, 0, 0, 0], [0, 1, 1, 1], [0, 0, 0, 0]]
    assert batch.behavior_logprobs.tolist() == [[-0.25, 0, 0, 0], [0, -0.5, -1.0, -1.5], [0, 0, 0, 0]]
    assert batch.rows.tolist() == [1, 0, 2]
    assert (batch.tokens.dtype, batch.behavior_logprobs.dtype) == (torch.int64, torch.float32)


def test_padded_batch_round_trips_when_rows_repeat():
    rollouts, rows = three_rollouts(), np.array([0, 0, 1, 2])
    batch = padded_batch(rollouts, rows, pad_token_id=99)
    drawn = rollouts.select(rows)
    np.testing.assert_array_equal(batch.tokens[batch.attention_mask], drawn.tokens)
    np.testing.assert_array_equal(batch.tokens[:, 1:][batch.loss_mask], drawn.tokens[drawn.loss_mask])
    np.testing.assert_array_equal(batch.behavior_logprobs[batch.loss_mask], drawn.behavior_logprobs[drawn.loss_mask])
    assert (batch.tokens[~batch.attention_mask] == 99).all()


@pytest.mark.parametrize("logprob", [math.nan, math.inf, -math.inf, 0.25])
def test_padded_batch_refuses_a_behavior_log_prob_that_is_none(logprob):
    expected = rf"behavior log-prob {logprob} at token 1 of rollout 1 \(group 12\)"
    with pytest.raises(DataError, match=expected):
        padded_batch(three_rollouts(logprob), np.array([0, 1]), pad_token_id=0)


def test_padded_batch_accepts_a_log_prob_that_rounding_left_above_zero():
    batch = padded_batch(three_rollouts(6e-8), np.array([1]), pad_token_id=0)
    assert batch.behavior_logprobs.item() == pytest.approx(6e-8)


def test_padded_batch_ignores_log_probs_outside_the_mask():
    rollouts = three_rollouts()
    behavior = np.where(rollouts.loss_mask, rollouts.behavior_logprobs, np.float32(math.nan))
    batch = padded_batch(rollouts.replace(behavior_logprobs=behavior), np.arange(3), pad_token_id=0)
    assert batch.behavior_logprobs[batch.loss_mask].tolist() == [-0.5, -1.0, -1.5, -0.25]


def test_padded_batch_refuses_to_train_on_a_token_that_nothing_predicts():
    rollouts = Rollouts.from_completions([[]], [[1, 2]], [[-1.0, -1.0]], group_id=[5])
    with pytest.raises(DataError, match=r"token 0 of rollout 0 \(group 5\) is trained on, but nothing stands before"):
        padded_batch(rollouts, np.array([0]), pad_token_id=0)


@given(st.lists(st.integers(0, 40), max_size=30), st.integers(1, 120))
def test_microbatch_rows_hold_each_rollout_once_within_the_budget(lengths, budget):
    lengths = np.array(lengths, dtype=np.int64)
    parts = microbatch_rows(lengths, budget)
    assert sorted(np.concatenate([np.empty(0, np.int64), *parts]).tolist()) == list(range(len(lengths)))
    for part in parts:
        assert len(part) >= 1
        assert len(part) * lengths[part].max() <= budget or len(part) == 1
    # Neighbors in length stand together, and no two neighboring parts would have fitted into one.
    for part, following in pairwise(parts):
        assert lengths[part].min() >= lengths[following].max()
        assert (len(part) + 1) * max(lengths[part].max(), 1) > budget


def test_microbatch_rows_start_with_the_longest_and_keep_the_order_of_equals():
    parts = microbatch_rows(np.array([3, 9, 3, 4, 3]), 8)
    assert [part.tolist() for part in parts] == [[1], [3, 0], [2, 4]]


@pytest.mark.parametrize("rows", [[7], [-1], [True, False, True], [0.5]])
def test_padded_batch_refuses_rows_that_are_none(rows):
    with pytest.raises(DataError, match="row numbers"):
        padded_batch(three_rollouts(), np.array(rows), pad_token_id=0)


@pytest.mark.parametrize("pad", [None, -1, 1.5, math.nan, True, "x", 10**40])
def test_padded_batch_when_padding_is_no_token_is_refused(pad) -> None:
    with pytest.raises(ConfigError, match="pad_token_id must be"):
        padded_batch(three_rollouts(), np.array([0, 1]), pad_token_id=pad)


@pytest.mark.parametrize("lengths", [[0, 3, 2], np.array([0, 3, 2], np.uint8), np.array([0, 127, 64], np.int8)])
def test_microbatch_rows_of_any_integers_are_longest_first(lengths) -> None:
    assert [part.tolist() for part in microbatch_rows(lengths, 1)] == [[1], [2], [0]]


@pytest.mark.parametrize("lengths", [[1.0, 2.0], [math.nan], [-1, 2], [[1, 2]], [True, False], 3, ["1"]])
def test_microbatch_rows_when_lengths_are_none_are_refused(lengths) -> None:
    with pytest.raises(DataError, match="expected integers of at least 0"):
        microbatch_rows(np.array(lengths), 4)


@pytest.mark.parametrize("bound", [0, -1, 1.5, math.inf, None, True, "4"])
def test_microbatch_rows_when_the_bound_is_none_are_refused(bound) -> None:
    with pytest.raises(ConfigError, match="tokens_per_microbatch must be"):
        microbatch_rows(np.array([1, 2]), bound)
