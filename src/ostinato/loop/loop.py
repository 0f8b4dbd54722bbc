"""The loop: generate, score, admit, learn, publish, under a clock.

W generators and one learner are processes (see `loop.clock`). The learner is T data-parallel replicas of one optimizer
step: T enters as its rate, C/T, and as the number of buffer shards. Nothing here logs: the loop yields events.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from ostinato.config import LoopConfig
from ostinato.errors import RunError
from ostinato.loop.clock import Clock, Event, InFlight, Process, Until, Work
from ostinato.loop.events import Admitted, Stepped
from ostinato.loop.follow_up import FollowUp
from ostinato.loop.groups import Generated, scored, together
from ostinato.loop.held import HeldWeights
from ostinato.loop.ledger import Ledger
from ostinato.loop.pace import Pace, SteadyPace
from ostinato.loop.record import StepRecord
from ostinato.protocols import (
    Draw,
    Generator,
    GroupRequest,
    Sampling,
    Scorer,
    Store,
    TaskStream,
    Trained,
    Trainer,
    WeightChannel,
)
from ostinato.staleness import admissible_rollouts, aged
from ostinato.stats.replay import ReplayStatistics

GROUP_STREAM, DRAW_STREAM = 1, 2
"""Second entry of the seeds of the groups and of the buffer draws: streams that never meet."""


@dataclass(slots=True)
class Parts:
    """What the loop wires together. `engines`: one generator for all workers, or one each."""

    engines: Sequence[Generator]
    scorer: Scorer
    store: Store
    trainer: Trainer
    channel: WeightChannel
    tasks: TaskStream


class Loop:
    """State of a run between two events. `consume_once` says that the store is a queue of single use.

    `awaited`: rollouts that a draw may wait for although a batch is there (`stores.awaited`). `pace`: how long work
    takes on the virtual clock; None: mu and T of `config`. `follow_up`: what figures lead to.
    """

    def __init__(
        self,
        config: LoopConfig,
        sampling: Sampling,
        parts: Parts,
        *,
        seed: int,
        consume_once: bool,
        awaited: int = 0,
        pace: Pace | None = None,
        follow_up: FollowUp | None = None,
    ) -> None:
        self.config = config
        self.pace = pace or SteadyPace(config.mu, config.batch_size, config.trainers)
        self.sampling = sampling
        self.parts = parts
        self.seed = seed
        self.consume_once, self._awaited = consume_once, awaited
        self.ledger = Ledger()
        self.statistics = ReplayStatistics()
        self.follow_up = follow_up or FollowUp()
        self.draw_rng = np.random.default_rng([seed, DRAW_STREAM])
        self._learning = False
        self._entered = 0
        self._started: dict[int, tuple[int, ...]] = {}
        self._in_hand: dict[int, Generated] = {}
        self._held = HeldWeights()
        self._reissue: list[tuple[int, ...]] = []
        self._fresh_rewards: list[tuple[float, int]] = []

    @property
    def compute(self) -> float:
        """Compute spent so far, in baseline updates."""
        return self.ledger.compute(mu=self.config.mu, batch_size=self.config.batch_size)

    @property
    def in_hand(self) -> Mapping[int, Generated]:
        """What generators hold before a full queue, by rank."""
        return self._in_hand

    @property
    def groups_in_flight(self) -> list[tuple[int, ...]]:
        """Groups that were started and have not entered the store."""
        return [*self._started.values(), *self._reissue]

    def run(self, clock: Clock, resumed: Mapping[int, InFlight | Generated] | None = None) -> Iterator[Event]:
        """Drive all processes until the learner has done its train steps or its compute is spent.

        `resumed`: what a checkpoint kept of each generator that was working, or stood before a full queue.
        """
        resumed, slots = resumed or {}, self.config.generators * self.config.requests_per_generator
        for rank, kept in resumed.items():
            self._started[rank] = (kept.result if isinstance(kept, InFlight) else kept).groups
        workers = [self._generator(rank, resumed.get(rank)) for rank in range(1, slots + 1)]
        return clock.drive([self._learner(), *workers])

    def reload(self) -> None:
        """Engines load the newest weights before they generate next, whatever they had."""
        self._held.forget()

    def reissue(self, groups: Sequence[tuple[int, ...]]) -> None:
        """Groups that were in flight when a wall-clock run stopped: they are generated again first."""
        self._reissue = list(groups)

    # ---------------------------------------------------------------- learn, publish

    def _learner(self) -> Process:
        config, store = self.config, self.parts.store
        while not self.is_spent():
            yield Until(self._may_learn, f"{config.batch_size} rollouts to draw")
            draw = store.sample(config.batch_size, train_step=self.ledger.train_step, rng=self.draw_rng)
            self._learning = True
            epoch, batch_done = 0, False
            while not batch_done:
                seen = aged(draw, epoch)
                self.statistics.record_draw(seen)
                trained, seconds = yield Work(self._train, seen, "train", partial(self._train_duration, seen))
                epoch += 1
                batch_done = trained.dropped or epoch == config.epochs
                self._learning = not batch_done
                yield self._finish_step(seen, trained, seconds, passes=epoch if batch_done else 0)

    def _may_learn(self) -> bool:
        # What arrived too old leaves before it is counted.
        self.parts.store.retain(train_step=self.ledger.train_step)
        return self.parts.store.can_sample(self.config.batch_size)

    def _train(self, draws: list[Draw]) -> list[tuple[Trained, float]]:
        start = time.perf_counter()
        trained = self.parts.trainer.step(draws[0])
        return [(trained, busy_s(self.parts.trainer, time.perf_counter() - start))]

    def _train_duration(self, draw: Draw, _: tuple[Trained, float]) -> float:
        return self.pace.train(draw)

    def _finish_step(self, draw: Draw, trained: Trained, seconds: float, *, passes: int) -> Stepped:
        """`passes`: train steps on this batch when no further one follows, else 0."""
        ledger, store = self.ledger, self.parts.store
        ledger.train_step += 1
        self._entered = 0
        ledger.trained += len(draw)
        ledger.busy_train_s += seconds
        if ledger.train_step % self.config.publish_every == 0:
            self.parts.channel.publish(self.parts.trainer.weights(), ledger.train_step)
        followed = self.follow_up.act(store, draw, trained, ledger)
        store.retain(train_step=ledger.train_step)
        if passes:
            self.statistics.record_left(store.departures() * passes)
        rewards, self._fresh_rewards = self._fresh_rewards, []
        record = StepRecord(
            replace(ledger),
            self.compute,
            len(store),
            rewards,
            draw,
            trained,
            followed,
            self.follow_up.correct_above,
        )
        return Stepped(ledger.train_step, record, batch_done=passes > 0, train_s=seconds)

    def is_spent(self) -> bool:
        """Whether the budget of train steps or compute is used up."""
        steps, units = self.config.train_steps, self.config.compute_units
        return (steps > 0 and self.ledger.train_step >= steps) or (units > 0 and self.compute >= units)

    # ---------------------------------------------------------------- generate, score, admit

    def _generator(self, rank: int, resumed: InFlight | Generated | None) -> Process:
        config, store = self.config, self.parts.store
        size = config.group_size * config.groups_per_request
        engine = self.parts.engines[(rank - 1) % len(self.parts.engines)]
        while True:
            if resumed is None:
                yield Until(lambda: self._may_start(size), "the learner to publish newer weights")
                key = ("generate", id(engine), self.parts.channel.latest()[1])
                work = Work(self._generate(engine), self._next_request(rank), key, partial(self._duration, rank - 1))
                done = yield work
            else:
                done = resumed if isinstance(resumed, Generated) else (yield resumed)
                resumed = None
            self._in_hand[rank] = done
            yield Until(lambda: store.can_add(size), "room in the queue")
            store.add(done.rollouts, train_step=self.ledger.train_step)
            del self._in_hand[rank], self._started[rank]
            yield self._admitted(rank, done)

    def _admitted(self, rank: int, done: Generated) -> Admitted:
        n, reward = len(done.rollouts), float(done.rollouts.reward.mean())
        self.ledger.generated += n
        self.ledger.busy_generate_s += done.generate_s
        self.ledger.busy_score_s += done.score_s
        self.ledger.score_timeouts += done.score_timeouts
        self.ledger.score_crashes += done.score_crashes
        self._fresh_rewards.append((reward, n))
        self._refuse_starving(n)
        tokens = int(done.rollouts.completion_lengths.sum())
        return Admitted((rank - 1) % self.config.generators, n, reward, done.groups, tokens, done.generate_s)

    def _refuse_starving(self, n: int) -> None:
        """Raise `RunError` when rollouts leave as fast as they come while the learner waits: it would wait for ever."""
        self._entered += n
        held, config = len(self.parts.store), self.config
        # What was under way may have arrived too old; nothing else has a reason to leave.
        slots = config.generators * config.requests_per_generator
        late = slots * config.group_size * config.groups_per_request
        if self._learning or self._entered <= held + late + config.batch_size + self._awaited:
            return
        if not self.parts.store.can_sample(config.batch_size):
            raise RunError(
                f"{self._entered} rollouts entered since the last train step, {held} are held, and no batch of "
                f"{config.batch_size} can be drawn: raise buffer.capacity_bytes, or what else makes them leave"
            )

    def _may_start(self, size: int) -> bool:
        bound = self.config.max_staleness
        if bound is None or not self.consume_once:
            return True
        waiting = len(self.parts.store) + len(self._started) * size
        return size <= admissible_rollouts(
            max_staleness=bound,
            next_draw_step=self.ledger.train_step + self._learning,
            version=self.parts.channel.latest()[1],
            batch_size=self.config.batch_size,
            outstanding=waiting,
        )

    def _next_request(self, rank: int) -> list[GroupRequest]:
        if self._reissue:
            groups = self._reissue.pop(0)
        else:
            groups = tuple(range(self.ledger.groups, self.ledger.groups + self.config.groups_per_request))
            self.ledger.groups += len(groups)
        self._started[rank] = groups
        return [
            GroupRequest(
                task=self.parts.tasks.train(group),
                group_id=group,
                group_size=self.config.group_size,
                seed=(self.seed, GROUP_STREAM, group),
                sampling=self.sampling,
                birth_step=self.ledger.train_step,
            )
            for group in groups
        ]

    def _generate(self, engine: Generator) -> Callable[[list[list[GroupRequest]]], list[Generated]]:
        weights, version = self.parts.channel.latest()

        def execute(items: list[list[GroupRequest]]) -> list[Generated]:
            self._held.bring(engine, weights, version)
            start = time.perf_counter()
            requests = [request for item in items for request in item]
            finished = list(engine.stream(requests))
            generated = time.perf_counter()
            scorer = self.parts.scorer
            marked = [scored(scorer, group, request) for group, request in zip(finished, requests, strict=True)]
            decoding_s = busy_s(engine, generated - start, self.config.requests_per_generator)
            shares = decoding_s / len(items), (time.perf_counter() - generated) / len(items)
            groups = iter(marked)
            return [together([next(groups) for _ in item], [r.group_id for r in item], *shares) for item in items]

        return execute

    def _duration(self, worker: int, done: Generated) -> float:
        return self.pace.generate(worker, done.rollouts)


def busy_s(worker: Generator | Trainer, measured_s: float, at_once: int = 1) -> float:
    """What the worker itself says that its last work took, else what was measured around it, which `at_once` works
    share."""
    if hasattr(worker, "take_busy_s"):  # asked at every request and step, and `isinstance` of a protocol is slow
        return float(worker.take_busy_s())
    return measured_s / at_once
