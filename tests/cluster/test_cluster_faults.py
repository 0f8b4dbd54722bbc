"""Processes that die or hang: the run completes, counts add up, nothing is trained under a wrong version."""

from __future__ import annotations

import os
import signal
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from watched_actors import SlowBackend, StickyBackend, WatchedBackend

from ostinato.cli.runtime import Runtime
from ostinato.cluster.actors import Makers
from ostinato.errors import RunError
from ostinato.interrupt import graceful_interrupt
from ostinato.loop.faults import FAULTS_FILE, read_faults
from ostinato.telemetry import read_json_object, read_jsonl


def run_on(config: Any, backend: Any, directory: Path, observer: Any = lambda record: None) -> list[dict[str, Any]]:
    runtime = Runtime.on_ray(config, directory, backend)
    assert runtime.run(lambda: False, resume=False, observer=observer)
    return read_jsonl(directory / "metrics.jsonl")


class Killer:
    """Kills a process of `kind` when the run first reaches each of `steps`."""

    def __init__(self, backend: Any, kind: str, steps: list[int]) -> None:
        self._backend, self._kind, self._steps = backend, kind, list(steps)
        self._rng = np.random.default_rng(5)
        self.killed = 0

    def __call__(self, record: Any) -> None:
        if self._steps and record["train_step"] >= self._steps[0]:
            del self._steps[0]
            os.kill(int(self._rng.choice(self._backend.process_ids()[self._kind])), signal.SIGKILL)
            self.killed += 1


def test_generators_when_killed_are_started_again_and_give_the_same_groups(toy, on_ray, tmp_path) -> None:
    config = toy()
    backend = WatchedBackend(on_ray(config))
    killer = Killer(backend, "generators", [3, 17])
    records = run_on(config, backend, tmp_path / "run", killer)
    assert killer.killed == 2
    last = records[-1]
    assert last["train_step"] == 40
    assert last["faults.generator_died"] == 2
    assert last["faults.reissued_groups"] == 2
    # Every group that was started has entered, but for those still on their way.
    assert last["groups"] - 2 <= last["generated"] / 4 <= last["groups"]
    assert [trainer.checked for trainer in backend.trainers] == [40 * 8]
    assert len({record["train_step"] for record in records}) == len(records) == 40


def test_generator_when_killed_with_two_requests_under_way_is_started_once_and_gives_both(
    toy, on_ray, tmp_path
) -> None:
    config = toy(loop={"generators": 1, "requests_per_generator": 2, "train_steps": 20})
    backend = WatchedBackend(on_ray(config))
    last = run_on(config, backend, tmp_path / "run", Killer(backend, "generators", [5]))[-1]
    assert last["faults.generator_died"] == 1
    assert last["faults.reissued_groups"] == 1 + last.get("faults.reissued", 0) <= 2  # one for each that failed
    assert [trainer.checked for trainer in backend.trainers] == [20 * 8]


def test_busy_seconds_when_one_request_waits_behind_another_are_those_of_each(toy, on_ray, tmp_path) -> None:
    config = toy(loop={"generators": 1, "requests_per_generator": 2, "train_steps": 8}, buffer={"kind": "queue"})
    make = partial(SlowBackend, config, 0.05)
    last = run_on(config, on_ray(config, makers=Makers(make)), tmp_path / "run")[-1]
    assert last["busy_generate_s"] >= 0.05 * last["generated"] / 4


def test_trainers_when_killed_go_back_to_the_last_checkpoint(toy, on_ray, tmp_path) -> None:
    config = toy()
    backend = WatchedBackend(on_ray(config))
    killer = Killer(backend, "trainers", [8, 23])
    records = run_on(config, backend, tmp_path / "run", killer)
    assert killer.killed == 2
    assert [record["train_step"] for record in records] == list(range(1, 41))
    last, lines = records[-1], read_faults(tmp_path / "run" / FAULTS_FILE)
    assert last["faults.state_lost"] == 2
    assert last["trained"] == 40 * 8
    # Steps 6 to 8 and 21 to 23 are done a second time, and perhaps one more that was going on.
    back = [line for line in lines if line["fault"] == "rolled_back"]
    assert [line["lost_train_steps"] for line in back] == [3, 3]
    assert sum(trainer.checked for trainer in backend.trainers) >= (40 + 6) * 8
    assert "faults.generator_died" not in last  # they were kept


def test_generator_when_it_hangs_is_ended_and_its_prompt_given_out_again(toy, on_ray, tmp_path) -> None:
    # A queue and one generator: the learner has to wait for it. With a replay buffer it would not.
    config = toy(ray={"generate_timeout_s": 1.0}, loop={"train_steps": 20, "generators": 1}, buffer={"kind": "queue"})
    make = partial(StickyBackend, config, tmp_path, 9, 1)
    records = run_on(config, on_ray(config, makers=Makers(make)), tmp_path / "run")
    last = records[-1]
    assert (last["train_step"], last["faults.generator_timed_out"], last["faults.reissued_groups"]) == (20, 1, 1)
    assert last["trained"] == 20 * 8 <= last["generated"]


