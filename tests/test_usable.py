"""Data that a loss could not take: each kind has a rule, a counter, and a message that names the rollout."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ostinato.batching import padded_batch
from ostinato.buffer import ReplayBuffer
from ostinato.buffer.admission import Usable
from ostinato.errors import DataError
from ostinato.losses import grpo
from ostinato.ragged import Ragged
from ostinato.rollouts import Rollouts, concatenate
from ostinato.usable import IDLE, REFUSED, refuse_unusable, usable_rollouts

NAN, INF = math.nan, math.inf


def rollout(logprobs=(-0.5, -1.0), prompt=(1, 2), mask=None, **columns) -> Rollouts:
    given = {"group_id": 12, "advantage": 0.7} | columns
    made = Rollouts.from_completions([prompt], [[6] * len(logprobs)], [logprobs], **given)
    return made if mask is None else made.replace(loss_mask=np.array(mask))


BAD = {
    "missing": (
        rollout((-0.5, NAN)),
        "nonfinite_logprobs",
        r"behavior log-prob nan at token 3 of rollout 0 \(group 12\)",
    ),
    "impossible": (rollout((-INF, -1.0)), "nonfinite_logprobs", "behavior log-prob -inf at token 2 of rollout 0"),
    "infinite": (rollout((INF,)), "nonfinite_logprobs", "behavior log-prob inf at token 2"),
    "positive": (rollout((-0.5, 0.25)), "positive_logprobs", "log-prob 0.25 at token 3 .* finite number, at most 0"),
    "no prompt": (rollout(prompt=()), "unpredicted_token", "token 0 of rollout 0 .* is trained on, but nothing stands"),
    "reward": (rollout(reward=NAN), "nonfinite_score", "reward of rollout 0 .* is nan, expected a finite number"),
    "advantage": (rollout(advantage=-INF), "nonfinite_score", "advantage of rollout 0 .* is -inf, expected a finite"),
    "group mean": (rollout(group_reward_mean=NAN), "nonfinite_score", "group_reward_mean of rollout 0 .* is nan"),
    "group std": (rollout(group_reward_std=INF), "nonfinite_score", "group_reward_std of rollout 0 .* is inf"),
    "greedy": (rollout(temperature=0.0), "greedy_sampling", "sampled with temperature 0, expected one above 0"),
    "no temperature": (rollout(temperature=NAN), "greedy_sampling", "sampled with temperature nan"),
    "top-p": (rollout(top_p=0.9), "truncated_sampling", "rollout 0 .* top_p 0.9, top_k 0, min_p 0, .*truncated dist"),
    "top-k": (rollout(top_k=50), "truncated_sampling", "top_p 1, top_k 50, min_p 0, .*'processed_logprobs'"),
    "min-p": (rollout(extras={"min_p": np.array([0.05])}), "truncated_sampling", "top_k 0, min_p 0.05, "),
}
GOOD = {
    "plain": (rollout(), None),
    "top-k off as -1": (rollout(top_k=-1), None),
    "rounded above zero": (rollout((6e-8,)), None),
    "not drawn by the policy": (rollout((NAN, -1.0), mask=[False, False, False, True]), None),
    "processed": (rollout(top_p=0.9, top_k=50, extras={"processed_logprobs": np.array([True])}), None),
    "empty": (rollout(()), "empty_completion"),
    "empty and greedy": (rollout((), temperature=0.0), "empty_completion"),
    "all masked": (rollout((NAN, 3.0), top_p=0.5, mask=[False] * 4), "masked_completion"),
    "neither prompt nor completion": (rollout((), prompt=()), "empty_completion"),
}


@pytest.mark.parametrize("name", BAD)
def test_rollout_when_it_cannot_be_used_is_counted_and_refused_by_name(name) -> None:
    bad, reason, message = BAD[name]
    mask, counts = usable_rollouts(bad)
    assert mask.tolist() == [False]
    assert counts == dict.fromkeys([*REFUSED, *IDLE], 0) | {reason: 1}
    for refuse in (refuse_unusable, lambda r: padded_batch(r, np.array([0]), pad_token_id=0)):
        with pytest.raises(DataError, match=message):
            refuse(bad)


@pytest.mark.parametrize("name", GOOD)
def test_rollout_when_it_is_harmless_is_let_through_and_counted_where_idle(name) -> None:
    good, reason = GOOD[name]
    mask, counts = usable_rollouts(good)
    assert mask.tolist() == [True]
    assert {name: count for name, count in counts.items() if count} == ({} if reason is None else {reason: 1})
    assert refuse_unusable(good) == {name: counts[name] for name in IDLE}
    batch = padded_batch(good, np.array([0]), pad_token_id=0)
    assert batch.behavior_logprobs[batch.loss_mask].isfinite().all()


def many() -> Rollouts:
    return Rollouts.from_completions(
        [[1, 2]] * 5,
        [[6], [6, 7], [], [6], [6]],
        [[-1.0], [-1.0, NAN], [], [NAN], [-1.0]],
        group_id=[1, 1, 2, 2, 2],
        top_p=[1.0, 1.0, 1.0, 0.5, 0.5],
    )


def test_rules_when_several_apply_count_a_rollout_once_for_the_first() -> None:
    mask, counts = usable_rollouts(many())
    assert mask.tolist() == [True, False, True, False, False]
    assert {name: count for name, count in counts.items() if count} == {
        "nonfinite_logprobs": 2,
        "truncated_sampling": 1,
        "empty_completion": 1,
    }
    mask, counts = usable_rollouts(many(), np.array([4, 0, 0]))
    assert mask.tolist() == [False, True, True] and sum(counts.values()) == 1
    assert usable_rollouts(many().select([]))[0].shape == (0,)


def test_refusal_when_ids_are_given_names_the_first_of_the_rows_by_its_id() -> None:
    ids = np.array([900, 901, 902, 903, 904])
    with pytest.raises(DataError, match=r"rollout 4 \(id 904, group 2\) was sampled with top_p 0.5"):
        refuse_unusable(many(), rows=np.array([0, 4, 1]), rollout_ids=ids)
    with pytest.raises(DataError, match=r"nan at token 3 of rollout 1 \(id 901, group 1\)"):
        padded_batch(many(), np.array([2, 1]), pad_token_id=0, rollout_ids=ids)
    assert refuse_unusable(many(), rows=np.array([0, 2]), rollout_ids=ids) == {
        "empty_completion": 1,
        "masked_completion": 0,
    }


@pytest.mark.parametrize("name", ["min_p", "processed_logprobs"])
@pytest.mark.parametrize("column", [Ragged(np.zeros(2), np.array([0, 2])), np.zeros((1, 2)), np.array(["yes"])])
def test_extra_column_when_it_is_no_number_a_rollout_is_refused(name, column) -> None:
    with pytest.raises(DataError, match=rf"extra column '{name}' is .*, expected one number a rollout \(1,\)"):
        usable_rollouts(rollout(extras={name: column}))


def test_admission_when_it_asks_for_usable_rollouts_keeps_the_others_out_of_the_buffer() -> None:
    clean = many().replace(behavior_logprobs=np.nan_to_num(many().behavior_logprobs, nan=-2.0))
    buffer = ReplayBuffer(9, admission=[Usable()])
    assert (buffer.add(clean, train_step=0) >= 0).tolist() == [True, True, True, False, False]
    assert buffer.metrics()["refused.unusable"] == 2


@given(st.lists(st.sampled_from([*BAD, *GOOD]), min_size=1, max_size=6), st.integers(0, 99))
def test_loss_when_unusable_rollouts_are_left_out_is_finite(names, seed) -> None:
    every = concatenate([(BAD | GOOD)[name][0].replace(extras={}) for name in names])
    usable, counts = usable_rollouts(every)
    assert sum(counts[reason] for reason in REFUSED) == np.count_nonzero(~usable)
    kept = every.select(np.flatnonzero(usable))
    batch = padded_batch(kept, np.arange(len(kept)), pad_token_id=0)
    rng = torch.Generator().manual_seed(seed)
    logprobs = (-3 * torch.rand(batch.loss_mask.shape, generator=rng)).requires_grad_()
    advantages = torch.from_numpy(kept.advantage).float()
    loss, metrics = grpo(logprobs, batch.behavior_logprobs, advantages, batch.loss_mask)
    loss.backward()
    assert loss.isfinite() and all(value.isfinite().all() for value in metrics.values())
    assert logprobs.grad is not None and logprobs.grad.isfinite().all()
    assert not logprobs.grad[~batch.loss_mask].any()


@pytest.mark.parametrize("ids", [[7], [7, 8, 9], [[7, 8]], []])
def test_refusal_when_there_is_not_one_id_a_rollout_says_so(ids) -> None:
    pair = concatenate([rollout(), rollout((-0.5, NAN))])
    for rows in (None, np.array([0])):  # whether or not anything else is wrong
        with pytest.raises(DataError, match=r"rollout_ids have shape .*, expected \(2,\)"):
            refuse_unusable(pair, rows=rows, rollout_ids=np.array(ids, np.int64))
