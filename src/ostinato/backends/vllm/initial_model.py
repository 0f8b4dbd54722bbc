"""Where vLLM finds the policy that a run starts from: it loads from a directory alone."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from ostinato.backends.hf.models import quiet, snapshot
from ostinato.backends.hf.saving import saving
from ostinato.backends.hf.smollm2 import smollm2_directory
from ostinato.backends.vllm.generator import VLLMGenerator
from ostinato.config import RunConfig
from ostinato.telemetry import directory_in_place

WRITTEN_BY_SAVING = ("architectures", "dtype", "transformers_version", "_name_or_path")
"""What transformers puts into a model's settings when it saves the model."""


def recipe_generator(config: RunConfig, model: Any, tokenizer: Any, cache: Path) -> VLLMGenerator:
    """The engine of a recipe at its initial policy `model`; its process starts at first use."""
    directory = _directory(config.model.path, model, tokenizer, cache)
    return VLLMGenerator(directory, config.vllm, bf16=config.model.bf16, threads=config.threads)


def _directory(path: str, model: Any, tokenizer: Any, cache: Path) -> str:
    if path:
        return str(smollm2_directory(cache)) if path == "smollm2" else path
    return str(saved_model(model, tokenizer, cache))


def saved_model(model: Any, tokenizer: Any, cache: Path) -> Path:
    """Directory below `cache` with this model and tokenizer in Hugging Face format, written unless it is there: its
    name is a hash of the weights. Raises `OSError` when there is no room."""
    settings = {name: value for name, value in model.config.to_dict().items() if name not in WRITTEN_BY_SAVING}
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode())
    for name, weights in snapshot(model).items():
        digest.update(name.encode() + weights.numpy().tobytes())
    target = cache / f"initial-{digest.hexdigest()[:16]}"
    if not (target / "config.json").exists():
        with directory_in_place(target) as directory, saving(target), quiet():
            model.save_pretrained(directory)
            tokenizer.save_pretrained(directory)
    return target
