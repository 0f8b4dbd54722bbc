"""Kills processes of a run on Ray at random moments, and checks that its counts add up when it is done.

    python benchmarks/faults.py --kills 50                                        # the toy, 50 kills of each kind
    python benchmarks/faults.py --kills 50 --kinds generator,trainer --recipe MY.toml --out runs/faults

The run goes on until every kill has been noticed and put right, then for `--rest` train steps more. A driver that was
killed is started again with --resume. Exit code 1, and what is wrong, when the run or a count fails.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil

from ostinato.loop.faults import FAULTS_FILE, fault_counts
from ostinato.telemetry import read_json_object, read_jsonl

TOY = """
runtime = "ray"
checkpoint_every = 1
model.backend = "toy"
task.name = "toy"
loop = { clock = "wall", generators = 2, trainers = 1, batch_size = 8, group_size = 4, train_steps = 1 }
buffer = { capacity = 4096, journal = true }
evaluation.every_units = 0.0
"""
NAMES = {"generator": "ray::GeneratorActor", "trainer": "ray::TrainerActor"}
NOTICED = {"generator": "generator_died", "trainer": "state_lost"}
KINDS = (*NAMES, "driver")
PATIENCE_S = 600.0


class Run:
    """A driver, started again whenever it is not there."""

    def __init__(self, recipe: Path, directory: Path) -> None:
        self._recipe, self.directory = recipe, directory
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, train_steps: int) -> None:
        command = [
            sys.executable,
            "-m",
            "ostinato",
            "train",
            str(self._recipe),
            "--out",
            str(self.directory),
            "--resume",
        ]
        with open(self.directory.with_suffix(".log"), "ab") as log:
            self.process = subprocess.Popen(
                [*command, "--loop.train_steps", str(train_steps)], stdout=log, stderr=subprocess.STDOUT
            )

    @property
    def train_step(self) -> int:
        path = self.directory / "metrics.jsonl"
        return max([0, *(record["train_step"] for record in read_jsonl(path))]) if path.exists() else 0

    def counts(self) -> dict[str, int]:
        return fault_counts(self.directory / FAULTS_FILE)

    def pids(self, kind: str) -> list[int]:
        """Processes of a kind below this driver."""
        assert self.process is not None
        if kind == "driver":
            return [self.process.pid]
        return [pid for pid, title in titles_below(self.process.pid).items() if title.startswith(NAMES[kind])]

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        """Until the condition holds. Ends this program when the driver ends first, or after `PATIENCE_S`."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            if self.process is not None and self.process.poll() is not None:
                sys.exit(f"the run ended with exit code {self.process.returncode} while waiting for {what}")
            if time.monotonic() > deadline:
                sys.exit(f"waited in vain for {what}")
            time.sleep(0.05)


def titles_below(pid: int) -> dict[int, str]:
    """What the processes below `pid` call themselves."""
    titles: dict[int, str] = {}
    with suppress(psutil.NoSuchProcess):
        for process in psutil.Process(pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                titles[process.pid] = " ".join(process.cmdline())
    return titles


def kill_one(run: Run, kind: str, rng: np.random.Generator, spread_s: float) -> None:
    """Kill at a random moment after the next train step, and wait until that is put right."""
    seen = run.train_step
    run.wait(lambda: run.train_step > seen and bool(run.pids(kind)), "a train step")
    time.sleep(float(rng.uniform(0, spread_s)))
    before = run.counts()
    os.kill(int(rng.choice(run.pids(kind))), signal.SIGKILL)
    if kind == "driver":
        assert run.process is not None
        run.process.wait()
        run.start(10**9)
    else:
        name = NOTICED[kind]
        run.wait(lambda: run.counts().get(name, 0) > before.get(name, 0), f"{name} to be noticed")


def faults_of(run: Run, kills: Counter[str]) -> list[str]:
    """What does not add up."""
    counts, finished = run.counts(), read_json_object(run.directory / "finished.json")
    steps = [
        record["train_step"] for record in read_jsonl(run.directory / "metrics.jsonl") if record["event"] == "step"
    ]
    wrong = [
        f"{NOTICED[k]}: {counts.get(NOTICED[k], 0)} of {kills[k]}"
        for k in NAMES
        if counts.get(NOTICED[k], 0) != kills[k]
    ]
    if steps != list(range(1, finished["train_step"] + 1)):
        wrong.append("train steps are missing or there twice")
    settings = read_json_object(run.directory / "run.json")["settings"]
    if finished["trained"] != finished["train_step"] * settings["loop"]["batch_size"]:
        wrong.append(f"{finished['trained']} rollouts trained in {finished['train_step']} steps")
    if settings["buffer"]["journal"] and settings["checkpoint_every"] == 1 and counts.get("lost_rollouts", 0):
        wrong.append(f"{counts['lost_rollouts']} acknowledged rollouts lost")
    return wrong


def main() -> None:
    """Parse, kill, check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=2, help="of each kind (default: 2)")
    parser.add_argument("--kinds", default=",".join(KINDS), help="default: %(default)s")
    parser.add_argument("--recipe", type=Path, help="default: the toy, with a journal and a checkpoint at every step")
    parser.add_argument("--out", type=Path, default=Path("runs/faults"))
    parser.add_argument("--spread", type=float, default=1.0, help="seconds after a train step, at most (default: 1)")
    parser.add_argument("--rest", type=int, default=20, help="train steps after the last kill (default: 20)")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True)
    recipe = arguments.recipe or arguments.out.with_suffix(".toml")
    if arguments.recipe is None:
        recipe.write_text(TOY)
    rng, run = np.random.default_rng(arguments.seed), Run(recipe, arguments.out)
    order = rng.permutation([kind for kind in arguments.kinds.split(",") for _ in range(arguments.kills)]).tolist()
    run.start(10**9)
    try:
        for number, kind in enumerate(order, 1):
            kill_one(run, kind, rng, arguments.spread)
            print(f"{number} of {len(order)}: {kind} killed, train step {run.train_step}", flush=True)
        seen = run.train_step
        run.wait(lambda: run.train_step > seen, "a train step after the last kill")
        run.process.send_signal(signal.SIGTERM)
        run.process.wait()
        run.start(run.train_step + arguments.rest)
        if run.process.wait() != 0:
            sys.exit(f"the run ended with exit code {run.process.returncode}")
    finally:
        run.process.kill()
    wrong = faults_of(run, Counter(order))
    print(f"{run.train_step} train steps; {run.counts()}")
    sys.exit("\n".join(wrong) if wrong else 0)


if __name__ == "__main__":
    main()
