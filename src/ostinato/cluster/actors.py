"""What runs in the processes: thin shells around a generator, a trainer, a store. Nothing is decided here.

Building the model is a method of its own (`start`), so that its errors arrive as they were raised.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import ray

from ostinato.cluster.holders import Holder
from ostinato.protocols import Backend, Draw, Generator, GroupRequest, Lender, Trained, Trainer
from ostinato.rollouts import Rollouts
from ostinato.shares import select_draw

GROUP = "store"
"""Concurrency group of an actor's calls to its store: they do not wait for a train step."""


def launched(kind: type, **places: float) -> Any:
    """A new actor on a node with room for it. Ray does not restart it: restarts are ours to count and to report."""
    remote: Any = ray.remote
    groups = {"concurrency_groups": {GROUP: 1}} if issubclass(kind, Holder) else {}
    return remote(max_restarts=0, **groups, **places)(kind).remote()


@dataclass(frozen=True, slots=True)
class Makers:
    """How a process gets its parts, by importable functions: `backend()`, and of it a trainer that is one of several.

    `replica` None: trainers of this backend work alone. `concurrent`: its generators take several requests at once,
    from any thread, and new weights meanwhile.
    """

    backend: Callable[[], Backend]
    replica: Callable[[Backend], Trainer] | None = None
    concurrent: bool = False


@dataclass(frozen=True, slots=True)
class Generation:
    """The groups of a request, and seconds of decoding and of fetching and loading weights (0: it had them)."""

    groups: list[Rollouts]
    busy_s: float
    load_s: float


class GeneratorActor:
    """Holds an engine. Every request says which weights it is for: a process may come and go between two requests."""

    def __init__(self) -> None:
        self._engine: Generator
        self._held: tuple[ray.ObjectRef[Any], int] | None = None
        self._lock = threading.Lock()

    def start(self, make: Callable[[], Backend]) -> int:
        """Build the engine; returns the process id."""
        self._engine = make().generator()
        start = getattr(self._engine, "start", None)
        if start is not None:  # an engine that would start at its first request, which has less time
            start()
        return os.getpid()

    def generate(
        self, requests: Sequence[GroupRequest], weights: tuple[ray.ObjectRef[Any], int], version: int, exact: bool
    ) -> Generation:
        """The group of each request under these weights; not `exact`: or under newer ones, where another request at the
        same engine has brought them. `weights`: reference and serial, in a tuple: a bare reference Ray would fetch at
        every call, needed or not."""
        load_s = 0.0
        with self._lock:
            begun = time.perf_counter()
            if self._held is None or (self._held[0] != weights[0] if exact else self._held[1] < weights[1]):
                self._engine.load(ray.get(weights[0]), version)
                self._held = weights
                load_s = time.perf_counter() - begun
        begun = time.perf_counter()
        groups = list(self._engine.stream(requests))
        return Generation(groups, time.perf_counter() - begun, load_s)


class StoreActor(Holder):
    """A process that holds the buffer and nothing else."""


class TrainerActor(Holder):
    """One of T trainers, with T above 1 a rank of a torch.distributed group; it may hold a shard of the buffer."""

    def __init__(self) -> None:
        self._trainer: Trainer

    def address(self) -> tuple[str, int]:
        """Where the group can meet: this node, a free port."""
        with socket.socket() as probe:
            probe.bind(("", 0))
            node: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
            return node, int(probe.getsockname()[1])

    def start(self, makers: Makers, rank: int, trainers: int, meeting: tuple[str, int] | None, timeout_s: float) -> int:
        """Build the trainer, in a group of `trainers` that meets at `meeting`; returns the process id."""
        if meeting is None:
            self._trainer = makers.backend().trainer()
            return os.getpid()
        join_group(rank, trainers, meeting, timeout_s)
        assert makers.replica is not None
        self._trainer = makers.replica(makers.backend())
        return os.getpid()

    def step(self, draw: Draw, rows: np.ndarray[Any, Any] | None) -> tuple[Trained, float]:
        """Train on these rows of the draw, None: all; what the trainer tells, and its busy seconds."""
        begun = time.perf_counter()
        trained = self._trainer.step(draw if rows is None else select_draw(draw, rows))
        return trained, time.perf_counter() - begun

    def weights(self) -> dict[str, Any]:
        """The policy as arrays, which Ray copies before this process does anything else."""
        trainer = self._trainer
        held = trainer.lent() if isinstance(trainer, Lender) else trainer.weights()
        return {name: np.asarray(value) for name, value in held.items()}

    def save(self, directory: Path) -> None:
        """`Trainer.save`."""
        self._trainer.save(directory)

    def load(self, directory: Path) -> None:
        """`Trainer.load`."""
        self._trainer.load(directory)


def join_group(rank: int, trainers: int, meeting: tuple[str, int], timeout_s: float) -> None:
    """Make this process a rank of the default torch.distributed group: gloo, and nccl where there is a GPU."""
    import torch

    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = meeting[0], str(meeting[1])
    torch.distributed.init_process_group(
        "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo",
        rank=rank,
        world_size=trainers,
        timeout=timedelta(seconds=timeout_s),
    )
