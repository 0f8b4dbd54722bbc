"""Toy runs in a temporary directory."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ostinato.backends.toy import ToyBackend
from ostinato.config import RunConfig
from ostinato.loop import Session
from ostinato.recipe import config_from_dict, merge

TOY: dict[str, Any] = {
    "model": {"backend": "toy"},
    "task": {"name": "toy"},
    "toy": {"prompts": 8, "length": 2, "vocabulary": 4, "learning_rate": 20.0},
    "evaluation": {"every_units": 0.0},
    "checkpoint_every": 0,
}


@pytest.fixture
def toy() -> Callable[..., RunConfig]:
    """Settings of a toy run; sections given by name are laid over the defaults."""

    def build(**sections: Any) -> RunConfig:
        return config_from_dict(merge(json.loads(json.dumps(TOY)), sections))

    return build


@pytest.fixture
def run_toy(tmp_path: Path) -> Callable[..., Path]:
    """Run to the end in a fresh directory (or `directory`); returns it."""
    count = iter(range(1000))

    def run(config: RunConfig, *, directory: Path | None = None, resume: bool = False, stop_at: int = 0) -> Path:
        target = directory or tmp_path / f"run{next(count)}"
        session = Session(config, ToyBackend(config), target, resume=resume)
        session.run(lambda: stop_at > 0 and session._loop.ledger.train_step >= stop_at)
        return target

    return run
