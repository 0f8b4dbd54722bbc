import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ostinato.batching import microbatch_rows, padded_batch, selected_logprobs
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


def test_selected_logprobs_are_those_of_a_hand_worked_softmax():
    logits = torch.tensor([[[0.0, math.log(2.0), math.log(5.0)], [7.0, 7.0, 7.0]]], dtype=torch.float64)
    logprobs, entropy = selected_logprobs(logits, torch.tensor([[1, 0]]), 1.0)
    assert logprobs.dtype == entropy.dtype == torch.float32
    assert logprobs[0].tolist() == pytest.approx([math.log(2 / 8), math.log(1 / 3)])
    first = -sum(p * math.log(p) for p in (1 / 8, 2 / 8, 5 / 8))
    assert entropy[0].tolist() == pytest.approx([first, math.log(3)])


def test_selected_logprobs_divide_logits_by_one_temperature_or_one_a_rollout():
    logits = torch.tensor([[[0.0, math.log(4.0)]], [[0.0, math.log(4.0)]]])
    tokens = torch.tensor([[1], [1]])
    both, _ = selected_logprobs(logits, tokens, 2.0)
    assert both[:, 0].tolist() == pytest.approx([math.log(2 / 3)] * 2)
    each, _ = selected_logprobs(logits, tokens, torch.tensor([2.0, 0.5]))
    assert each[:, 0].tolist() == pytest.approx([math.log(2 / 3), math.log(16 / 17)])


def test_selected_logprobs_give_the_softmax_gradient_and_none_through_the_entropy():
    logits = torch.tensor([[[0.3, -1.2, 2.0, 0.0]]], requires_grad=True)
    logprobs, entropy = selected_logprobs(logits, torch.tensor([[2]]), 0.5)
    logprobs.sum().backward()
    expected = (torch.tensor([0.0, 0.0, 1.0, 0.0]) - (logits.detach() / 0.5).softmax(-1)) / 0.5
    torch.testing.assert_close(logits.grad, expected)
    assert not entropy.requires_grad


def test_selected_logprobs_of_bf16_logits_are_normalized_in_float32():
    logits = torch.linspace(-3, 3, 1000).to(torch.bfloat16).reshape(1, 1, 1000)
    logprobs, _ = selected_logprobs(logits, torch.tensor([[999]]), 0.7)
    exact = torch.log_softmax(logits.double() / 0.7, -1)[0, 0, 999]
    assert logprobs.item() == pytest.approx(exact.item(), abs=1e-5)


@pytest.mark.parametrize(
    ("tokens", "temperature", "error", "message"),
    [
        ((2, 3), 0, ConfigError, "temperature must be above 0, got 0"),
        ((2, 3), math.nan, ConfigError, "temperature must be above 0, got nan"),
        ((2, 3), torch.ones(2, 1), DataError, r"temperature has shape \(2, 1\), expected \(2,\)"),
        ((2, 3), torch.ones(1), DataError, r"temperature has shape \(1,\), expected \(2,\)"),
        ((2, 2), 1.0, DataError, r"tokens have shape \(2, 2\), expected \(2, 3\) of the logits"),
    ],
)
def test_selected_logprobs_refuse_what_has_no_log_probs(tokens, temperature, error, message):
    with pytest.raises(error, match=message):
        selected_logprobs(torch.zeros(2, 3, 5), torch.zeros(tokens, dtype=torch.int64), temperature)


@pytest.mark.parametrize("rows", [[7], [-1], [True, False, True], [0.5]])
def test_padded_batch_refuses_rows_that_are_none(rows):
    with pytest.raises(DataError, match="row numbers"):
        padded_batch(three_rollouts(), np.array(rows), pad_token_id=0)
