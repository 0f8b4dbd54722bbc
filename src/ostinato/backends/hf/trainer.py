"""Optimizer steps on a causal language model of transformers, by one process or by several together."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ostinato.backends.hf.gradients import Gradients
from ostinato.backends.hf.microbatches import Layout, Packed, Padded, check_keeps_apart
from ostinato.backends.hf.models import quiet
from ostinato.backends.hf.objective_step import ObjectiveStep
from ostinato.backends.hf.optimizer_state import check_state, put_state, whole_state
from ostinato.backends.hf.replicas import Replicas
from ostinato.backends.hf.saving import reading, saving
from ostinato.backends.hf.tokenizer import pad_token_id
from ostinato.backends.hf.trained_model import TrainedModel
from ostinato.config import LoraConfig, LossConfig, OptimizerConfig
from ostinato.errors import RunError
from ostinato.governors import StepGovernor
from ostinato.losses.catalog import Objective
from ostinato.protocols import Draw, Trained, Weights


class HFTrainer:
    """A `protocols.Trainer` with a copy of `model` of its own, on the same device: AdamW at a constant rate.

    `model` is where the run starts: a loss with a reference keeps a second, frozen copy of it, which `load` does not
    touch. `bf16`: autocast in forward and backward; weights, gradients and optimizer stay float32. `max_new_tokens`:
    the longest completion allowed, for a loss that divides by it. `governor`: what rules on each step. `lora`: train
    adapters, whose random half depends on `seed`, not the weights; the reference then is the model without them.
    `replicas`: the other processes of the same step; see the module `replicas` for how to call them.
    Raises `ConfigError` for settings that the model or the loss cannot have.
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
        lora: LoraConfig | None = None,
        seed: int = 0,
        replicas: Replicas | None = None,
    ) -> None:
        objective = Objective.of(loss)
        self._replicas = replicas or Replicas()
        self._policy = TrainedModel(
            model,
            optimizer=optimizer,
            lora=lora,
            bf16=bf16,
            replicas=self._replicas,
            needs_reference=objective.needs_reference,
            seed=seed,
        )
        self._model = self._policy.module
        self._tokenizer = tokenizer
        self._settings = optimizer
        self._train_steps = 0
        self._governor = governor or StepGovernor()
        self._objective_step = ObjectiveStep(
            self._model,
            self._policy.reference,
            objective,
            self._layout(),
            max_new_tokens=max_new_tokens,
            replicas=self._replicas,
            in_step=self._policy.sharded,
        )
        self._optimizer = torch.optim.AdamW(
            self._policy.trained.values(),
            lr=optimizer.learning_rate,
            betas=(optimizer.beta1, optimizer.beta2),
            eps=optimizer.eps,
            weight_decay=optimizer.weight_decay,
            fused=True,
        )

    def step(self, draw: Draw) -> Trained:
        """One optimizer step on the batch, in micro-batches of at most `tokens_per_microbatch` tokens with padding.

        With replicas, `draw` is this one's share of the batch, and everything returned is of the whole batch.

        Metrics: `loss`, `grad_norm` (before clipping), `tokens` trained on; with a KL to the reference in the loss
        `kl_reference` (its estimate, nats a token); those of `GradientHalves.figures` in steps that the governor wants
        split, and of `StepGovernor.decide`. Figures: of the policy before the step. A step that the governor drops
        leaves weights and optimizer as they were.
        Raises `DataError` for rollouts that cannot be used (`ostinato.usable`), `RunError` when loss or gradient is not
        finite; the weights then stay as they were.
        """
        self._optimizer.zero_grad()
        gradients = self._gradients(self._policy.trained.values())
        passed = self._objective_step.backward(draw, gradients, split=self._governor.splits)
        energy = self._output_energy() if self._governor.wants_energy else 0.0
        grad_norm = gradients.clip(self._settings.grad_clip)
        self._check_finite(passed.metrics.get("loss", 0.0), grad_norm)
        decision = self._governor.decide(passed.figures, uses=passed.uses, energy=energy)
        if not decision.dropped:
            self._optimize(decision.learning_rate_scale)
        self._train_steps += 1
        metrics = {**_report(passed.metrics), "grad_norm": grad_norm, **passed.gradients, **decision.metrics}
        return Trained(metrics, passed.figures, decision.dropped)

    def logprobs(self, draw: Draw) -> NDArray[np.float32]:
        """See `protocols.Recomputer`. Raises `DataError` for rollouts that cannot be used (`ostinato.usable`)."""
        return self._objective_step.logprobs(draw)

    def weights(self) -> Weights:
        """A copy, in main memory, of every parameter by name; adapters merged, or alone where `lora.sync` says so.

        With replicas: on the first of them, an empty mapping on the others.
        """
        return self._policy.weights()

    def lent(self) -> Weights:
        """See `protocols.Lender`."""
        return self._policy.weights(copied=False)

    def save(self, directory: Path) -> None:
        """Write `model/` (Hugging Face format, with the tokenizer) and `optimizer.pt` below `directory`.

        What is written does not depend on how many replicas there are, nor on `optimizer.fsdp`; with adapters `model/`
        holds them in peft's format. Raises `OSError` when there is no room.
        """
        # What all replicas must take part in comes before what the first one may fail at.
        model, optimizer = self._policy.gathered(), whole_state(self._optimizer, self._replicas)
        self._replicas.agree(lambda: self._write(directory, model, optimizer))

    def _write(self, directory: Path, model: Any, optimizer: Any) -> None:
        if self._replicas.rank != 0:
            return
        state = {
            "optimizer": optimizer,
            "train_steps": self._train_steps,
            "governor": self._governor.state_dict(),
        }
        with saving(directory), quiet():
            self._policy.write(directory / "model", model)
            self._tokenizer.save_pretrained(directory / "model")
            # Given a path, torch would hide why it could not write.
            with open(directory / "optimizer.pt", "wb") as file:
                torch.save(state, file)

    def load(self, directory: Path) -> None:
        """Inverse of `save`, bit for bit. Raises `CheckpointError`, and leaves the weights as they were, when a file is
        missing, damaged or of another model."""
        values, state = self._replicas.agree(lambda: self._read(directory))
        steps, governor = self._replicas.from_first((state.get("train_steps"), state.get("governor")))
        with reading(directory):
            self._governor.load_state_dict(governor)
        put_state(self._optimizer, state.get("optimizer"), self._replicas)
        self._policy.put(values)
        self._train_steps = steps

    def _read(self, directory: Path) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """(parameters, state) of a checkpoint that fits, on the first replica."""
        if self._replicas.rank != 0:
            return {}, {}
        with reading(directory), quiet():
            values = self._policy.read(directory / "model")
            # Whole, the state of a model that is spread need not fit on one device.
            place = "cpu" if self._policy.sharded else self._model.device
            state = torch.load(directory / "optimizer.pt", weights_only=True, map_location=place)
            check_state(self._optimizer, state["optimizer"])
            return values, {**state, "train_steps": int(state["train_steps"]), "governor": state["governor"]}

    def _layout(self) -> Layout:
        tokens, passes = self._settings.tokens_per_microbatch, self._policy.passes
        if self._settings.packing:
            check_keeps_apart(self._model, passes)
            return Packed(tokens, passes)
        return Padded(tokens, pad_token_id(self._tokenizer), passes)

    def _gradients(self, parameters: Iterable[torch.nn.Parameter]) -> Gradients:
        return Gradients(list(parameters), self._replicas, sharded=self._policy.sharded)

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
        return self._gradients([self._model.get_output_embeddings().weight]).square()

    def _check_finite(self, loss: float, grad_norm: float) -> None:
        if not (math.isfinite(loss) and math.isfinite(grad_norm)):
            self._optimizer.zero_grad()
            raise RunError(f"train step {self._train_steps}: loss {loss} and gradient norm {grad_norm} must be finite")


def _report(sums: Mapping[str, float]) -> dict[str, float]:
    tokens = sums.get("tokens", 0.0)
    report = {"loss": sums.get("loss", 0.0), "tokens": tokens}
    if "kl_ref_sum" in sums:
        report["kl_reference"] = sums["kl_ref_sum"] / max(tokens, 1.0)
    return report
