"""The driver is killed with SIGKILL: its processes go away, `--resume` goes on, and the journal has lost nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import ray

from ostinato.buffer import ReplayBuffer
from ostinato.buffer.journal import read_journal
from ostinato.loop.faults import FAULTS_FILE, read_faults
from ostinato.rollout_arrays import from_arrays
from ostinato.telemetry import read_json_object, read_jsonl

RECIPE = """
runtime = "ray"
checkpoint_every = 1
model.backend = "toy"
task.name = "toy"
[toy]
prompts = 8
length = 2
[loop]
clock = "wall"
generators = 2
trainers = 1
batch_size = 8
group_size = 4
train_steps = 100
[buffer]
capacity = 100000
journal = true
[evaluation]
every_units = 0.0
[ray]
object_store_bytes = 134217728
"""


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def actors_here() -> set[psutil.Process]:
    """Actors of the Ray that this process has started."""
    found = set()
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if process.cmdline()[:1] and process.cmdline()[0].startswith("ray::"):
                found.add(process)
    return found


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 90
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.01)


@contextmanager
def training(directory: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    recipe = directory.parent / "recipe.toml"
    recipe.write_text(RECIPE)
    command = [sys.executable, "-m", "ostinato", "train", str(recipe), "--out", str(directory), *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def kill_at(process: subprocess.Popen[str], directory: Path, train_step: int) -> None:
    def steps() -> int:
        path = directory / "metrics.jsonl"
        return len(read_jsonl(path)) if path.exists() else 0

    until(lambda: steps() >= train_step or process.poll() is not None, f"train step {train_step}")
    assert process.poll() is None, process.communicate()[1]
    os.kill(process.pid, signal.SIGKILL)
    process.wait()


def acknowledged(directory: Path) -> tuple[dict[int, bytes], int]:
    """The tokens and log-probs of each group in the journal; how many rollouts had entered."""
    buffer = ReplayBuffer(100000)
    read_journal(buffer, directory / "journal")
    return groups_of(from_arrays(buffer.state_arrays(), "rollouts.")), buffer.added


def groups_of(rollouts: Any) -> dict[int, bytes]:
    groups: dict[int, list[bytes]] = {}
    for i, group in enumerate(rollouts.group_id.tolist()):
        part = slice(rollouts.offsets[i], rollouts.offsets[i + 1])
        groups.setdefault(group, []).append(
            rollouts.tokens[part].tobytes() + rollouts.behavior_logprobs[part].tobytes()
        )
    return {group: b"".join(sorted(rows)) for group, rows in groups.items()}


def test_driver_when_killed_twice_goes_on_and_loses_nothing_acknowledged(cluster, tmp_path) -> None:
    directory = tmp_path / "run"
    with training(directory) as process:  # a Ray of its own
        until(lambda: (directory / "metrics.jsonl").exists() or process.poll() is not None, "the first train step")
        below = psutil.Process(process.pid).children(recursive=True)
        kill_at(process, directory, 20)
    until(lambda: not any(map(is_alive, below)), "the processes of a dead driver to end")
    first, _ = acknowledged(directory)

    address = ray.get_runtime_context().gcs_address
    before = actors_here()
    there = ("--ray.address", address, "--ray.object_store_bytes", "none")
    with training(directory, *there, "--resume") as process:  # a cluster that is there
        kill_at(process, directory, 50)
    until(lambda: actors_here() <= before, "the actors of a dead driver to end")
    second, _ = acknowledged(directory)

    with training(directory, *there, "--resume") as process:
        _, said = process.communicate(timeout=120)
        assert process.returncode == 0, said
    last, entered = acknowledged(directory)

    assert len(first) > 0
    assert first.items() <= second.items() <= last.items()
    finished = read_json_object(directory / "finished.json")
    assert finished["train_step"] == 100
    assert finished["trained"] == 100 * 8
    assert finished["generated"] == entered == 4 * len(last)  # each group once: none lost, none twice
    assert set(range(finished["groups"] - 2)) <= last.keys() | set(range(finished["groups"] - 4, finished["groups"]))
    steps = Counter(record["train_step"] for record in read_jsonl(directory / "metrics.jsonl"))
    assert set(steps) == set(range(1, 101))
    assert set(steps.values()) == {1}
    for line in read_faults(directory / FAULTS_FILE):
        assert line["fault"] == "rolled_back"
        assert line["lost_rollouts"] == 0
