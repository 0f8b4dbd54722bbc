"""The loop: generate, score, admit, learn, publish, under a clock.

W generators and one learner are processes (see `loop.clock`). The learner is T data-parallel replicas of one optimizer
step: T enters as its rate, C/T, and as the number of buffer shards. Nothing here logs: the loop yields events.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ostinato.advantages import score_group
from ostinato.config import LoopConfig
from ostinato.errors import DataError, OstinatoError
from ostinato.loop.clock import Clock, Event, InFlight, Process, Until, Work
from ostinato.loop.events import Admitted, Stepped
from ostinato.loop.ledger import Ledger
from ostinato.protocols import (
    Draw,
    Generator,
    GroupRequest,
    Sampling,
    Scorer,
    Store,
    TaskStream,
    Trainer,
    WeightChannel,
)
from ostinato.rollouts import Rollouts, concatenate
from ostinato.staleness import admissible_rollouts
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


@dataclass(frozen=True, slots=True)
class Generated:
    """What a generator's request came back as."""

    rollouts: Rollouts
    groups: tuple[int, ...]
    generate_s: float = 0.0
    score_s: float = 0.0


class Loop:
    """State of a run between two events. `consume_once` says that the store is a queue of single use."""

    def __init__(self, config: LoopConfig, sampling: Sampling, parts: Parts, *, seed: int, consume_once: bool) -> None:
        self.config = config
        self.sampling = sampling
        self.parts = parts
        self.seed = seed
        self.consume_once = consume_once
        self.ledger = Ledger()
        self.statistics = ReplayStatistics()
        self.draw_rng = np.random.default_rng([seed, DRAW_STREAM])
        self._learning = False
        self._started: dict[int, tuple[int, ...]] = {}
        self._in_hand: dict[int, Generated] = {}
        self._loaded: dict[int, int] = {}
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
        resumed = resumed or {}
        for rank, kept in resumed.items():
            self._started[rank] = (kept.result if isinstance(kept, InFlight) else kept).groups
        workers = [self._generator(rank, resumed.get(rank)) for rank in range(1, self.config.generators + 1)]
        return clock.drive([self._learner(), *workers])

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
            for epoch in range(config.epochs):
                seen = aged(draw, epoch)
                self.statistics.record_draw(seen)
                metrics, seconds = yield Work(self._train, seen, "train", lambda _: 1.0 / config.trainers)
                batch_done = epoch == config.epochs - 1
                self._learning = not batch_done
                yield self._finish_step(seen, metrics, seconds, batch_done)

    def _may_learn(self) -> bool:
        # What arrived too old leaves before it is counted.
        self.parts.store.retain(train_step=self.ledger.train_step)
        return self.parts.store.can_sample(self.config.batch_size)

    def _train(self, draws: list[Draw]) -> list[tuple[dict[str, float], float]]:
        start = time.perf_counter()
        metrics = self.parts.trainer.step(draws[0])
        return [(metrics, time.perf_counter() - start)]

    def _finish_step(self, draw: Draw, metrics: dict[str, float], seconds: float, batch_done: bool) -> Stepped:
        ledger = self.ledger
        ledger.train_step += 1
        ledger.trained += len(draw)
        ledger.busy_train_s += seconds
        if ledger.train_step % self.config.publish_every == 0:
            self.parts.channel.publish(self.parts.trainer.weights(), ledger.train_step)
        self.parts.store.retain(train_step=ledger.train_step)
        self.statistics.record_left(self.parts.store.departures() * self.config.epochs)
        return Stepped(ledger.train_step, self._record(draw, metrics), batch_done)

    def _record(self, draw: Draw, metrics: dict[str, float]) -> dict[str, float | None]:
        rewards, self._fresh_rewards = self._fresh_rewards, []
        fresh = sum(mean * n for mean, n in rewards) / sum(n for _, n in rewards) if rewards else None
        return {
            "compute": self.compute,
            **{key: float(value) for key, value in self.ledger.state_dict().items()},
            "mu_measured": self.ledger.mu_measured(),
            "buffer_size": float(len(self.parts.store)),
            "reward": float(draw.rollouts.reward.mean()),
            "fresh_reward": fresh,
            "informative_fraction": float(np.mean(draw.rollouts.group_reward_std > 0)),
            "completion_tokens": float(draw.rollouts.completion_lengths.mean()),
            "truncated_fraction": float(draw.rollouts.truncated.mean()),
            "staleness": float(draw.staleness.mean()),
            "residence": float(draw.residence.mean()),
            "uses": float(draw.uses.mean()) + 1,
            "unique_fraction": len(np.unique(draw.rollout_ids)) / len(draw),
            **metrics,
        }

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
                work = Work(self._generate(engine), self._next_request(rank), key, self._duration)
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
        self._fresh_rewards.append((reward, n))
        return Admitted(rank - 1, n, reward)

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
            if self._loaded.get(id(engine)) != version:
                engine.load(weights, version)
                self._loaded[id(engine)] = version
            start = time.perf_counter()
            finished = list(engine.stream([request for item in items for request in item]))
            generated = time.perf_counter()
            finished = [self._scored(group, request) for group, request in zip(finished, _flat(items), strict=True)]
            shares = (generated - start) / len(items), (time.perf_counter() - generated) / len(items)
            groups = iter(finished)
            return [
                Generated(concatenate([next(groups) for _ in item]), tuple(r.group_id for r in item), *shares)
                for item in items
            ]

        return execute

    def _scored(self, group: Rollouts, request: GroupRequest) -> Rollouts:
        if len(group) != request.group_size:
            raise DataError(f"group {request.group_id} came back with {len(group)} of {request.group_size} rollouts")
        try:
            rewards = self.parts.scorer.score(group, [request.task] * len(group))
        except OstinatoError:
            raise
        except Exception as error:
            where = f"group {request.group_id}, prompt {request.task.prompt[:80]!r}"
            raise DataError(f"the scorer failed on {where}: {type(error).__name__}: {error}") from error
        return score_group(group, rewards)

    def _duration(self, done: Generated) -> float:
        return self.config.mu * len(done.rollouts) / self.config.batch_size


def aged(draw: Draw, epoch: int) -> Draw:
    """The same batch at its next consecutive train step: one step older, used once more."""
    if epoch == 0:
        return draw
    return replace(
        draw,
        staleness=draw.staleness + epoch,
        residence=draw.residence + epoch,
        uses=draw.uses + epoch,
        steps_since_last_use=np.ones_like(draw.steps_since_last_use),
    )


def _flat(items: list[list[GroupRequest]]) -> list[GroupRequest]:
    return [request for item in items for request in item]
