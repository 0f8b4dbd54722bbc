"""One small Ray for all tests of this room, and toy runs on it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import ray
import test_cluster_faults
import watched_actors
from ray import cloudpickle

from ostinato.backends.toy import ToyBackend
from ostinato.cluster import RayBackend, connect, disconnect
from ostinato.cluster.actors import Makers
from ostinato.config import RunConfig
from ostinato.loop.faults import FAULTS_FILE, FaultLog
from ostinato.protocols import Backend
from ostinato.recipe import config_from_dict, merge

TOY: dict[str, Any] = {
    "runtime": "ray",
    "checkpoint_every": 5,
    "model": {"backend": "toy"},
    "task": {"name": "toy"},
    "toy": {"prompts": 8, "length": 2, "vocabulary": 4, "learning_rate": 20.0},
    "evaluation": {"every_units": 0.0},
    "loop": {"clock": "wall", "generators": 2, "trainers": 1, "batch_size": 8, "group_size": 4, "train_steps": 40},
    "buffer": {"capacity": 64},
    "ray": {"object_store_bytes": 1 << 27, "start_timeout_s": 120.0},
}


def recipe(**sections: Any) -> RunConfig:
    return config_from_dict(merge(json.loads(json.dumps(TOY)), sections))


@pytest.fixture(scope="session")
def cluster() -> Iterator[None]:
    for module in (watched_actors, test_cluster_faults):
        cloudpickle.register_pickle_by_value(module)
    connect(recipe(loop={"generators": 6, "trainers": 2}))
    yield
    disconnect()


@pytest.fixture
def toy() -> Callable[..., RunConfig]:
    """Settings of a toy run on Ray; sections given by name are laid over the defaults."""
    return recipe


@pytest.fixture
def on_ray(cluster: None, tmp_path: Path) -> Iterator[Callable[..., RayBackend]]:
    """A backend on the cluster around `local`, its processes' parts made by `make`; its actors end with the test."""
    made: list[RayBackend] = []

    def build(config: RunConfig, local: Backend | None = None, makers: Makers | None = None) -> RayBackend:
        faults = FaultLog(tmp_path / "run" / FAULTS_FILE)
        backend = RayBackend(config, local or ToyBackend(config), makers or Makers(partial(ToyBackend, config)), faults)
        made.append(backend)
        return backend

    yield build
    for backend in made:
        backend.close()
    assert ray.is_initialized()
