"""Low-rank adapters by peft: put into a model, taken out of it as whole weights or alone, and the model without them.

Each targeted layer W x becomes W x + (alpha / rank) B A x, with W frozen, A random and B zero at the start.
Source: LoRA, arXiv 2106.09685.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.pytorch_utils import Conv1D

from ostinato.backends.hf.blocks import whole
from ostinato.backends.hf.models import check_fits
from ostinato.config import LoraConfig
from ostinato.errors import ConfigError, DataError, MissingExtraError

NAME = "default"
PREFIX = "base_model.model."
"""What peft's files put before the name of a parameter."""
WEIGHTS_FILE = "adapter_model.safetensors"
SAMPLES = 64


def add_adapters(model: Any, lora: LoraConfig, *, seed: int) -> None:
    """Put adapters into `model`, in place; only they are trained from now on. A depends on `seed` alone.

    They are float32, whatever the layers are. Raises `ConfigError` when no layer or another kind of layer is meant,
    `MissingExtraError` without peft.
    """
    try:
        import peft
    except ModuleNotFoundError as error:
        raise MissingExtraError("peft", "lora") from error
    settings = peft.LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=0.0,
        target_modules=lora.targets,
        # The layers of GPT-2 hold their weights the other way round.
        fan_in_fan_out=any(isinstance(module, Conv1D) for module in model.modules()),
        task_type="CAUSAL_LM",
    )
    model.requires_grad_(False)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            peft.inject_adapter_in_model(settings, model, NAME)
        except ValueError as error:
            reason = str(error).partition("\n")[0]
            raise ConfigError(f"lora.target_modules {lora.target_modules!r}: {reason}") from None
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    model.adapter_settings = settings


class WithoutAdapters:
    """The model with its adapters off: the reference of a run that trains them, without a second copy."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def __call__(self, **inputs: Any) -> Any:
        layers = [module for _, module in _adapted(self._model)]
        for layer in layers:
            layer.enable_adapters(False)
        try:
            return self._model(**inputs)
        finally:
            for layer in layers:
                layer.enable_adapters(True)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


def merged_weights(model: Any) -> Iterator[tuple[str, Tensor]]:
    """(name, W + (alpha / rank) B A) as of the model without adapters, in float32 where adapters stand."""
    adapted = dict(_adapted(model))
    for name, parameter in model.named_parameters():
        owner, _, last = name.rpartition(".base_layer.")
        if _is_adapter(name):
            continue
        weight = whole(parameter.detach())
        if owner and last == "weight":
            layer = adapted[owner]
            change = whole(layer.lora_B[NAME].weight.detach()) @ whole(layer.lora_A[NAME].weight.detach())
            change = change.T if layer.fan_in_fan_out else change
            weight = weight.float() + layer.scaling[NAME] * change.view_as(weight)
        yield name.replace(".base_layer.", "."), weight


def adapter_weights(model: Any) -> Iterator[tuple[str, Tensor]]:
    """(name, weight) of the adapters alone, named as in peft's files."""
    for name, parameter in model.named_parameters():
        if _is_adapter(name):
            yield adapter_name(name), parameter


def adapter_name(name: str) -> str:
    """The name in peft's files of an adapter's parameter."""
    return PREFIX + name.replace(f".{NAME}.", ".")


def put_adapters(model: Any, weights: Mapping[str, Any]) -> None:
    """Copy adapters, named as in peft's files, into a model that has them. Raises `DataError` where they differ."""
    parameters = dict(adapter_weights(model))
    check_fits(parameters, weights)
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(torch.as_tensor(weights[name]))


def holds_adapters(weights: Mapping[str, Any]) -> bool:
    """Whether a snapshot is of adapters alone."""
    return bool(weights) and all(name.startswith(PREFIX) for name in weights)


def save_adapters(model: Any, weights: Mapping[str, Tensor], base: str, directory: Path) -> None:
    """Write peft's two files, and which base they belong to: `base` of `fingerprint`."""
    directory.mkdir(parents=True, exist_ok=True)
    model.adapter_settings.base_model_name_or_path = model.config._name_or_path or None
    model.adapter_settings.save_pretrained(directory)
    tensors = {name: value.contiguous() for name, value in weights.items()}
    save_file(tensors, directory / WEIGHTS_FILE, metadata={"format": "pt"})
    (directory / "base.txt").write_text(base + "\n", encoding="ascii")


def read_adapters(directory: Path, base: str) -> dict[str, Tensor]:
    """Inverse of `save_adapters`. Raises `DataError` when they belong to another base, any error when damaged."""
    if not (directory / WEIGHTS_FILE).exists():
        raise DataError(f"{directory.name} holds no adapter: it was saved with lora.rank 0")
    found = (directory / "base.txt").read_text(encoding="ascii").strip()
    if found != base:
        raise DataError(f"the adapter belongs to another base model: {found}, this one is {base}")
    return load_file(directory / WEIGHTS_FILE)


def fingerprint(model: Any) -> str:
    """16 hexadecimal digits of names, shapes and some values of the weights: another model has others."""
    digest = hashlib.sha256()
    for name, parameter in model.named_parameters():
        stride = max(parameter.numel() // SAMPLES, 1)
        values = parameter.detach().flatten()[::stride].float().cpu()
        digest.update(f"{name} {tuple(parameter.shape)}".encode() + values.numpy().tobytes())
    return digest.hexdigest()[:16]


def _is_adapter(name: str) -> bool:
    return ".lora_A." in name or ".lora_B." in name


def _adapted(model: Any) -> Iterator[tuple[str, Any]]:
    from peft.tuners.lora import LoraLayer

    return ((name, module) for name, module in model.named_modules() if isinstance(module, LoraLayer))
