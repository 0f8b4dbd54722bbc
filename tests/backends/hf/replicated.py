"""What each of two trainer processes does for `test_hf_replicas`: every scenario, one after the other, once."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from ostinato.backends.hf.blocks import whole
from ostinato.backends.hf.models import build_model, restore
from ostinato.backends.hf.replicas import Replicas
from ostinato.backends.hf.tokenizer import character_tokenizer
from ostinato.backends.hf.trainer import HFTrainer
from ostinato.config import LoraConfig, LossConfig, ModelConfig, OptimizerConfig
from ostinato.errors import OstinatoError
from ostinato.governors.gradient_gate import GradientGateSettings
from ostinato.governors.learning_rate import LearningRateSettings
from ostinato.governors.step import StepGovernor, StepSettings
from ostinato.protocols import Draw
from ostinato.shares import in_draw_order, select_draw, token_shares

MAX_NEW_TOKENS, TRAINERS = 7, 2
# Far above the gradients, so that Adam divides by it alone and rounding stays rounding.
OPTIMIZER = OptimizerConfig(learning_rate=0.05, eps=1.0, tokens_per_microbatch=60, grad_clip=0.5, weight_decay=0.01)
LOSSES = {
    "grpo": {},
    "grpo_paper": {"kl_coefficient": 0.1},
    "dr_grpo": {},
    "gspo": {},
    "asymre": {},
    "m2po": {"options": {"threshold": 1e-4}},
    "sat": {},
    "trajectory_balance": {"options": {"beta": 0.5}},
    "centered_clip": {},
}
GOVERNED = StepSettings(LearningRateSettings(), GradientGateSettings(1.0), gradient_split_every=1)


def trainer(model: Any, replicas: Replicas | None, loss: str = "grpo", **changes: Any) -> HFTrainer:
    """A trainer of a named case; `changes`: of its optimizer, or `bf16`, `lora`, `governor`."""
    rest = {name: changes.pop(name) for name in ("bf16", "lora") if name in changes}
    governor = StepGovernor(GOVERNED) if changes.pop("governor", False) else None
    return HFTrainer(
        model,
        character_tokenizer(),
        loss=LossConfig(name=loss, **LOSSES[loss]),
        optimizer=replace(OPTIMIZER, **changes),
        max_new_tokens=MAX_NEW_TOKENS,
        governor=governor,
        replicas=replicas,
        **rest,
    )


def gradient(subject: HFTrainer) -> torch.Tensor:
    """The whole gradient that the last step left."""
    found = [p.grad for p in subject._model.parameters() if p.grad is not None]
    return torch.cat([whole(one).flatten() for one in found])


def tiny_model() -> Any:
    """A Qwen3 of two blocks."""
    config = ModelConfig(hidden_size=16, layers=2, heads=2, kv_heads=1, intermediate_size=32)
    return build_model(config, character_tokenizer(), seed=1)


CASES: dict[str, dict[str, Any]] = {
    **{loss: {"loss": loss} for loss in LOSSES},
    "governed": {"governor": True},
    "packed": {"packing": True},
    "checkpointed": {"activation_checkpointing": True, "loss": "grpo_paper"},
    "lora": {"lora": LoraConfig(rank=2, alpha=8), "loss": "grpo_paper"},
    "bf16": {"bf16": True, "loss": "asymre"},
    "bf16 lora": {"bf16": True, "loss": "asymre", "lora": LoraConfig(rank=2, alpha=8)},
}

WITH_FSDP = ("grpo_paper", "m2po", "governed", "packed", "checkpointed", "lora", "bf16", "bf16 lora")
"""Losses differ in what trainers tell each other, not in how a model is spread."""


def steps(subject: HFTrainer, draws: list[Draw], shares: list[np.ndarray], rank: int | None) -> dict[str, Any]:
    """Steps on the draws, whole or this rank's share of each, and everything that came of them."""
    told = []
    for draw in draws:
        if rank is None:
            told.append(subject.step(draw))
        else:
            told.append(in_draw_order(subject.step(select_draw(draw, shares[rank])), shares))
    return {
        "metrics": [dict(one.metrics) for one in told],
        "figures": [{name: torch.from_numpy(column) for name, column in one.figures.items()} for one in told],
        "dropped": [one.dropped for one in told],
        "gradient": gradient(subject),
        "weights": dict(subject.weights()),
    }


