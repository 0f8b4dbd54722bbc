"""A run on disk: drives the loop, evaluates at compute points, writes metrics and checkpoints.

<run>/run.json          settings and versions
<run>/metrics.jsonl     one line a train step and an evaluation
<run>/statistics.json   histograms of staleness, residence, uses, steps since last use
<run>/checkpoints/      the two newest
<run>/finished.json     written last: counters and measured mu
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ostinato.buffer import ReplayBuffer, ShardedBuffer, no_buffer, paper_fifo
from ostinato.config import BufferConfig, LoopConfig, RunConfig, config_to_dict
from ostinato.errors import CheckpointError, ConfigError
from ostinato.evaluation import evaluate
from ostinato.loop.channel import MemoryChannel
from ostinato.loop.checkpoint import load_checkpoint, save_checkpoint
from ostinato.loop.clock import Clock, InFlight, VirtualClock, WallClock
from ostinato.loop.events import Stepped
from ostinato.loop.loop import Generated, Loop, Parts
from ostinato.protocols import Backend, Generator, Sampling, Store
from ostinato.telemetry import JsonlWriter, write_json

EVALUATION_STREAM = 3
"""Second entry of the seeds of evaluations: the same for every arm."""

FREE_TO_CHANGE = ("loop.compute_units", "loop.train_steps", "checkpoint_every", "arms")
"""Settings that a resumed run may change."""

Observer = Callable[[Mapping[str, Any]], None]


class Session:
    """One run in one directory. `observer` sees every record that goes to metrics.jsonl.

    Raises `ConfigError` when the directory holds a run and `resume` is False, or one with other settings.
    """

    def __init__(
        self,
        config: RunConfig,
        backend: Backend,
        directory: Path,
        *,
        resume: bool = False,
        observer: Observer = lambda record: None,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        self.config, self.backend, self.directory = config, backend, directory
        self._observer = observer
        self._channel = MemoryChannel()
        self._evaluator = backend.generator()
        self._trainer = backend.trainer()
        self._loop = self._build_loop()
        self._clock: Clock
        self._resumed: dict[int, InFlight | Generated] = {}
        self._next_point = 0
        self._open(resume, about or {})

    def run(self, stop: Callable[[], bool] = lambda: False) -> bool:
        """Go on until the budget is spent (True) or `stop()` asks to leave (False); both end with a checkpoint."""
        self._metrics = JsonlWriter(self.directory / "metrics.jsonl", keep_bytes=self._keep_bytes)
        try:
            if self._next_point == 0:
                self._evaluate()
            for event in self._loop.run(self._clock, self._resumed):
                if isinstance(event, Stepped) and self._stepped(event, stop):
                    self._checkpoint()
                    return False
            self._checkpoint()
            self._finish()
            return True
        finally:
            self._metrics.close()

    def _stepped(self, event: Stepped, stop: Callable[[], bool]) -> bool:
        record = {"event": "step", "time_s": self._clock.now, **event.record, "train_step": event.train_step}
        self._emit(record)
        every = self.config.evaluation.every_units
        if every and self._loop.compute >= self._next_point * every:
            self._evaluate()
        if not event.batch_done:
            return False
        if stop():
            return True
        steps = self.config.checkpoint_every
        # Train steps advance by `epochs` from one batch to the next, so a multiple may be stepped over.
        if steps and event.train_step % steps < self.config.loop.epochs and event.train_step >= steps:
            self._checkpoint()
        return False

    def _evaluate(self) -> None:
        settings, point = self.config.evaluation, self._next_point
        if settings.every_units == 0:
            return
        self._next_point = int(self._loop.compute // settings.every_units) + 1
        self._evaluator.load(self._trainer.weights(), self._loop.ledger.train_step)
        length = self.config.sampling.max_new_tokens
        sampled = Sampling(settings.temperature, settings.top_p, 0, length)
        seed = (self.config.seed, EVALUATION_STREAM, point)
        tasks, scorer = self.backend.tasks.test, self.backend.scorer
        result = evaluate(self._evaluator, scorer, tasks, sampling=sampled, samples=settings.samples, seed=seed)
        record: dict[str, Any] = {
            "event": "evaluation",
            "point": point,
            "time_s": self._clock.now,
            "compute": self._loop.compute,
            **asdict(self._loop.ledger),
            "prompts": len(tasks),
            "samples": settings.samples,
            "sampled_accuracy": result.accuracy,
            "pass_at_k": {k: result.pass_at(k) for k in powers_of_two(settings.samples)},
            "greedy_accuracy": None,
        }
        if settings.greedy:
            greedy = Sampling(0.0, 1.0, 0, length)
            best = evaluate(self._evaluator, scorer, tasks, sampling=greedy, samples=1, seed=seed)
            record["greedy_accuracy"] = best.accuracy
        self._emit(record)

    def _emit(self, record: Mapping[str, Any]) -> None:
        self._metrics.write(record)
        self._observer(record)

    # ---------------------------------------------------------------- building and files

    def _build_loop(self) -> Loop:
        config = self.config.loop
        engines: list[Generator] = (
            [self.backend.concurrent_generator() for _ in range(config.generators)]
            if config.clock == "wall"
            else [self.backend.generator()]
        )
        self._channel.publish(self._trainer.weights(), 0)
        sampling = Sampling(**asdict(self.config.sampling))
        store = build_store(self.config.buffer, config)
        parts = Parts(engines, self.backend.scorer, store, self._trainer, self._channel, self.backend.tasks)
        return Loop(config, sampling, parts, seed=self.config.seed, consume_once=self.config.buffer.kind == "queue")

    def _open(self, resume: bool, about: Mapping[str, Any]) -> None:
        path, settings = self.directory / "run.json", config_to_dict(self.config)
        checkpoints = self._checkpoints()
        now, keep_bytes = 0.0, 0
        if path.exists() and not resume:
            raise ConfigError(f"{self.directory} already holds a run; add --resume to go on, or choose another --out")
        if path.exists():
            refuse_other_settings(json.loads(path.read_text(encoding="utf-8"))["settings"], settings, self.directory)
        if checkpoints:
            now, self._resumed, extra = load_checkpoint(checkpoints[-1], self._loop, self._channel)
            self._next_point, keep_bytes = extra["next_point"], extra["metrics_bytes"]
        write_json(path, {"settings": settings, **about})
        self._keep_bytes = keep_bytes
        (self.directory / "finished.json").unlink(missing_ok=True)
        self._clock = VirtualClock(now) if self.config.loop.clock == "virtual" else WallClock(now)

    def _checkpoints(self) -> list[Path]:
        return sorted((self.directory / "checkpoints").glob("step-*"))

    def _checkpoint(self) -> None:
        target = self.directory / "checkpoints" / f"step-{self._loop.ledger.train_step:08d}"
        extra = {"next_point": self._next_point, "metrics_bytes": self._metrics.position}
        save_checkpoint(target, self._loop, self._channel, self._clock, extra)
        write_json(self.directory / "statistics.json", self._loop.statistics.summary())
        for old in self._checkpoints()[:-2]:
            shutil.rmtree(old)

    def _finish(self) -> None:
        ledger = self._loop.ledger
        summary = {**asdict(ledger), "compute": self._loop.compute, "mu_measured": ledger.mu_measured()}
        write_json(self.directory / "finished.json", summary)


def build_store(buffer: BufferConfig, loop: LoopConfig) -> Store:
    """The buffer, its T shards, or the queue that a recipe asks for."""
    if buffer.kind == "queue":
        return no_buffer(buffer.capacity, order=buffer.order, max_staleness=loop.max_staleness)
    shards: list[ReplayBuffer] = [
        paper_fifo(
            buffer.capacity // count,
            replacement=buffer.replacement,
            min_size=buffer.min_size // count,
            max_staleness=loop.max_staleness,
            first_id=index,
            id_stride=count,
        )
        for count in [loop.trainers if loop.shards else 1]
        for index in range(count)
    ]
    return ShardedBuffer(shards) if loop.shards else shards[0]


def refuse_other_settings(old: Mapping[str, Any], new: Mapping[str, Any], directory: Path) -> None:
    """Raise `ConfigError` when a run would be resumed with a setting that changes its course."""
    before, after = dict(_leaves(old)), dict(_leaves(new))
    for name in sorted(before.keys() | after.keys()):
        if name.startswith(FREE_TO_CHANGE):
            continue
        if before.get(name) != after.get(name):
            raise ConfigError(
                f"{directory} was run with {name} = {before.get(name)!r}, cannot resume with {after.get(name)!r}"
            )


def newest_checkpoint(directory: Path) -> Path:
    """The last checkpoint of a run. Raises `CheckpointError` when there is none."""
    found = sorted((directory / "checkpoints").glob("step-*"))
    if not found:
        raise CheckpointError(f"{directory} holds no checkpoint")
    return found[-1]


def powers_of_two(n: int) -> list[int]:
    """1, 2, 4, ... up to n."""
    return [2**i for i in range(n.bit_length())]


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    leaves: list[tuple[str, Any]] = []
    for key, value in tree.items():
        leaves += _leaves(value, f"{prefix}{key}.") if isinstance(value, Mapping) else [(prefix + key, value)]
    return leaves
