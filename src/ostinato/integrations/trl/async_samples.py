"""Samples of TRL's asynchronous GRPO (`RolloutSample`, TRL 1.16) as `Rollouts`, and back without a bit lost.

Dtypes are those of TRL's own worker: int64 tokens and masks, float32 log-probs, a float64 advantage.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from ostinato.errors import DataError
from ostinato.ragged import Ragged
from ostinato.rollouts import Rollouts

STD_EPS = 1e-8
"""What TRL adds to the deviation it divides rewards by."""

ABOUT, ENQUEUED = "trl_about", "trl_enqueued_at"
"""Extra columns: JSON of metrics and messages, UTF-8 bytes; seconds since the epoch, NaN where nobody said."""


def rollouts_of(
    samples: Sequence[Any], *, version_shift: int, group_shift: int, keep_messages: bool, group_size: int
) -> Rollouts:
    """n samples, packed. `version_shift` and `group_shift` are added to what the samples are stamped with.

    Everything up to the first trained token is the prompt. TRL hands over the deviation of a group (ddof=0) and the
    advantage, not the mean: it is the reward minus the advantage times the deviation. `keep_messages`: prompt and
    completion as messages, which TRL's traces show and nothing else reads.

    Raises `DataError` naming the sample when its arrays differ in length or no number is there where one must be.
    """
    for sample in samples:
        _check_lengths(sample)
    rewards, deviations = (np.array([sample.metrics.get(key, 0.0) for sample in samples], np.float64) for key in _KEYS)
    advantages = np.array([sample.advantage for sample in samples], np.float64)
    if not np.isfinite(advantages).all():
        raise DataError(f"a sample of group {samples[0].group_id} has the advantage {advantages.tolist()}")
    scored = np.isfinite(rewards) & np.isfinite(deviations)
    rewards, deviations = np.where(scored, rewards, 0.0), np.where(scored, deviations, 0.0)
    versions = np.array([sample.model_version for sample in samples], np.int64) + version_shift
    enqueued = [sample.enqueued_at for sample in samples]
    return Rollouts.from_rows(
        [sample.input_ids for sample in samples],
        [np.asarray(sample.completion_mask) != 0 for sample in samples],
        [sample.old_log_probs for sample in samples],
        group_id=np.array([sample.group_id for sample in samples], np.int64) + group_shift,
        reward=rewards,
        advantage=advantages,
        group_reward_mean=rewards - advantages * (deviations + STD_EPS),
        group_reward_std=deviations * np.sqrt(group_size / max(group_size - 1, 1)),
        policy_version_min=versions,
        birth_step=versions,
        extras={
            ABOUT: Ragged.from_rows([_about(sample, keep_messages) for sample in samples]),
            ENQUEUED: np.array([np.nan if at is None else at for at in enqueued], np.float64),
        },
    )


def sample_of(rollouts: Rollouts, index: int, *, version_shift: int, enqueued_after: float = 0.0) -> Any:
    """Rollout `index` as a `RolloutSample`: the inverse of `rollouts_of`, but for `group_shift`, which stays.

    `enqueued_after`: an earlier time in the queue is left out; another process may have put it there.
    """
    from trl.experimental.async_grpo.async_rollout_worker import RolloutSample

    span = slice(rollouts.offsets[index], rollouts.offsets[index + 1])
    about, enqueued = rollouts.extras.get(ABOUT), rollouts.extras.get(ENQUEUED)
    if not isinstance(about, Ragged) or not isinstance(enqueued, np.ndarray):
        raise DataError(f"rollouts of another source: {ABOUT} and {ENQUEUED} are not as TRL's samples leave them")
    told = json.loads(about.row(index).tobytes())
    return RolloutSample(
        prompt=told.get("prompt", []),
        completion=told.get("completion", []),
        input_ids=rollouts.tokens[span].astype(np.int64),
        completion_mask=rollouts.loss_mask[span].astype(np.int64),
        old_log_probs=rollouts.behavior_logprobs[span].copy(),
        advantage=float(rollouts.advantage[index]),
        model_version=int(rollouts.policy_version_min[index]) - version_shift,
        group_id=int(rollouts.group_id[index]),
        metrics=told["metrics"],
        enqueued_at=float(enqueued[index]) if enqueued[index] >= enqueued_after else None,
    )


_KEYS = ("reward", "reward_std")


def _check_lengths(sample: Any) -> None:
    lengths = {len(sample.input_ids), len(sample.completion_mask), len(sample.old_log_probs)}
    if len(lengths) > 1:
        raise DataError(
            f"a sample of group {sample.group_id} has {len(sample.input_ids)} tokens, a mask of "
            f"{len(sample.completion_mask)} and {len(sample.old_log_probs)} log-probs, expected as many of each"
        )


def _about(sample: Any, keep_messages: bool) -> np.ndarray[Any, np.dtype[np.uint8]]:
    told: dict[str, Any] = {"metrics": {key: float(value) for key, value in sample.metrics.items()}}
    if keep_messages:
        told |= {"prompt": sample.prompt, "completion": sample.completion}
    # Messages may hold what JSON cannot (an image): traces show its name.
    return np.frombuffer(json.dumps(told, default=str).encode(), np.uint8)
