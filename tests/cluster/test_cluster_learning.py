"""Where the parts of a run live does not change what it learns."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ostinato.backends.hf.backend import HFBackend
from ostinato.cli.runtime import Runtime, replica_of
from ostinato.cluster.actors import Makers
from ostinato.config import RunConfig
from ostinato.loop import Session
from ostinato.protocols import Task
from ostinato.recipe import config_from_dict
from ostinato.rollouts import Rollouts
from ostinato.telemetry import read_jsonl

CURVES = ("loss", "grad_norm", "reward", "fresh_reward", "completion_tokens", "kl_k3", "entropy")
ACCURACIES = ("sampled_accuracy", "greedy_accuracy")


def tiny(runtime: str, trainers: int) -> RunConfig:
    """A barrier at every step: a queue of single use, no staleness, one generator."""
    return config_from_dict(
        {
            "runtime": runtime,
            "checkpoint_every": 0,
            "model": {"hidden_size": 16, "layers": 2, "heads": 2, "kv_heads": 1, "intermediate_size": 32},
            "warm_start": {"target_accuracy": 0.0},
            "task": {"name": "add", "test_prompts": 16},
            "sampling": {"max_new_tokens": 6},
            "optimizer": {"learning_rate": 1e-3, "tokens_per_microbatch": 256},
            "loop": {
                "clock": "wall",
                "generators": 1,
                "trainers": trainers,
                "batch_size": 16,
                "group_size": 8,
                "max_staleness": 0,
                "train_steps": 6,
            },
            "buffer": {"kind": "queue", "capacity": 24},
            "evaluation": {"every_units": 3.0},
            "ray": {"object_store_bytes": 1 << 27},
        }
    )


class EvenTokens:
    """Share of even tokens in a completion: rewards that an untrained policy earns, too."""

    def score(self, rollouts: Rollouts, tasks: Sequence[Task]) -> NDArray[np.float64]:
        return np.array([np.mean(rollouts.completion(i) % 2 == 0) for i in range(len(rollouts))])


def backend_of(config: RunConfig, cache: Path) -> HFBackend:
    backend = HFBackend(config, cache)
    backend.scorer = EvenTokens()
    return backend


def curves(directory: Path) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for record in read_jsonl(directory / "metrics.jsonl"):
        for name in CURVES if record["event"] == "step" else ACCURACIES:
            found.setdefault(name, []).append(record[name])
    return found


@pytest.fixture(scope="module")
def local(tmp_path_factory: Any) -> dict[str, list[float]]:
    config, directory = tiny("local", 1), tmp_path_factory.mktemp("local")
    Session(config, backend_of(config, directory / "cache"), directory / "run").run()
    return curves(directory / "run")


@pytest.mark.parametrize("trainers", [1, 2])
def test_learning_curve_when_on_ray_is_the_local_one(trainers, local, on_ray, tmp_path) -> None:
    config = tiny("ray", trainers)
    makers = Makers(partial(HFBackend, config, tmp_path), replica_of)
    backend = on_ray(config, backend_of(config, tmp_path), makers)
    runtime = Runtime.on_ray(config, tmp_path / "run", backend)
    assert runtime.run(lambda: False, resume=False)
    got = curves(tmp_path / "run")
    assert got.keys() == local.keys()
    assert np.std(local["reward"]) > 0.01  # there is something to compare
    assert min(local["grad_norm"]) > 1e-3
    for name, values in local.items():
        np.testing.assert_allclose(got[name], values, atol=1e-5, rtol=1e-5, err_msg=name)
