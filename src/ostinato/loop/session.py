"""A run on disk: drives the loop, evaluates at compute points, writes metrics and checkpoints."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ostinato.buffer.journal import JournaledBuffer
from ostinato.config import RunConfig, config_to_dict
from ostinato.evaluation import held_out
from ostinato.governors import reuse_governor
from ostinato.loop.channel import MemoryChannel
from ostinato.loop.checkpoint import Place, load_checkpoint, save_checkpoint
from ostinato.loop.clock import Clock, InFlight, TurnClock, VirtualClock, WallClock
from ostinato.loop.events import Stepped
from ostinato.loop.faults import FAULTS_FILE, FaultLog
from ostinato.loop.follow_up import FollowUp
from ostinato.loop.groups import Generated
from ostinato.loop.loop import Loop, Parts
from ostinato.loop.recovery import open_journal, take_up
from ostinato.loop.run_directory import RunDirectory, checkpoints
from ostinato.loop.sizing import sizing_of
from ostinato.loop.stores import awaited, build_store, is_prioritized, written_priority
from ostinato.loop.throughput import Throughput
from ostinato.loop.turns import Turns
from ostinato.protocols import Backend, Generator, Interruptible, Sampling, Store
from ostinato.telemetry import write_json

Observer = Callable[[Mapping[str, Any]], None]


class Session:
    """One run in one directory. `observer` sees every record that goes to metrics.jsonl.

    It holds the directory until `run` ends, or `close` when it is not run. Raises `RunError` when another run is going
    on there, and `ConfigError`, `CheckpointError` or `DataError` when what is there is not this run, whole, to resume.
    In real time each step's record has throughput and faults too, and the numbers that `meters` gives of the runtime.
    `store`: an empty one that lies elsewhere, asked for after `backend.trainer()`; None: the recipe's, in this process.
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
        faults: FaultLog | None = None,
        meters: Callable[[], Mapping[str, float]] = dict,
        store: Callable[[], Store | None] = lambda: None,
    ) -> None:
        self.config, self.backend = config, backend
        self._observer, self._meters, self._elsewhere = observer, meters, store
        self._faults = faults or FaultLog(directory / FAULTS_FILE)
        self._throughput = Throughput(config.loop.generators)
        self._channel = MemoryChannel()
        self._evaluator = backend.generator()
        self._trainer = backend.trainer()
        self._loop = self._build_loop()
        self._clock: Clock
        self._turns: Turns | None = None
        self._resumed: dict[int, InFlight | Generated] = {}
        self._next_point = 0
        self._evaluated_step = -1
        self._finished = False
        self._files = RunDirectory(directory)
        try:
            self._open(resume, about or {})
        except BaseException:
            self.close()
            raise

    def run(self, stop: Callable[[], bool] = lambda: False) -> bool:
        """Go on until the budget is spent (True) or `stop()` asks to leave (False); both end with a checkpoint."""
        if self._finished:
            self.close()
            return True
        self._throughput.begin()
        try:
            if self._next_point == 0:
                self._evaluate()
            for event in self._loop.run(self._clock, self._resumed):
                self._throughput.watch(event)
                if isinstance(event, Stepped) and self._stepped(event, stop):
                    self._checkpoint()
                    return False
            self._checkpoint()
            # After the checkpoint, which a run with a larger budget goes on from: there this evaluation is not due.
            if self._evaluated_step != self._loop.ledger.train_step:
                self._evaluate()
            self._finish()
            return True
        finally:
            self.close()

    def close(self) -> None:
        """Let go of the directory."""
        if isinstance(self._loop.parts.store, JournaledBuffer):
            self._loop.parts.store.close()
        self._files.close()

    def _stepped(self, event: Stepped, stop: Callable[[], bool]) -> bool:
        held = {"buffer_correct_fraction": self._loop.parts.store.metrics()["correct_fraction"]}
        record = {"event": "step", "time_s": self._clock.now, **event.record, **held, **self._real_time()}
        self._emit(record | {"train_step": event.train_step})
        self._tell_change()
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

    def _tell_change(self) -> None:
        sizing = self._loop.follow_up.sizing
        if sizing and (change := sizing.take_change()):
            self._emit(
                {"event": "control", "time_s": self._clock.now, "compute": self._loop.compute, **change.record()}
            )

    def _evaluate(self) -> None:
        settings, point, begun = self.config.evaluation, self._next_point, time.monotonic()
        if settings.every_units == 0:
            return
        self._next_point = int(self._loop.compute // settings.every_units) + 1
        self._evaluated_step = self._loop.ledger.train_step
        if self._turns is not None:  # one engine for both
            self._turns.lend()
        self._evaluator.load(self._trainer.weights(), self._loop.ledger.train_step)
        found = held_out(
            self._evaluator,
            self.backend.scorer,
            self.backend.tasks.test,
            settings,
            max_new_tokens=self.config.sampling.max_new_tokens,
            seed=self.config.seed,
            point=point,
        )
        self._throughput.stood_still(time.monotonic() - begun)
        where = {"event": "evaluation", "point": point, "time_s": self._clock.now, "compute": self._loop.compute}
        self._emit(where | asdict(self._loop.ledger) | found.record())

    def _real_time(self) -> dict[str, float]:
        """What has no place in a run on the virtual clock, which must repeat bit for bit."""
        if self.config.loop.clock == "virtual":
            return {}
        return self._throughput.numbers() | self._faults.counts() | dict(self._meters())

    def _emit(self, record: Mapping[str, Any]) -> None:
        self._files.metrics.write(record)
        self._observer(record)

    # ---------------------------------------------------------------- building and files

    def _build_loop(self) -> Loop:
        config = self.config.loop
        engines: list[Generator] = (
            [self.backend.concurrent_generator() for _ in range(config.generators)]
            if config.clock == "wall"
            else [self._evaluator if config.clock == "turns" else self.backend.generator()]
        )
        self._channel.publish(self._trainer.weights(), 0)
        sampling = Sampling(**asdict(self.config.sampling))
        sizing = sizing_of(self.config)
        store = self._elsewhere()
        if store is None:
            store = build_store(sizing.buffer if sizing else self.config.buffer, config)
        parts = Parts(engines, self.backend.scorer, store, self._trainer, self._channel, self.backend.tasks)
        follow_up = FollowUp(
            correct_above=self.config.buffer.correct_above,
            reuse=reuse_governor(self.config),
            priority=written_priority(self.config.buffer),
            prioritized=is_prioritized(self.config.buffer),
            sizing=sizing,
        )
        return Loop(
            config,
            sampling,
            parts,
            seed=self.config.seed,
            consume_once=self.config.buffer.kind == "queue",
            awaited=awaited(self.config.buffer, config),
            pace=sizing.pace if sizing else None,
            follow_up=follow_up,
        )

    def _open(self, resume: bool, about: Mapping[str, Any]) -> None:
        settings = config_to_dict(self.config)
        self._files.claim(settings, resume=resume)
        now, place = 0.0, Place()
        kept = checkpoints(self._files.path)
        if self.config.buffer.journal:
            parts, newest = self._loop.parts, kept[-1] if kept else None
            parts.store = open_journal(parts.store, self._files.path / "journal", newest)
        if kept:
            now, self._resumed, place = load_checkpoint(kept[-1], self._loop, self._channel)
        self._next_point, self._evaluated_step = place.next_point, place.evaluated_step
        if kept and self._loop.is_spent() and (self._files.path / "finished.json").exists():
            self._finished = True  # nothing is left to do, and what is there stays as it is
            return
        if self.config.loop.clock != "virtual":
            behind = self._files.records_behind(place.metrics_bytes)
            self._resumed = take_up(self._loop, self._resumed, behind, self._faults)
        self._clock = self._start_clock(now)
        self._files.begin({"settings": settings, **about}, keep_bytes=place.metrics_bytes)

    def _start_clock(self, now: float) -> Clock:
        if self.config.loop.clock == "turns":
            self._turns = Turns(self._loop)
            return TurnClock(now, enter=self._turns.enter)
        return VirtualClock(now) if self.config.loop.clock == "virtual" else WallClock(now, leave=self._give_up)

    def _give_up(self) -> None:
        for engine in self._loop.parts.engines:
            if isinstance(engine, Interruptible):
                engine.give_up()

    def _checkpoint(self) -> None:
        target = self._files.path / "checkpoints" / f"step-{self._loop.ledger.train_step:08d}"
        place = Place(self._next_point, self._files.metrics.position, self._evaluated_step)
        save_checkpoint(target, self._loop, self._channel, self._clock, place)
        summary = {**self._loop.statistics.summary(), **self._loop.follow_up.summary()}
        write_json(self._files.path / "statistics.json", summary)
        if self.config.loop.clock != "virtual":
            efforts = self._throughput.summary(self._loop.ledger, self.config.loop.batch_size)
            write_json(self._files.path / "throughput.json", efforts | {"runtime": dict(self._meters())})
        self._files.prune()

    def _finish(self) -> None:
        ledger = self._loop.ledger
        summary = {**asdict(ledger), "compute": self._loop.compute, "mu_measured": ledger.mu_measured()}
        write_json(self._files.path / "finished.json", summary)
