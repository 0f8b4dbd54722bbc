"""A generation of TRL's trainer as `Rollouts`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ostinato.errors import DataError, RunError
from ostinato.integrations.trl.fields import packed_fields
from ostinato.rollouts import Rollouts

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class GroupScores:
    """Rewards of n rollouts of whole groups, float64 (n,): NaN where no reward function had a value.

    `mean`, `std` (ddof=1; 0 of a single reward) are those of the rollout's group, over the rewards that it has; `group`
    int64 (n,) numbers the groups of a generation from 0.
    """

    reward: Floats
    mean: Floats
    std: Floats
    group: NDArray[np.int64]

    @classmethod
    def of(cls, rewards_per_func: Tensor, weights: Tensor, group_size: int) -> GroupScores:
        """From what `_calculate_rewards` returns, (n, functions), NaN where a function had no value.

        The reward is the weighted sum over functions, as TRL takes it for its metrics. Groups are `group_size` rows in
        a row, by their place: two groups of one prompt stay two.
        """
        given = rewards_per_func.detach().double().cpu().numpy()
        known = ~np.isnan(given)
        reward = np.where(known, given, 0.0) @ weights.detach().double().cpu().numpy()
        reward[~known.any(1)] = np.nan
        grouped = reward.reshape(-1, group_size)
        has = ~np.isnan(grouped)
        count = has.sum(1, keepdims=True)
        mean = np.where(has, grouped, 0.0).sum(1, keepdims=True) / np.maximum(count, 1)
        squares = np.where(has, grouped - mean, 0.0) ** 2
        std = np.sqrt(squares.sum(1, keepdims=True) / np.maximum(count - 1, 1))
        shape, groups = grouped.shape, np.arange(len(grouped), dtype=np.int64)
        return cls(
            reward,
            np.broadcast_to(mean, shape).reshape(-1),
            np.broadcast_to(std, shape).reshape(-1),
            np.repeat(groups, group_size),
        )

    def part(self, start: int, stop: int) -> GroupScores:
        """Those of rows `start` to `stop` - 1: what one process generated."""
        own = slice(start, stop)
        return GroupScores(self.reward[own], self.mean[own], self.std[own], self.group[own])


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a generation comes from: train step of its weights, number of its first group, sampling parameters.

    `engine`: log-probs of the engine that sampled must come with it. `ends`: tokens that end a completion.
    `sequence_ratio`: see `packed_fields`.
    """

    train_step: int
    first_group: int
    sampling: Mapping[str, Any]
    engine: bool
    ends: tuple[int, ...]
    sequence_ratio: bool

    @classmethod
    def of(cls, trainer: Any, *, train_step: int, first_group: int) -> Origin:
        """What a `GRPOTrainer` generates now."""
        return cls(
            train_step=train_step,
            first_group=first_group,
            sampling={
                "temperature": trainer.temperature,
                "top_p": trainer.top_p or 1.0,
                "top_k": max(trainer.top_k or 0, 0),
            },
            engine=trainer.use_vllm,
            ends=(*trainer.eos_token_ids, trainer._tokenizer.pad_token_id),
            sequence_ratio=_sequence_ratio(trainer),
        )


def kinds_of_fields(trainer: Any) -> dict[str, bool]:
    """Settings of a `GRPOTrainer` on which it depends what it gives of a rollout, by the words of messages."""
    return {
        "a reference (beta above 0)": trainer.beta != 0.0,
        "vLLM (use_vllm)": bool(trainer.use_vllm),
        "a sequence-level vllm_importance_sampling_mode": trainer.use_vllm and _sequence_ratio(trainer),
    }


def _sequence_ratio(trainer: Any) -> bool:
    """Whether the importance ratio has one value a rollout instead of one a token."""
    return bool(trainer.vllm_importance_sampling_mode.startswith("sequence"))


def recorded(batch: Mapping[str, Any], scores: GroupScores, origin: Origin) -> Rollouts:
    """The rollouts of a batch that `_generate_and_score_completions` returned, in its order.

    The behavior log-probs are those of the engine that sampled where they came with it, else `old_per_token_logps`;
    where an engine could not score a token they are those of TRL's model: a ratio of 1 between the two, as in TRL.
    Log-probs that are not finite are kept, for admission to refuse. A completion that TRL masks out, because it was
    truncated, is kept without its tokens, which nothing would look at.

    Raises `RunError` when TRL gave no log-probs: the loss would silently take a ratio of 1. `DataError` for a mask with
    holes.
    """
    needed = ["old_per_token_logps", *(["sampling_per_token_logps"] if origin.engine else [])]
    for name in needed:
        if batch.get(name) is None:
            raise RunError(
                f"TRL gave no {name} with a generation, so that the policies of stale rollouts would be unknown"
            )
    prompts = _lengths(batch["prompt_mask"].flip(1), "prompt_mask")
    completions = _lengths(batch["completion_mask"], "completion_mask")
    behavior, engine = batch["old_per_token_logps"].detach().float(), batch.get("sampling_per_token_logps")
    if engine is not None:
        behavior = torch.where(torch.isnan(engine), behavior, engine.float())
    mask = batch["completion_mask"] if batch.get("tool_mask") is None else batch["completion_mask"] * batch["tool_mask"]
    behavior = torch.where(mask.bool(), behavior, 0.0)
    rows = range(len(prompts))
    ids, left = batch["completion_ids"].cpu().numpy(), batch["prompt_ids"].shape[1]
    prompt_ids, masks, logprobs = batch["prompt_ids"].cpu().numpy(), mask.bool().cpu().numpy(), behavior.cpu().numpy()
    rollouts = Rollouts.from_completions(
        [prompt_ids[i, left - prompts[i] :] for i in rows],
        [ids[i, : completions[i]] for i in rows],
        [logprobs[i, : completions[i]] for i in rows],
        group_id=scores.group + origin.first_group,
        reward=scores.reward,
        group_reward_mean=scores.mean,
        group_reward_std=scores.std,
        advantage=_advantages(batch["advantages"], mask),
        policy_version_min=origin.train_step,
        birth_step=origin.train_step,
        truncated=[not completions[i] or ids[i, completions[i] - 1] not in origin.ends for i in rows],
        **origin.sampling,
        extras={
            **packed_fields(batch, prompts, completions, sequence_ratio=origin.sequence_ratio),
            "processed_logprobs": np.full(len(prompts), engine is not None),
        },
    )
    trained = [np.concatenate([np.zeros(prompts[i], np.bool_), masks[i, : completions[i]]]) for i in rows]
    return rollouts.replace(loss_mask=np.concatenate(trained))


def _lengths(mask: Tensor, name: str) -> list[int]:
    """Tokens of each row of a mask that begins with its tokens. Raises `DataError`."""
    lengths: Tensor = mask.sum(1)
    if not torch.equal(mask.bool(), torch.arange(mask.shape[1], device=mask.device) < lengths[:, None]):
        raise DataError(f"TRL's {name} has holes, expected tokens in one piece and padding on one side")
    counts: list[int] = lengths.tolist()
    return counts


def _advantages(advantages: Tensor, mask: Tensor) -> Floats:
    """One advantage a rollout: of one a token, their mean under the mask."""
    if advantages.ndim == 2:
        advantages = torch.where(mask.bool(), advantages, 0.0).sum(1) / mask.sum(1).clamp(min=1)
    return advantages.detach().double().cpu().numpy()
