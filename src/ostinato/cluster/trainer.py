"""T trainer processes that take one optimizer step together, behind the protocol of one trainer."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayTaskError

from ostinato.cluster.actors import Makers, TrainerActor, launched
from ostinato.cluster.failures import DEATHS, into_store, is_loss, raised, reason_of
from ostinato.cluster.holders import DrawElsewhere
from ostinato.cluster.traffic import Traffic
from ostinato.cluster.weights import StoredWeights
from ostinato.config import RayConfig
from ostinato.errors import RunError, StateLostError
from ostinato.interrupt import interrupted_at_once
from ostinato.protocols import Draw, Trained, Weights
from ostinato.shares import in_draw_order, token_shares

GRACE_S = 10.0
"""How long the others have to answer once one trainer has raised an error: a dead peer shows by then."""


class RayTrainer:
    """A `protocols.Trainer` made of `trainers` actors, ranks of one torch.distributed group where there are several.

    Raises `StateLostError` when one of them dies or does not answer in time: all are then ended, for what the others
    hold may be half a step ahead. What a trainer itself raises is raised as it is.
    """

    def __init__(
        self, trainers: int, makers: Makers, places: dict[str, float], settings: RayConfig, traffic: Traffic
    ) -> None:
        self._settings, self._traffic = settings, traffic
        self._trainers, self._places, self._busy_s = trainers, places, 0.0
        self.actors = [launched(TrainerActor, **places) for _ in range(trainers)]
        try:
            meeting = None if trainers == 1 else self._begun([self.actors[0].address.remote()])[0]
            calls = [
                one.start.remote(makers, rank, trainers, meeting, settings.train_timeout_s)
                for rank, one in enumerate(self.actors)
            ]
            self.process_ids: list[int] = self._begun(calls)
        except BaseException:
            self.close()
            raise

    def step(self, draw: Draw) -> Trained:
        """One optimizer step on the batch, dealt out by tokens; figures in the order of the draw."""
        begun, shares = time.perf_counter(), None
        # Put there once for all trainers of a node, unless it lies there already.
        payload = draw.payload if isinstance(draw, DrawElsewhere) else (into_store(draw),)
        if len(payload) < self._trainers:
            shares = token_shares(draw.rollouts.lengths, self._trainers)
        calls = [
            one.step.remote(payload[rank % len(payload)], shares and shares[rank])
            for rank, one in enumerate(self.actors)
        ]
        told = self._all(calls, self._settings.train_timeout_s)
        busy_s = max(seconds for _, seconds in told)
        self._busy_s += busy_s
        moved = 0 if isinstance(draw, DrawElsewhere) else draw.rollouts.nbytes
        self._traffic.draw(moved, time.perf_counter() - begun - busy_s)
        trained: Trained = told[0][0]
        return trained if shares is None else in_draw_order(trained, shares)

    def take_busy_s(self) -> float:
        """Seconds of training in `step` since the last call, of the slowest trainer."""
        taken, self._busy_s = self._busy_s, 0.0
        return taken

    def weights(self) -> Weights:
        """The policy as it is now, in the object store; nobody waits for it here."""
        refs = [one.weights.remote() for one in self.actors]
        return StoredWeights(refs[0])

    def save(self, directory: Path) -> None:
        """`Trainer.save`, by the first trainer. Raises `RunError` when it writes where this process cannot read."""
        self._all([one.save.remote(directory) for one in self.actors], self._settings.train_timeout_s)
        if not directory.is_dir():
            raise RunError(
                f"the trainer's node wrote {directory} to a disk of its own: put --out on a file system that all share"
            )

    def load(self, directory: Path) -> None:
        """`Trainer.load`, read by the first trainer."""
        self._all([one.load.remote(directory) for one in self.actors], self._settings.start_timeout_s)

    def close(self) -> None:
        """End all actors."""
        for one in self.actors:
            ray.kill(one)

    def _begun(self, calls: Sequence[ray.ObjectRef[Any]]) -> list[Any]:
        """As `_all`, while the actors start. Too late is no loss, which would be put right by starting them again."""
        limit_s = self._settings.start_timeout_s
        late = RunError(
            f"trainers did not start within {limit_s:g} s: their model takes longer to load (raise "
            f"ray.start_timeout_s), or no node has {self._places} free for each of {self._trainers}"
        )
        with interrupted_at_once():  # a busy cluster may have no place for long
            return self._all(calls, limit_s, late)

    def _all(self, calls: Sequence[ray.ObjectRef[Any]], limit_s: float, late: Exception | None = None) -> list[Any]:
        """The results of all calls, in their order. The first process found dead ends the wait. `late`: what is raised
        after `limit_s`, None: the trainers are lost."""
        deadline, waiting, failure = time.monotonic() + limit_s, list(calls), None
        while waiting:
            ready, waiting = ray.wait(waiting, timeout=max(0.0, deadline - time.monotonic()))
            if not ready and failure is None:
                if late is not None:
                    raise late
                self._lose(f"no answer within {limit_s:g} s")
            if not ready:
                break
            try:
                ray.get(ready[0])
            except RayTaskError as error:
                if is_loss(error):
                    self._lose(reason_of(error))
                failure = failure or raised(error, "a trainer")
                deadline = min(deadline, time.monotonic() + GRACE_S)
            except DEATHS as error:
                self._lose(reason_of(error))
        if failure is not None:
            raise failure
        return list(ray.get(list(calls)))

    def _lose(self, why: str) -> None:
        self.close()
        raise StateLostError(f"a trainer is lost: {why}")
