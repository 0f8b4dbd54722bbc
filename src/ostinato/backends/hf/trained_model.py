"""The model that a trainer trains: a copy, with adapters or without, whole or spread over several trainers."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from ostinato.backends.hf import adapters
from ostinato.backends.hf.blocks import compute_again, part, part_like, shard, whole
from ostinato.backends.hf.models import check_fits, keep_linear_weights_in_bf16, let_hidden_states_be_seen
from ostinato.backends.hf.output_layer import output_layer
from ostinato.backends.hf.policy import Passes
from ostinato.backends.hf.replicas import Replicas
from ostinato.config import LoraConfig, OptimizerConfig
from ostinato.errors import ConfigError, DataError

NEVER = 1 << 62


class TrainedModel:
    """A copy of `start`, prepared as the settings say; equal on all replicas, of which the first decides.

    `module`: the model. `reference`: where the run starts, frozen; None unless `needs_reference`. `passes`: how to go
    through both. Evaluation mode throughout: dropout would tell the trainer's log-probs from the generator's.
    Raises `ConfigError` for settings that the model cannot have.
    """

    def __init__(
        self,
        start: Any,
        *,
        optimizer: OptimizerConfig,
        lora: LoraConfig | None,
        bf16: bool,
        replicas: Replicas,
        needs_reference: bool,
        seed: int,
    ) -> None:
        if optimizer.fsdp and replicas.alone:
            raise ConfigError("optimizer.fsdp spreads a model over several trainer processes, this is the only one")
        self.module = copy.deepcopy(start).eval().requires_grad_(True)
        self.sharded, self._lora, self._replicas = optimizer.fsdp, lora, replicas
        replicas.broadcast([*(parameter.data for parameter in self.module.parameters()), *self.module.buffers()])
        let_hidden_states_be_seen(self.module)
        self._base = adapters.fingerprint(self.module) if lora else ""
        self.reference = copy.deepcopy(self.module).requires_grad_(False) if needs_reference and not lora else None
        if lora:
            if bf16 and not self.sharded:  # FSDP wants one precision in a block
                keep_linear_weights_in_bf16(self.module)
            adapters.add_adapters(self.module, lora, seed=seed)
            self.reference = adapters.WithoutAdapters(self.module) if needs_reference else None
        self.passes = self._passes(optimizer, bf16)
        if optimizer.activation_checkpointing:
            compute_again(self.module)
        if self.sharded:
            for model in (self.module, self.reference):
                if isinstance(model, torch.nn.Module):
                    shard(model, replicas, bf16=bf16)

    def _passes(self, optimizer: OptimizerConfig, bf16: bool) -> Passes:
        # A cache that is filled again in the backward pass would hold everything twice.
        share = not (self.sharded or optimizer.activation_checkpointing)
        if not self.sharded:
            return Passes(bf16, share_prefixes=share)
        return Passes(bf16, 0 if _understood(self.module, bf16) else NEVER, share_prefixes=False, check_layer=False)

    @property
    def trained(self) -> dict[str, torch.nn.Parameter]:
        """Parameters by name that receive a gradient; tied ones once. Not between a forward and its backward pass."""
        self._part()
        return {name: value for name, value in self.module.named_parameters() if value.requires_grad}

    def weights(self, *, copied: bool = True) -> dict[str, Tensor]:
        """What generators load, in main memory: on the first replica, nothing on the others.

        A copy; not `copied`: only where it did not lie there. Every parameter by the name it has without adapters,
        these merged; or the adapters alone, named as in peft's files. Where weights are sharded all replicas must ask.
        """
        self._part()
        if self._lora is None:
            return self._snapshot(self.module.named_parameters(), copied)
        if self._lora.sync == "adapter":
            return self._snapshot(adapters.adapter_weights(self.module), copied)
        return self._snapshot(adapters.merged_weights(self.module), copied)

    def gathered(self) -> dict[str, Tensor] | None:
        """What `write` wants to know; where weights are sharded all replicas must ask."""
        self._part()
        if self._lora is not None:
            return self._snapshot(adapters.adapter_weights(self.module))
        return self._snapshot(self._state()) if self.sharded else None

    def write(self, directory: Path, gathered: dict[str, Tensor] | None) -> None:
        """The model in the format of transformers, adapters in that of peft."""
        if self._lora is not None:
            adapters.save_adapters(self.module, gathered or {}, self._base, directory)
        else:
            self.module.save_pretrained(directory, state_dict=gathered)

    def read(self, directory: Path) -> dict[str, Tensor]:
        """The trained parameters of a checkpoint by name, not yet put into the model.

        Raises `DataError` when they are of another model, and anything when the files are damaged.
        """
        if self._lora is not None:
            values = adapters.read_adapters(directory, self._base)
            names = {adapters.adapter_name(name): name for name in self.trained}
            values = {names.get(name, name): value for name, value in values.items()}
        else:
            loaded: Any = transformers.AutoModelForCausalLM.from_pretrained(
                directory, dtype=torch.float32, output_loading_info=True, local_files_only=True
            )
            model, info = loaded
            if any(info.values()):
                raise DataError(f"weights do not fit the model: {next(filter(None, info.values()))}")
            values = {name: parameter.detach() for name, parameter in model.named_parameters()}
        check_fits(self.trained, values)
        return values

    @torch.no_grad()
    def put(self, values: Mapping[str, Tensor]) -> None:
        """Copy what `read` gave into the model; the values of the first replica count, the others may have none."""
        for name, parameter in self.trained.items():
            value = torch.empty(parameter.shape, dtype=parameter.dtype, device=parameter.device)
            if self._replicas.rank == 0:
                value.copy_(values[name])
            self._replicas.broadcast([value])
            part(parameter).copy_(part(part_like(value, parameter)))

    def _part(self) -> None:
        """A forward pass without a backward one leaves what is outside the blocks whole: only the parts count."""
        if self.sharded:
            self.module.reshard()

    def _state(self) -> Iterator[tuple[str, Tensor]]:
        named = {name for name, _ in self.module.named_parameters(remove_duplicate=False)}
        yield from self.module.named_parameters()
        yield from ((name, value) for name, value in self.module.state_dict().items() if name not in named)

    def _snapshot(self, named: Iterator[tuple[str, Tensor]], copied: bool = True) -> dict[str, Tensor]:
        first = self._replicas.rank == 0
        if not (first or self.sharded):
            return {}
        # One at a time: no replica holds more than one whole tensor beside its parts.
        gathered = ((name, whole(value.detach())) for name, value in named)
        return {name: value.to("cpu", copy=copied) for name, value in gathered if first}


@torch.no_grad()
def _understood(model: Any, bf16: bool) -> bool:
    """Whether log-probs can be had from hidden states without the model's own logits; see `output_layer`."""
    tokens = torch.tensor([[0, 1]], device=model.device)
    with torch.autocast(tokens.device.type, torch.bfloat16, enabled=bf16):
        layer = output_layer(model)
        output = model(input_ids=tokens, use_cache=False, output_hidden_states=True)
        if layer is None or output.hidden_states is None:
            return False
        return layer.explains(output.logits, output.hidden_states[-1], tokens)
