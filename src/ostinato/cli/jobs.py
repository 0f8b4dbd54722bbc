"""Runs of a comparison, several at a time, each in a process of its own."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path

from ostinato.cli.display import warn
from ostinato.cli.runtime import open_runtime
from ostinato.config import RunConfig, config_to_dict
from ostinato.errors import OstinatoError, RunError
from ostinato.interrupt import graceful_interrupt, held_back
from ostinato.telemetry import read_json_object, read_jsonl
from ostinato.trackers import tracked

SHOW_EVERY_S = 10.0
FINISHED, STOPPED = "finished", "stopped"


@dataclass(frozen=True, slots=True)
class Job:
    """One arm under one seed."""

    arm: str
    seed: int
    config: RunConfig
    directory: Path

    @property
    def is_finished(self) -> bool:
        """Whether a run with these very settings stands complete in the directory."""
        path = self.directory / "run.json"
        if not (self.directory / "finished.json").exists() or not path.exists():
            return False
        kept = read_json_object(path, required=["settings"])["settings"]
        return bool(kept == json.loads(json.dumps(config_to_dict(self.config))))

    def progress(self) -> str:
        """How far the run is."""
        path = self.directory / "metrics.jsonl"
        evaluations = [r for r in read_jsonl(path) if r["event"] == "evaluation"] if path.exists() else []
        if not evaluations:
            return "starting"
        return f"compute {evaluations[-1]['compute']:.0f}, accuracy {evaluations[-1]['sampled_accuracy']:.3f}"


@dataclass(slots=True)
class Running:
    """A job's process and the pipe on which it says how it ended."""

    job: Job
    process: SpawnProcess = field(init=False)
    pipe: Connection = field(init=False)

    def __post_init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe(duplex=False)
        self.process = context.Process(target=_work, args=(self.job, theirs, os.getpid()), daemon=True)
        with held_back():
            self.process.start()
        theirs.close()

    def outcome(self) -> str:
        """`FINISHED`, `STOPPED`, or what went wrong; waits for the end."""
        try:
            said = str(self.pipe.recv())
        except EOFError:
            self.process.join()
            said = f"its process ended with exit code {self.process.exitcode}; out of memory? try --jobs 1"
        self.process.join()
        self.pipe.close()
        return said


def run_jobs(jobs: Sequence[Job], workers: int) -> bool:
    """Run all jobs, `workers` at a time; False when interrupted.

    A run that fails is reported at once and does not stop the others; `RunError` then ends the call.
    """
    waiting, running, failed, shown, told = list(jobs), list[Running](), 0, time.monotonic(), False
    with graceful_interrupt() as stop:
        while running or (waiting and not stop()):
            while waiting and len(running) < workers and not stop():
                running.append(Running(waiting.pop(0)))
            if stop() and not told:
                told = True
                for one in running:
                    one.process.terminate()  # SIGTERM: a checkpoint at the next step
            for pipe in wait([one.pipe for one in running], timeout=1.0):
                ended = next(one for one in running if one.pipe is pipe)
                running.remove(ended)
                failed += not _report(ended.job, ended.outcome(), stopping=told)
            if time.monotonic() - shown > SHOW_EVERY_S and running:
                shown = time.monotonic()
                states = "  |  ".join(f"{one.job.directory.name}: {one.job.progress()}" for one in running)
                print(f"{len(jobs) - len(waiting) - len(running)}/{len(jobs)} done  {states}", flush=True)
        interrupted = stop()
    if failed:
        raise RunError(f"{failed} of {len(jobs)} runs failed; finished runs are kept, the same command does the rest")
    return not interrupted


def _report(job: Job, outcome: str, *, stopping: bool) -> bool:
    if outcome == FINISHED:
        print(f"done  {job.directory.name}: {job.progress()}", flush=True)
    elif outcome != STOPPED and not stopping:
        print(f"failed  {job.directory.name}: {outcome}", file=sys.stderr, flush=True)
        return False
    return True


def _work(job: Job, pipe: Connection, parent: int) -> None:
    with graceful_interrupt(quiet=True) as asked:
        try:
            name = "-".join(filter(None, [job.config.tracking.run, job.directory.name]))
            with (
                open_runtime(job.config, job.directory) as runtime,
                tracked(job.config, job.directory, name=name, resume=True, tell=warn) as observer,
            ):
                # A run whose comparison is gone stops too, with a checkpoint.
                finished = runtime.run(lambda: asked() or os.getppid() != parent, resume=True, observer=observer)
            said = FINISHED if finished else STOPPED
        except KeyboardInterrupt:  # before its first step, where nothing is lost
            said = STOPPED
        except (OstinatoError, OSError, MemoryError) as error:
            said = " ".join(str(error).split()) or type(error).__name__
        except Exception as error:  # noqa: BLE001 - the roof of this process: the comparison tells it in one line
            said = f"internal error: {type(error).__name__}: {error}"
        with suppress(BrokenPipeError):
            pipe.send(said)
