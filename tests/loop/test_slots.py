"""Several requests at once to each engine: all of them are under way together, and counts stay those of the engines."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np

from ostinato.backends.toy import ToyBackend
from ostinato.config import config_to_dict
from ostinato.loop import Session
from ostinato.recipe import config_from_dict
from ostinato.telemetry import read_json_object, read_jsonl


class Together:
    """An engine whose every request waits until `slots` of them are there."""

    def __init__(self, engine, slots: int) -> None:
        self._engine, self.loads = engine, []
        self._meeting, self.met = threading.Barrier(slots), 0

    def load(self, weights, version) -> None:
        """Remember the version."""
        self.loads.append(version)
        self._engine.load(weights, version)

    def stream(self, requests):
        """Wait for the others for a while: at the end of a run they no longer come."""
        try:
            self._meeting.wait(timeout=2)
            self.met += 1
        except threading.BrokenBarrierError:
            pass
        yield from self._engine.stream(requests)


class Meeting(ToyBackend):
    """Engines that wait for three requests."""

    def __init__(self, config) -> None:
        super().__init__(config)
        self.engines: list[Together] = []

    def concurrent_generator(self):
        """One more of them."""
        self.engines.append(Together(super().concurrent_generator(), 3))
        return self.engines[-1]


def test_requests_when_an_engine_takes_three_are_under_way_together(toy, tmp_path) -> None:
    config = toy(
        loop={"clock": "wall", "generators": 2, "trainers": 1, "batch_size": 8, "group_size": 4, "train_steps": 12},
        buffer={"capacity": 64, "samples_per_insert": 1.0},
    )
    # Only runtime = ray and vLLM take this setting in a recipe: what the toy's engines are is not known to the checks.
    object.__setattr__(config, "loop", replace(config.loop, requests_per_generator=3))
    backend = Meeting(config)
    assert Session(config, backend, tmp_path / "run").run()
    assert len(backend.engines) == 2
    for engine in backend.engines:
        assert engine.met >= 3
        assert engine.loads == sorted(set(engine.loads))
    steps = [record for record in read_jsonl(tmp_path / "run" / "metrics.jsonl") if record["event"] == "step"]
    assert [step["train_step"] for step in steps] == [*range(1, 13)]
    efforts = read_json_object(tmp_path / "run" / "throughput.json")["generators"]
    assert len(efforts) == 2 and all(effort["busy_share"] <= 1 for effort in efforts)
    assert np.isclose(sum(effort["rollouts"] for effort in efforts), steps[-1]["generated"], atol=6 * 4)


def test_setting_when_written_down_is_read_again() -> None:
    config = config_from_dict(
        {"generator": "vllm", "loop": {"clock": "wall", "train_steps": 1, "requests_per_generator": 3}}
    )
    assert config_from_dict(config_to_dict(config)) == config
