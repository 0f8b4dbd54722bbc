"""A run where its recipe wants it: in this process, or on a Ray cluster, again and again when its trainers are lost."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ostinato.cli.backends import environment, open_backend
from ostinato.config import RunConfig
from ostinato.errors import MissingExtraError, RunError, StateLostError
from ostinato.loop.faults import FAULTS_FILE, FaultLog
from ostinato.loop.run_directory import checkpoints
from ostinato.loop.session import Observer, Session
from ostinato.protocols import Backend, Store, Trainer

if TYPE_CHECKING:
    from ostinato.cluster import RayBackend

Open = Callable[[RunConfig], Backend]


class Runtime:
    """Runs sessions of one recipe in one directory. `meters`, `store`: see `Session`."""

    def __init__(
        self,
        config: RunConfig,
        directory: Path,
        backend: Backend,
        faults: FaultLog,
        *,
        meters: Callable[[], Mapping[str, float]] = dict,
        store: Callable[[], Store | None] = lambda: None,
    ) -> None:
        self._config, self._directory, self._backend, self._faults = config, directory, backend, faults
        self._meters, self._store = meters, store

    @classmethod
    def on_ray(cls, config: RunConfig, directory: Path, backend: RayBackend) -> Runtime:
        """The same on a cluster."""
        return cls(config, directory, backend, backend.faults, meters=backend.numbers, store=backend.store)

    def run(self, stop: Callable[[], bool], *, resume: bool, observer: Observer = lambda record: None) -> bool:
        """`Session.run`, from the last checkpoint again each time trainers are lost.

        Raises `RunError` when they are lost more than `ray.max_restarts` times in a row without a new checkpoint.
        """
        in_a_row, reached = 0, None
        while True:
            try:
                session = Session(
                    self._config,
                    self._backend,
                    self._directory,
                    resume=resume,
                    observer=observer,
                    about=environment(self._backend),
                    faults=self._faults,
                    meters=self._meters,
                    store=self._store,
                )
                return session.run(stop)
            except StateLostError as error:
                newest = checkpoints(self._directory)[-1:]
                in_a_row = 1 if newest != reached else in_a_row + 1
                reached, resume = newest, True
                self._faults.record("state_lost", why=str(error))
                if in_a_row > self._config.ray.max_restarts:
                    raise RunError(
                        f"trainers were lost {in_a_row} times in a row without a new checkpoint, the last time: "
                        f"{error}; lower checkpoint_every, or raise ray.max_restarts"
                    ) from error


@contextmanager
def open_runtime(config: RunConfig, directory: Path, open_local: Open = open_backend) -> Iterator[Runtime]:
    """What runs the recipe while the block lasts; `open_local` opens the backend in this process."""
    faults = FaultLog(directory / FAULTS_FILE)
    if config.runtime == "local":
        yield Runtime(config, directory, open_local(config), faults)
        return
    try:
        from ostinato.cluster import RayBackend, connect, disconnect
        from ostinato.cluster.actors import Makers
    except ModuleNotFoundError as error:
        raise MissingExtraError(error.name or "ray", "ray") from error
    connect(config)
    try:
        with _without_gpus():  # they are for the actors; Ray has counted them by now
            local = open_local(config)
        replica = replica_of if config.model.backend == "hf" else None
        makers = Makers(partial(open_backend, config), replica, concurrent=config.generator == "vllm")
        backend = RayBackend(config, local, makers, faults)
        yield Runtime.on_ray(config, directory, backend)
    finally:
        disconnect()


def replica_of(backend: Any) -> Trainer:
    """A trainer of the hf backend that is one of several, in the process group that has been joined."""
    from ostinato.backends.hf.replicas import Replicas

    trainer: Trainer = backend.trainer(Replicas.of_group())
    return trainer


@contextmanager
def _without_gpus() -> Iterator[None]:
    before = os.environ.get("CUDA_VISIBLE_DEVICES")
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    try:
        yield
    finally:
        if before is None:
            del os.environ["CUDA_VISIBLE_DEVICES"]
        else:
            os.environ["CUDA_VISIBLE_DEVICES"] = before
