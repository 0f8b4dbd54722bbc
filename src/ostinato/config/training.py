"""Settings of the trainer's model that contradict others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.config.lora import ALL_LINEAR, LoraConfig
from ostinato.config.traffic import Checks

if TYPE_CHECKING:
    from ostinato.config.run import RunConfig


def training_checks(config: RunConfig) -> Checks:
    """Pairs of a fault and its message: `lora`, and what `optimizer` asks of the model."""
    lora, optimizer, loop = config.lora, config.optimizer, config.loop
    toy = config.model.backend == "toy"
    wanted = {
        "lora.rank": lora.rank > 0,
        "optimizer.packing": optimizer.packing,
        "optimizer.activation_checkpointing": optimizer.activation_checkpointing,
        "optimizer.fsdp": optimizer.fsdp,
    }
    of_models = [name for name, on in wanted.items() if on]
    return [
        (toy and bool(of_models), f"{', '.join(of_models)}: model.backend = toy is a table and has no layers"),
        (lora.rank == 0 and lora != LoraConfig(), f"lora needs lora.rank above 0, got {lora}: nothing has an adapter"),
        (lora.rank > 0 and not lora.targets, f"lora.target_modules {lora.target_modules!r} names no layer"),
        (
            isinstance(lora.targets, list) and ALL_LINEAR in lora.targets,
            f"lora.target_modules {lora.target_modules!r}: {ALL_LINEAR} stands alone, it has every layer already",
        ),
        (
            lora.rank > 0 and config.governors.gate_z is not None,
            "governors.gate_z looks at the gradient of the output layer, which has none with lora.rank above 0",
        ),
        (
            optimizer.fsdp and (config.runtime != "ray" or loop.trainers == 1),
            "optimizer.fsdp spreads a model over several trainer processes: set runtime = ray and loop.trainers above "
            f"1, got {config.runtime} and {loop.trainers}",
        ),
    ]