def test_run_when_a_generator_hangs_at_its_end_does_not_wait_for_it(toy, on_ray, tmp_path) -> None:
    # Two generators: the other one brings what the learner draws.
    config = toy(ray={"generate_timeout_s": 60.0}, loop={"train_steps": 20})
    make = partial(StickyBackend, config, tmp_path, 4, 99)
    records = run_on(config, on_ray(config, makers=Makers(make)), tmp_path / "run")
    assert records[-1]["train_step"] == 20
    assert len(list(tmp_path.glob("stuck-*"))) == 1  # it hangs still, and was not asked again
    assert not (tmp_path / "run" / FAULTS_FILE).exists()
    assert read_json_object(tmp_path / "run" / "finished.json")["train_step"] == 20


def test_trainers_when_they_do_not_start_in_time_end_the_run_at_once_with_what_to_change(toy, on_ray, tmp_path) -> None:
    config = toy(ray={"start_timeout_s": 1.0})
    backend = on_ray(config, makers=Makers(partial(slow, config)))
    with pytest.raises(RunError, match=r"trainers did not start within 1 s: .*raise ray.start_timeout_s"):
        run_on(config, backend, tmp_path / "run")
    assert not (tmp_path / "run" / FAULTS_FILE).exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_run_when_it_waits_for_its_trainers_ends_at_the_first_signal(toy, on_ray, tmp_path, number) -> None:
    config = toy()
    backend = on_ray(config, makers=Makers(partial(slow, config)))
    runtime, timer = (
        Runtime.on_ray(config, tmp_path / "run", backend),
        threading.Timer(2, os.kill, (os.getpid(), number)),
    )
    with graceful_interrupt(quiet=True) as stop:
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            runtime.run(stop, resume=False)
    assert not (tmp_path / "run" / "run.json").exists()


def slow(config: Any) -> Any:
    time.sleep(3600)


def test_generator_when_it_always_hangs_ends_the_run_with_what_to_change(toy, on_ray, tmp_path) -> None:
    config = toy(ray={"generate_timeout_s": 0.5, "max_restarts": 1}, loop={"generators": 1, "train_steps": 1000})
    backend = on_ray(config, makers=Makers(partial(StickyBackend, config, tmp_path, 3, 99)))
    with pytest.raises(RunError, match=r"generator 0 failed 2 times in a row.*raise ray.generate_timeout_s"):
        run_on(config, backend, tmp_path / "run")


def test_trainers_when_lost_before_any_checkpoint_begin_anew_until_it_is_enough(toy, on_ray, tmp_path) -> None:
    config = toy(checkpoint_every=0, ray={"max_restarts": 1}, loop={"generators": 1})
    backend = on_ray(config)

    def kill(record: Any) -> None:
        if record["train_step"] == 2:
            os.kill(backend.process_ids()["trainers"][0], signal.SIGKILL)

    with pytest.raises(RunError, match="trainers were lost 2 times in a row without a new checkpoint"):
        run_on(config, backend, tmp_path / "run", kill)


def test_failed_engine_when_its_fault_is_in_the_recipe_says_so_once(toy, on_ray, tmp_path) -> None:
    config = toy()
    backend = on_ray(config, makers=Makers(partial(broken, config)))
    with pytest.raises(RunError, match=r"a trainer failed: KeyError: .no such model."):
        run_on(config, backend, tmp_path / "run")


def broken(config: Any) -> Any:
    raise KeyError("no such model")


@pytest.mark.parametrize("store", ["actor", "shards"])
def test_buffer_elsewhere_when_its_process_is_killed_comes_back_with_the_checkpoint(
    store, toy, on_ray, tmp_path
) -> None:
    config = toy(loop={"shards": store == "shards", "train_steps": 20}, ray={"store": store})
    backend = on_ray(config)
    killer = Killer(backend, "trainers" if store == "shards" else "store", [8])
    records = run_on(config, backend, tmp_path / "run", killer)
    assert [record["train_step"] for record in records] == list(range(1, 21))
    last = records[-1]
    assert last["faults.state_lost"] == killer.killed == 1
    assert last["faults.lost_train_steps"] == 3
    assert last["buffer_size"] == min(64, last["generated"])  # what came after the checkpoint went with the process
    assert last["transfer.draws_bytes"] == 0


def test_summary_when_a_run_has_ended_tells_what_everybody_did(toy, on_ray, tmp_path) -> None:
    config = toy()
    records = run_on(config, on_ray(config), tmp_path / "run")
    summary = read_json_object(tmp_path / "run" / "throughput.json")
    assert len(summary["generators"]) == 2
    assert sum(one["rollouts"] for one in summary["generators"]) == records[-1]["generated"]
    assert summary["trainer"]["rollouts"] == records[-1]["trained"] == 320
    assert summary["runtime"]["transfer.draws_count"] == 40
    assert 0 < records[-1]["busy_train_s"] < summary["elapsed_s"]
