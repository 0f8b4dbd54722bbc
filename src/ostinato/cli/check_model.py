"""The sizes of a recipe's model, without loading it: from its `config.json`, or from a table of known models."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ostinato.cli.backends import cache_directory
from ostinato.config import RunConfig
from ostinato.errors import ConfigError
from ostinato.theory.sizes import ModelSizes

WEIGHTS = ("*.safetensors", "*.bin")
"""Names of the files that hold a model's weights."""

KNOWN = {
    "Qwen/Qwen3-0.6B": ModelSizes(1024, 3072, 28, 16, 8, 128, 151936, tied=True, qk_norm=True),
    "Qwen/Qwen3-8B": ModelSizes(4096, 12288, 36, 32, 8, 128, 151936, tied=False, qk_norm=True),
    "Qwen/Qwen2.5-7B": ModelSizes(3584, 18944, 28, 28, 4, 128, 152064, tied=False, qkv_bias=True),
    "meta-llama/Llama-3.2-3B-Instruct": ModelSizes(3072, 8192, 28, 24, 8, 128, 128256, tied=True),
    "smollm2": ModelSizes(576, 1536, 30, 9, 3, 64, 49152, tied=True),
}
"""Models that recipes of this repository name."""

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
"""Architectures (`model_type`) that `ModelSizes` describes."""

CHARACTERS = 99
"""Vocabulary of the character tokenizer of built models."""


@dataclass(frozen=True, slots=True)
class FoundModel:
    """`sizes`: None where they are not known; `origin` says why, or where they are from. `place`: its directory, None
    where it has to be fetched first."""

    sizes: ModelSizes | None
    origin: str
    place: Path | None


def find_model(config: RunConfig) -> FoundModel:
    """The model of a recipe with `model.backend = hf`. Raises `ConfigError` for a directory that holds no model."""
    model = config.model
    if not model.path:
        head = model.hidden_size // model.heads
        sizes = (model.hidden_size, model.intermediate_size, model.layers, model.heads, model.kv_heads, head)
        built = ModelSizes(*sizes, CHARACTERS, tied=True, qk_norm=True)
        return FoundModel(built, "built from the sizes in the recipe", Path.cwd())
    if model.path == "smollm2":
        converted = cache_directory() / "smollm2-135m-instruct"
        return FoundModel(KNOWN["smollm2"], "a known model", converted if converted.is_dir() else None)
    place = Path(model.path) if Path(model.path).is_dir() else _in_hub_cache(model.path)
    if place is not None:
        return _described(place)
    if model.path.startswith(("/", ".")):
        raise ConfigError(f"model.path {model.path!r} is no directory")
    known = KNOWN.get(model.path)
    origin = "a known model" if known else "not known before it is there: nothing local has its config.json"
    return FoundModel(known, origin, None)


def _described(place: Path) -> FoundModel:
    file = place / "config.json"
    try:
        settings = json.loads(file.read_text(encoding="utf-8"))
        sizes = _sizes(settings)
    except FileNotFoundError:
        raise ConfigError(f"model.path: {place} has no config.json") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{file} does not describe a model: {type(error).__name__}: {error}") from None
    if sizes is None:
        return FoundModel(None, f"not known for architecture {settings.get('model_type')!r}", place)
    return FoundModel(sizes, str(file), place)


def _sizes(settings: Mapping[str, Any]) -> ModelSizes | None:
    family = settings.get("model_type")
    if family not in FAMILIES:
        return None
    heads = settings["num_attention_heads"]
    return ModelSizes(
        settings["hidden_size"],
        settings["intermediate_size"],
        settings["num_hidden_layers"],
        heads,
        settings.get("num_key_value_heads") or heads,
        settings.get("head_dim") or settings["hidden_size"] // heads,
        settings["vocab_size"],
        # Where a file does not say, Qwen and Llama do not tie.
        tied=bool(settings.get("tie_word_embeddings", False)),
        qk_norm=family == "qwen3",
        qkv_bias=family == "qwen2",
    )


def _in_hub_cache(name: str) -> Path | None:
    """The newest whole snapshot of a hub model that is on this machine, where its client keeps them."""
    home = os.environ.get("HF_HUB_CACHE") or Path(os.environ.get("HF_HOME") or "~/.cache/huggingface", "hub")
    snapshots = Path(home).expanduser() / f"models--{name.replace('/', '--')}" / "snapshots"
    found = sorted(snapshots.glob("*/config.json"), key=lambda file: file.stat().st_mtime)
    # A download that was broken off has its settings, and links to weights that are not there.
    whole = [file.parent for file in found if any(w.exists() for kind in WEIGHTS for w in file.parent.glob(kind))]
    return whole[-1] if whole else None
