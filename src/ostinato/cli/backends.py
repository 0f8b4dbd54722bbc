"""From a recipe's model.backend to the room that implements it. The one table of names."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ostinato.config import RunConfig
from ostinato.errors import MissingExtraError
from ostinato.protocols import Backend


def open_backend(config: RunConfig) -> Backend:
    """Build the backend of a recipe; a warm start happens here and is cached."""
    openers: dict[str, Callable[[RunConfig], Backend]] = {"toy": _toy, "hf": _hf}
    return openers[config.model.backend](config)


def open_backend_aloud(config: RunConfig) -> Backend:
    """`open_backend`, telling a person what takes time."""
    if config.model.backend == "hf" and not config.model.path and config.warm_start.target_accuracy > 0:
        wanted = config.warm_start.target_accuracy
        print(f"warm start to {wanted:.0%} sampled accuracy, kept in {cache_directory()} once trained ...", flush=True)
    backend = open_backend(config)
    print(f"policy: {backend.describe()}", flush=True)
    return backend


def cache_directory() -> Path:
    """Where warm-started and converted models are kept: $OSTINATO_CACHE or ~/.cache/ostinato."""
    return Path(os.environ.get("OSTINATO_CACHE") or Path.home() / ".cache" / "ostinato")


def environment(backend: Backend) -> dict[str, Any]:
    """What a result depends on besides its settings, for run.json."""
    versions: dict[str, str | None] = {}
    for package in ("ostinato", "numpy", "torch", "transformers", "vllm"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = None
    return {
        "policy": backend.describe(),
        "versions": versions,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
    }


def _toy(config: RunConfig) -> Backend:
    from ostinato.backends.toy import ToyBackend

    return ToyBackend(config)


def _hf(config: RunConfig) -> Backend:
    try:
        from ostinato.backends.hf.backend import HFBackend
    except ModuleNotFoundError as error:
        raise MissingExtraError(error.name or "torch", "hf") from error
    return HFBackend(config, cache_directory())
