"""The parts of a run, as processes on a cluster."""

from __future__ import annotations

from typing import Any

import ray

from ostinato.cluster.actors import GROUP, Makers, StoreActor, launched
from ostinato.cluster.evaluator import SharedGenerators
from ostinato.cluster.generator import RayGenerator
from ostinato.cluster.runtime import Places
from ostinato.cluster.store import RemoteStore
from ostinato.cluster.traffic import Traffic
from ostinato.cluster.trainer import RayTrainer
from ostinato.cluster.weights import WeightShelf
from ostinato.config import RunConfig
from ostinato.errors import ConfigError
from ostinato.loop.faults import FaultLog
from ostinato.protocols import Backend, Scorer, Store, TaskStream


class RayBackend:
    """A `protocols.Backend` around `local`, whose tasks and scorer stay in this process.

    W generators and T trainers are actors, made by `makers`. Generators outlive a session: the next one, after trainers
    were lost, finds them again. `faults` is where they are written down. `connect` must have been called; `close` ends
    all actors. Raises `ConfigError` when the recipe has several trainers and those of the backend work alone.
    """

    def __init__(self, config: RunConfig, local: Backend, makers: Makers, faults: FaultLog) -> None:
        if config.loop.trainers > 1 and makers.replica is None:
            raise ConfigError(
                f"loop.trainers = {config.loop.trainers}: trainers of model.backend = {config.model.backend} work "
                "alone on a cluster, set it to 1"
            )
        self._config, self._local, self._makers, self.faults = config, local, makers, faults
        self._places = Places.of(config)
        self._shelf, self._traffic = WeightShelf(), Traffic()
        self._trainer: RayTrainer | None = None
        self._generators: list[RayGenerator] = []
        self._store_actor: Any = None
        self._handed_out = 0

    @property
    def tasks(self) -> TaskStream:
        """Those of the local backend."""
        return self._local.tasks

    @property
    def scorer(self) -> Scorer:
        """That of the local backend."""
        return self._local.scorer

    def describe(self) -> str:
        """The policy, and where it works."""
        loop = self._config.loop
        return f"{self._local.describe()}; Ray: {loop.generators} generators, {loop.trainers} trainers"

    def trainer(self) -> RayTrainer:
        """T trainers at the initial weights; those of an earlier call end."""
        if self._trainer is not None:
            self._trainer.close()
        self._handed_out = 0
        loop, settings = self._config.loop, self._config.ray
        self._trainer = RayTrainer(loop.trainers, self._makers, self._places.trainer, settings, self._traffic)
        return self._trainer

    def generator(self) -> SharedGenerators:
        """An engine for evaluations: all generators of the run."""
        return SharedGenerators(self._generators, self._shelf)

    def concurrent_generator(self) -> RayGenerator:
        """The next of the W generators, started at its first turn."""
        rank = self._handed_out
        self._handed_out += 1
        if rank == len(self._generators):
            self._generators.append(
                RayGenerator(
                    rank,
                    self._makers,
                    self._places.generator,
                    self._config.ray,
                    self._shelf,
                    self._traffic,
                    self.faults,
                    groups_per_request=self._config.loop.groups_per_request,
                    requests_at_once=self._config.loop.requests_per_generator,
                )
            )
        return self._generators[rank]

    def store(self) -> Store | None:
        """An empty store where the recipe wants it, None: in this process. Shards go to the trainers made last."""
        if self._config.ray.store == "driver":
            return None
        if self._config.ray.store == "shards":
            assert self._trainer is not None
            return RemoteStore(self._trainer.actors, self._config)
        if self._store_actor is not None:
            ray.kill(self._store_actor)
        self._store_actor = launched(StoreActor, num_cpus=0)
        return RemoteStore([self._store_actor], self._config)

    def numbers(self) -> dict[str, float]:
        """What was moved between processes."""
        return self._traffic.numbers()

    def process_ids(self) -> dict[str, list[int]]:
        """Of generators, trainers and a buffer of its own, once they have started."""
        store = self._store_actor
        return {
            "generators": [one.process_id() for one in self._generators],
            "trainers": self._trainer.process_ids if self._trainer else [],
            "store": [] if store is None else [ray.get(store.process_id.options(concurrency_group=GROUP).remote())],
        }

    def close(self) -> None:
        """End all actors."""
        for one in self._generators:
            one.close()
        if self._store_actor is not None:
            ray.kill(self._store_actor)
        if self._trainer is not None:
            self._trainer.close()
