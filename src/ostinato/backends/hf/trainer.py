"""Optimizer steps on a causal language model of transformers."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers

from ostinato.backends.hf.gradient_halves import squared_norm
from ostinato.backends.hf.models import quiet, restore, snapshot
from ostinato.backends.hf.objective_step import ObjectiveStep
from ostinato.backends.hf.saving import saving
from ostinato.backends.hf.tokenizer import pad_token_id
from ostinato.config import LossConfig, OptimizerConfig
from ostinato.errors import CheckpointError, DataError, RunError
from ostinato.governors import StepGovernor
from ostinato.losses.catalog import Objective
from ostinato.protocols import Draw, Trained, Weights


class HFTrainer:
    """A `protocols.Trainer` with a copy of `model` of its own, on the same device: AdamW at a constant rate.

    `model` is where the run starts: a loss with a reference keeps a second, frozen copy of it, which `load` does not
    touch. `bf16`: autocast in forward and backward; weights, gradients and optimizer stay float32. `max_new_tokens`:
    the longest completion allowed, for a loss that divides by it. `governor`: what rules on each step.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        loss: LossConfig,
        optimizer: OptimizerConfig,
        bf16: bool = False,
        max_new_tokens: int | None = None,
        governor: StepGovernor | None = None,
    ) -> None:
        objective = Objective.of(loss)
        # Evaluation mode throughout: dropout would tell the trainer's log-probs from the generator's.
        self._model = copy.deepcopy(model).eval().requires_grad_(True)
        reference = copy.deepcopy(model).eval().requires_grad_(False) if objective.needs_reference else None
        self._tokenizer = tokenizer
        self._settings = optimizer
        self._train_steps = 0
        self._governor = governor or StepGovernor()
        self._objective_step = ObjectiveStep(
            self._model,
            reference,
            objective,
            pad_token_id=pad_token_id(tokenizer),
            tokens_per_microbatch=optimizer.tokens_per_microbatch,
            max_new_tokens=max_new_tokens,
            bf16=bf16,
        )
        self._optimizer = torch.optim.AdamW(
            self._model.parameters(),
            lr=optimizer.learning_rate,
            betas=(optimizer.beta1, optimizer.beta2),
            eps=optimizer.eps,
            weight_decay=optimizer.weight_decay,
            fused=True,
        )

    def step(self, draw: Draw) -> Trained:
        """One optimizer step on the batch, in micro-batches of at most `tokens_per_microbatch` padded tokens.

        Metrics: `loss`, `grad_norm` (before clipping), `tokens` trained on; with a KL to the reference in the loss
        `kl_reference` (its estimate, nats a token); those of `GradientHalves.figures` in steps that the governor wants
        split, and of `StepGovernor.decide`. Figures: of the policy before the step. A step that the governor drops
        leaves weights and optimizer as they were.
        Raises `DataError` for rollouts that cannot be used (`ostinato.usable`), `RunError` when loss or gradient is not
        finite; the weights then stay as they were.
        """
        self._optimizer.zero_grad()
        passed = self._objective_step.backward(draw, split=self._governor.splits)
        energy = self._output_energy() if self._governor.wants_energy else 0.0
        grad_norm = self._clip_gradient(passed.metrics.get("loss", 0.0))
        decision = self._governor.decide(passed.figures, uses=draw.uses, energy=energy)
        if not decision.dropped:
            self._optimize(decision.learning_rate_scale)
        self._train_steps += 1
        metrics = {**_report(passed.metrics), "grad_norm": grad_norm, **passed.gradients, **decision.metrics}
        return Trained(metrics, passed.figures, decision.dropped)

    def weights(self) -> Weights:
        """A copy of every parameter by name."""
        return snapshot(self._model)

    def save(self, directory: Path) -> None:
        """Write `model/` (Hugging Face format, with the tokenizer) and `optimizer.pt` below `directory`.

        Raises `OSError` when there is no room.
        """
        state = {
            "optimizer": self._optimizer.state_dict(),
            "train_steps": self._train_steps,
            "governor": self._governor.state_dict(),
        }
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
            self._governor.load_state_dict(state["governor"])
            self._optimizer.load_state_dict(state["optimizer"])
            restore(self._model, snapshot(model))
            self._train_steps = steps
        except Exception as error:  # a damaged file can make its reader raise anything
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            raise CheckpointError(f"checkpoint {directory} cannot be read: {reason}") from error

    def _optimize(self, scale: float) -> None:
        """An optimizer step at `scale` times the learning rate, which is its own again afterwards."""
        rates = [group["lr"] for group in self._optimizer.param_groups]
        for group, rate in zip(self._optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * scale
        self._optimizer.step()
        for group, rate in zip(self._optimizer.param_groups, rates, strict=True):
            group["lr"] = rate

    def _output_energy(self) -> float:
        """Squared norm of the gradient of the output layer."""
        gradient = self._model.get_output_embeddings().weight.grad
        return 0.0 if gradient is None else squared_norm(gradient)

    def _clip_gradient(self, loss: float) -> float:
        """The gradient's norm, before it is scaled down to its bound. Raises `RunError` when it is not finite."""
        bound = self._settings.grad_clip or math.inf
        grad_norm = float(torch.nn.utils.clip_grad_norm_(self._model.parameters(), bound))
        if not (math.isfinite(loss) and math.isfinite(grad_norm)):
            self._optimizer.zero_grad()
            raise RunError(f"train step {self._train_steps}: loss {loss} and gradient norm {grad_norm} must be finite")
        return grad_norm


def _report(sums: Mapping[str, float]) -> dict[str, float]:
    tokens = sums.get("tokens", 0.0)
    report = {"loss": sums.get("loss", 0.0), "tokens": tokens}
    if "kl_ref_sum" in sums:
        report["kl_reference"] = sums["kl_ref_sum"] / max(tokens, 1.0)
    return report