def raised(work: Any) -> str:
    """What `work` raises, as text."""
    try:
        work()
    except (OstinatoError, OSError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def work(rank: int, port: int, state: dict[str, torch.Tensor], draws: list[Draw], directory: Path) -> None:
    """Everything of one rank; results in `directory`/RANK.pt."""
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=TRAINERS)
    replicas, model = Replicas.of_group(), tiny_model()
    restore(model, state)
    results: dict[str, Any] = {}
    shares = token_shares(draws[0].rollouts.lengths, TRAINERS)
    for name, settings in CASES.items():
        for fsdp in (False, True) if name in WITH_FSDP else (False,):
            subject = trainer(model, replicas, fsdp=fsdp, **settings)
            results[f"{name} {fsdp}"] = steps(subject, draws, shares, rank)
    results |= checkpoints(model, replicas, draws, shares, directory)
    results |= refusals(model, replicas, draws, shares, directory)
    torch.save(results, directory / f"{rank}.pt")
    dist.destroy_process_group()


def checkpoints(model, replicas, draws, shares, directory) -> dict[str, Any]:
    """Saved by each mode, loaded by each mode, and one more step."""
    results, rank = {}, replicas.rank
    for fsdp in (False, True):
        first = trainer(model, replicas, fsdp=fsdp)
        steps(first, draws, shares, rank)
        first.save(directory / f"saved-{fsdp}")
        results[f"saved {fsdp}"] = dict(first.weights())
        results[f"went on {fsdp}"] = steps(first, draws[:1], shares, rank)
    for fsdp in (False, True):
        for source in ("False", "True", "alone"):
            other = trainer(model, replicas, fsdp=fsdp)
            other.load(directory / f"saved-{source}")
            results[f"loaded {source} {fsdp}"] = dict(other.weights())
            results[f"resumed {source} {fsdp}"] = steps(other, draws[:1], shares, rank)
    return results


def refusals(model, replicas, draws, shares, directory) -> dict[str, Any]:
    """Errors of one rank are errors of all, and the group goes on."""
    rank, draw = replicas.rank, draws[0]
    subject = trainer(model, replicas)
    mine = select_draw(draw, shares[rank])
    bad = replace(mine, rollouts=mine.rollouts.replace(top_p=np.full(len(mine), 0.9, np.float32)))
    infinite = replace(mine, importance_weights=np.full(len(mine), np.nan if rank else 1.0))
    (directory / "file").touch()
    results = {
        "unusable": raised(lambda: subject.step(bad if rank else mine)),
        "infinite": raised(lambda: subject.step(infinite)),
        "no checkpoint": raised(lambda: subject.load(directory / "nothing")),
        "no directory": raised(lambda: subject.save(directory / "file" / "below")),
    }
    empty = np.empty(0, np.int64)
    everything = [np.arange(len(draw)), empty]
    for fsdp in (False, True):
        results[f"all on one {fsdp}"] = steps(trainer(model, replicas, fsdp=fsdp), draws, everything, rank)
        results[f"nothing {fsdp}"] = dict(trainer(model, replicas, fsdp=fsdp).step(select_draw(draw, empty)).metrics)
    # Ranks that start from different weights end up with those of the first.
    other = trainer(model, replicas)
    with torch.no_grad():
        moved = [parameter.add_(rank) for parameter in model.parameters()]
    results["moved"] = dict(trainer(model, replicas).weights()), moved and dict(other.weights())
    return results
