"""Optimizer steps on a causal language model of transformers."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

from ostinato.advantages import shifted_advantages
from ostinato.backends.hf.models import quiet, restore, snapshot
from ostinato.backends.hf.policy import completion_logprobs
from ostinato.backends.hf.saving import saving
from ostinato.backends.hf.tokenizer import pad_token_id
from ostinato.batching import Batch, microbatch_rows, padded_batch
from ostinato.config import LossConfig, OptimizerConfig
from ostinato.errors import CheckpointError, DataError, RunError
from ostinato.losses import LossOutput, asymre, grpo
from ostinato.protocols import Draw, Weights
from ostinato.rollouts import Rollouts

SUMS = ("loss", "tokens", "ratio_sum", "ratio_max", "clipped", "kl_sum", "entropy_sum")


class HFTrainer:
    """A `protocols.Trainer` with a copy of `model` of its own, on the same device: AdamW at a constant rate.

    `bf16`: autocast in forward and backward; weights, gradients and optimizer stay float32.
    """

    def __init__(
        self, model: Any, tokenizer: Any, *, loss: LossConfig, optimizer: OptimizerConfig, bf16: bool = False
    ) -> None:
        # Evaluation mode throughout: dropout would tell the trainer's log-probs from the generator's.
        self._model = copy.deepcopy(model).eval().requires_grad_(True)
        self._tokenizer = tokenizer
        self._pad_token_id = pad_token_id(tokenizer)
        self._loss = loss
        self._settings = optimizer
        self._bf16 = bf16
        self._train_steps = 0
        self._optimizer = torch.optim.AdamW(
            self._model.parameters(),
            lr=optimizer.learning_rate,
            betas=(optimizer.beta1, optimizer.beta2),
            eps=optimizer.eps,
            weight_decay=optimizer.weight_decay,
            fused=True,
        )

    def step(self, draw: Draw) -> dict[str, float]:
        """One optimizer step on the batch, in micro-batches of at most `tokens_per_microbatch` padded tokens.

        Metrics: `loss`, `grad_norm` (before clipping), `tokens` trained on; over these tokens `ratio_mean`,
        `ratio_max`, `clip_fraction`, `kl_behavior` (estimate of KL(behavior || policy), nats) and `entropy` (nats).
        Raises `DataError` for rollouts of truncated or greedy sampling, `RunError` when loss or gradient is not finite;
        the weights then stay as they were.
        """
        _check_trainable(draw.rollouts)
        self._optimizer.zero_grad()
        sums: dict[str, float] = dict.fromkeys(SUMS, 0.0)
        for part in self._losses(draw):
            part.loss.backward()
            for name in SUMS:
                value = float(part.metrics[name])
                sums[name] = max(sums[name], value) if name == "ratio_max" else sums[name] + value
        bound = self._settings.grad_clip or math.inf
        grad_norm = float(torch.nn.utils.clip_grad_norm_(self._model.parameters(), bound))
        if not (math.isfinite(sums["loss"]) and math.isfinite(grad_norm)):
            self._optimizer.zero_grad()
            raise RunError(
                f"train step {self._train_steps}: loss {sums['loss']} and gradient norm {grad_norm} must be finite"
            )
        self._optimizer.step()
        self._train_steps += 1
        return _report(sums) | {"grad_norm": grad_norm}

    def weights(self) -> Weights:
        """A copy of every parameter by name."""
        return snapshot(self._model)

    def save(self, directory: Path) -> None:
        """Write `model/` (Hugging Face format, with the tokenizer) and `optimizer.pt` below `directory`.

        Raises `OSError` when there is no room.
        """
        state = {"optimizer": self._optimizer.state_dict(), "train_steps": self._train_steps}
        with saving(directory), quiet():
            self._model.save_pretrained(directory / "model")
            self._tokenizer.save_pretrained(directory / "model")
            # Given a path, torch would hide why it could not write.
            with open(directory / "optimizer.pt", "wb") as file:
                torch.save(state, file)

    def load(self, directory: Path) -> None:
        """Inverse of `save`, bit for bit. Raises `CheckpointError`, and leaves the weights as they were, when a file is
        missing, damaged or of another model."""
        try:
            with quiet():
                loaded: Any = transformers.AutoModelForCausalLM.from_pretrained(
                    directory / "model", dtype=torch.float32, output_loading_info=True, local_files_only=True
                )
            model, info = loaded
            state = torch.load(directory / "optimizer.pt", weights_only=True, map_location=self._model.device)
            if any(info.values()):
                raise DataError(f"weights do not fit the model: {next(filter(None, info.values()))}")
            steps = int(state["train_steps"])
            self._optimizer.load_state_dict(state["optimizer"])
            restore(self._model, snapshot(model))
            self._train_steps = steps
        except Exception as error:  # a damaged file can make its reader raise anything
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            raise CheckpointError(f"checkpoint {directory} cannot be read: {reason}") from error

    def _losses(self, draw: Draw) -> Iterator[LossOutput]:
        rollouts = draw.rollouts
        advantages_n = self._advantages(rollouts)
        denominator = float(rollouts.loss_mask.sum() if self._loss.name == "grpo" else len(rollouts))
        for rows in microbatch_rows(rollouts.lengths, self._settings.tokens_per_microbatch):
            batch = padded_batch(rollouts, rows, pad_token_id=self._pad_token_id)
            if batch.loss_mask.any():
                weights_B, advantages_B = draw.importance_weights[rows], advantages_n[rows]
                yield self._microbatch(batch, rollouts.temperature[rows], weights_B, advantages_B, denominator)

    def _microbatch(
        self,
        batch: Batch,
        temperature_B: NDArray[np.float32],
        weights_B: NDArray[np.float64],
        advantages_B: NDArray[np.float64],
        denominator: float,
    ) -> LossOutput:
        device = self._model.device
        logprobs_BL, entropy_BL, first = completion_logprobs(self._model, batch, temperature_B, bf16=self._bf16)
        behavior_BL = batch.behavior_logprobs[:, first:].to(device)
        mask_BL = batch.loss_mask[:, first:].to(device)
        advantages = torch.from_numpy(advantages_B).float().to(device)
        weights = torch.from_numpy(weights_B).float().to(device)
        if self._loss.name == "grpo":
            loss, metrics = grpo(
                logprobs_BL,
                behavior_BL,
                advantages,
                mask_BL,
                clip_low=self._loss.clip_low,
                clip_high=self._loss.clip_high,
                weights_B=weights,
                denominator=denominator,
            )
        else:
            loss, metrics = asymre(
                logprobs_BL,
                advantages,
                mask_BL,
                behavior_logprobs_BL=behavior_BL,
                weights_B=weights,
                denominator=denominator,
            )
        return LossOutput(loss, metrics | {"loss": loss.detach(), "entropy_sum": entropy_BL[mask_BL].sum()})

    def _advantages(self, rollouts: Rollouts) -> NDArray[np.float64]:
        if self._loss.name == "grpo":
            return rollouts.advantage
        return shifted_advantages(rollouts.reward, rollouts.group_reward_mean, shift=self._loss.shift)


def _check_trainable(rollouts: Rollouts) -> None:
    cut = (rollouts.top_p < 1) | (rollouts.top_k > 0) | (rollouts.temperature <= 0)
    if np.any(cut):
        row = int(np.flatnonzero(cut)[0])
        raise DataError(
            f"rollout {row} was sampled with temperature {rollouts.temperature[row]:g}, top_p {rollouts.top_p[row]:g}, "
            f"top_k {rollouts.top_k[row]}: its log-probs belong to a truncated distribution, which the trainer's "
            "do not; train on temperature > 0, top_p = 1, top_k = 0"
        )


def _report(sums: dict[str, float]) -> dict[str, float]:
    tokens = max(sums["tokens"], 1.0)
    return {
        "loss": sums["loss"],
        "tokens": sums["tokens"],
        "ratio_mean": sums["ratio_sum"] / tokens,
        "ratio_max": sums["ratio_max"],
        "clip_fraction": sums["clipped"] / tokens,
        "kl_behavior": sums["kl_sum"] / tokens,
        "entropy": sums["entropy_sum"] / tokens,
    }
