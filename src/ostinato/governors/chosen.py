"""The governors that a recipe asks for."""

from __future__ import annotations

import math

from ostinato.config import RunConfig
from ostinato.config.bounds import bounds_of, controlled, oldest_kept
from ostinato.governors.control import BufferControl, ControlSettings
from ostinato.governors.gradient_gate import GradientGateSettings
from ostinato.governors.learning_rate import LearningRateSettings
from ostinato.governors.reuse import ReuseGovernor, ReuseSettings
from ostinato.governors.step import StepGovernor, StepSettings
from ostinato.theory import mean_uses


def step_governor(config: RunConfig) -> StepGovernor:
    """Learning rate, gate and gradient figures of a run; a queue that uses each batch once has nothing to gate."""
    rules, loop = config.governors, config.loop
    scaled = rules.learning_rate != "off"
    gated = rules.gate_z is not None and (config.buffer.kind == "replay" or loop.epochs > 1)
    return StepGovernor(
        StepSettings(
            LearningRateSettings(rules.learning_rate_base, rules.learning_rate) if scaled else None,  # type: ignore[arg-type]
            GradientGateSettings(rules.gate_z or 0.0, rules.gate_min_increments, rules.gate_decay) if gated else None,
            config.diagnostics.gradient_split_every,
            loop.epochs,
        )
    )


def reuse_governor(config: RunConfig) -> ReuseGovernor | None:
    """What leaves the buffer early; None where nothing is bounded, or each rollout is used once anyway."""
    rules = config.governors
    if config.buffer.kind == "queue" or (rules.ratio_bound is None and rules.ess_bound is None):
        return None
    return ReuseGovernor(
        ReuseSettings(
            ratio_bound=rules.ratio_bound,
            ratio_level=rules.ratio_level,  # type: ignore[arg-type]
            ess_bound=rules.ess_bound,
            ess_hysteresis=rules.ess_hysteresis,
            min_samples=rules.min_samples,
            window=rules.window,
        )
    )


def buffer_control(config: RunConfig) -> BufferControl | None:
    """What keeps capacity and samples per insert at their optimum; None where neither is `auto`."""
    rules, loop, buffer = config.control, config.loop, config.buffer
    turns_capacity, turns_uses = controlled(buffer)
    if not (turns_capacity or turns_uses):
        return None
    ratio, oldest = buffer.samples_per_insert, oldest_kept(loop, buffer)
    return BufferControl(
        ControlSettings(
            batch_size=loop.batch_size,
            bounds=bounds_of(loop, buffer, rules),
            mu=loop.mu,
            uses=mean_uses(loop.mu, loop.generators, loop.trainers),
            capacity=0 if isinstance(buffer.capacity, str) else buffer.capacity,
            samples_per_insert=None if isinstance(ratio, str) else ratio,
            turns_capacity=turns_capacity,
            turns_uses=turns_uses,
            every=rules.every,
            window=rules.window,
            rho=rules.rho,
            step=rules.step,
            hysteresis=rules.hysteresis,
            longest=math.inf if oldest is None else oldest + 1.0,
        )
    )
