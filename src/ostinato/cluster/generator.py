"""A generator in a process somewhere on the cluster, which may die or hang at any moment."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import ray
from ray.exceptions import RayTaskError

from ostinato.cluster.actors import Generation, GeneratorActor, Makers, launched
from ostinato.cluster.failures import DEATHS, TOO_SLOW, is_loss, one_line, raised, reason_of
from ostinato.cluster.traffic import Traffic
from ostinato.cluster.weights import StoredWeights, WeightShelf
from ostinato.config import RayConfig
from ostinato.errors import OstinatoError, RunError, StateLostError
from ostinato.loop.faults import FaultLog
from ostinato.protocols import GroupRequest, Weights
from ostinato.rollouts import Rollouts

LOOK_S = 0.5
"""How often a thread that waits for an answer looks whether the answer is still wanted."""


class RayGenerator:
    """A `protocols.Generator`, and `protocols.Interruptible`, whose work is done by an actor. Any thread may call it.

    Weights are not sent by `load`: each request names them, and the actor fetches what it does not hold. So an actor
    that was started again needs nothing but its requests, which carry their seeds: it gives the same groups.
    Raises `RunError` when it has failed more than `settings.max_restarts` times in a row at one request.
    `groups_per_request`: groups that `settings.generate_timeout_s` is meant for; more of them have more time.
    `requests_at_once`: from as many threads; an engine that is not concurrent does one after the other.
    """

    def __init__(
        self,
        rank: int,
        makers: Makers,
        places: dict[str, float],
        settings: RayConfig,
        shelf: WeightShelf,
        traffic: Traffic,
        faults: FaultLog,
        *,
        groups_per_request: int = 1,
        requests_at_once: int = 1,
    ) -> None:
        self._name, self._rank = f"generator {rank}", rank
        self._makers, self._places, self._settings = makers, places, settings
        self._shelf, self._traffic, self._faults = shelf, traffic, faults
        self._groups_per_request, self._requests_at_once = groups_per_request, requests_at_once
        self._exact = not (makers.concurrent and requests_at_once > 1)
        self._lock = threading.Lock()
        self._wanted: tuple[StoredWeights, int] | None = None
        self._calls, self._given_up = itertools.count(), -1
        self._busy = threading.local()
        self._actor, self._started = self._launch()

    def load(self, weights: Weights, version: int) -> None:
        """Everything asked for from now on is for these weights."""
        self._wanted = self._shelf.stored(weights), version

    def stream(self, requests: Sequence[GroupRequest]) -> Iterator[Rollouts]:
        """All groups, once the last of them is finished."""
        if self._wanted is None:
            raise RunError(f"{self._name} was asked for rollouts before it was given weights")
        answer = self.generate(requests, *self._wanted)
        self._busy.seconds = getattr(self._busy, "seconds", 0.0) + answer.busy_s
        yield from answer.groups

    def take_busy_s(self) -> float:
        """Seconds of decoding in `stream`, called by this thread, since its last call; failed attempts left out.

        Requests that an engine decodes at once share its time.
        """
        taken: float = getattr(self._busy, "seconds", 0.0)
        self._busy.seconds = 0.0
        return taken if self._exact else taken / self._requests_at_once

    def generate(self, requests: Sequence[GroupRequest], weights: StoredWeights, version: int) -> Generation:
        """The group of each request under these weights, however often the actor has to be started for it."""
        failures, call = 0, next(self._calls)
        while True:
            actor, started = self._actor, self._started
            try:
                self._ready(started, call)
                return self._answer(actor, requests, weights, version, call)
            except TOO_SLOW:
                fault, why = "generator_timed_out", f"no answer within {self._limit_s(requests):g} s"
            except DEATHS as error:
                fault, why = "generator_died", reason_of(error)
            failures += 1
            if failures > self._settings.max_restarts:
                raise RunError(
                    f"{self._name} failed {failures} times in a row, the last time: {why}; raise "
                    "ray.generate_timeout_s if its completions are long, ray.max_restarts if its node is unsteady"
                )
            fault = fault if self._replace(actor) else "reissued"
            self._faults.record(fault, generator=self._rank, reissued_groups=len(requests), why=why)

    def process_id(self) -> int:
        """Of the actor, which is waited for."""
        return self._ready(self._started, next(self._calls))

    def give_up(self) -> None:
        """Nobody waits any more for what has been asked for until now; the actor stays, and may be busy with it."""
        self._given_up = next(self._calls)

    def close(self) -> None:
        """End the actor."""
        ray.kill(self._actor)

    def _launch(self) -> tuple[Any, ray.ObjectRef[Any]]:
        threads = {} if self._exact else {"max_concurrency": self._requests_at_once + 1}
        actor = launched(GeneratorActor, **threads, **self._places)
        return actor, actor.start.remote(self._makers.backend)

    def _replace(self, failed: Any) -> bool:
        """Start another actor in place of `failed`; False: another thread has done it."""
        with self._lock:
            if self._actor is not failed:
                return False
            ray.kill(failed)
            self._actor, self._started = self._launch()
            return True

    def _ready(self, started: ray.ObjectRef[Any], call: int) -> int:
        limit_s = self._settings.start_timeout_s
        try:
            return int(self._result(started, limit_s, call))
        except TOO_SLOW:
            raise RunError(
                f"{self._name} did not start within {limit_s:g} s: its model takes longer to load (raise "
                f"ray.start_timeout_s), or no node has {self._places} free"
            ) from None
        except RayTaskError as error:
            raise raised(error, self._name) from None

    def _limit_s(self, requests: Sequence[GroupRequest]) -> float:
        size = max(1.0, len(requests) / self._groups_per_request)
        return self._settings.generate_timeout_s * size * self._requests_at_once

    def _result(self, ref: ray.ObjectRef[Any], limit_s: float, call: int) -> Any:
        """What `ray.get` does, for as long as this call of `generate` is wanted."""
        deadline = time.monotonic() + limit_s
        while not ray.wait([ref], timeout=max(0.0, min(LOOK_S, deadline - time.monotonic())))[0]:
            if call < self._given_up:
                raise RunError(f"{self._name} was given up: the run has ended")
            if time.monotonic() >= deadline:
                raise TOO_SLOW
        return ray.get(ref)

    def _answer(
        self, actor: Any, requests: Sequence[GroupRequest], weights: StoredWeights, version: int, call: int
    ) -> Generation:
        begun = time.perf_counter()
        try:
            ref = actor.generate.remote(list(requests), (weights.ref, weights.serial), version, self._exact)
            answer: Generation = self._result(ref, self._limit_s(requests), call)
        except RayTaskError as error:
            if is_loss(error):
                raise StateLostError(f"weights of version {version} are gone: {one_line(error.cause)}") from error
            failure = raised(error, self._name)
            raise failure from (None if isinstance(failure, OstinatoError) else error)
        for group in answer.groups:
            oldest = group.policy_version_min
            if (oldest != version if self._exact else oldest < version).any():
                raise RunError(
                    f"{self._name} was asked for rollouts of version {version}, got {sorted(set(oldest.tolist()))}"
                )
        self._traffic.groups(answer, time.perf_counter() - begun)
        return answer
