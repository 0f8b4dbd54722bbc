"""Who takes part: the protocol of a contestant and the list of peers, each imported only when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, Protocol

from .batches import Rows, verify
from .profiles import GROUP_SIZE, Profile, Record, Source


class Contestant(Protocol):
    """A buffer filled with the records of a source. Batches are in the contestant's own form until `rows` is asked."""

    def convert(self, records: Sequence[Record]) -> Any:
        """Bring the records into the form that `insert` takes."""

    def insert(self, converted: Any) -> Any:
        """Put them in; the oldest leave."""

    def packed(self, n: int) -> Any:
        """Draw n rollouts, tokens one after the other."""

    def padded(self, n: int) -> Any:
        """Draw n rollouts, one a line."""

    def packed_rows(self, batch: Any) -> Rows:
        """What `packed` gave, for the check."""

    def padded_rows(self, batch: Any) -> Rows:
        """What `padded` gave, for the check."""


PEERS = {
    "deque": "peer_deque:Deque",
    "torchrl LazyStackStorage": "peer_torchrl:LazyStack",
    "torchrl LazyTensorStorage": "peer_torchrl:Padded",
    "cpprb": "peer_cpprb:Uniform",
}
PRIORITIZED = {
    "cpprb PrioritizedReplayBuffer": "peer_cpprb:Prioritized",
    "torchrl PrioritizedSampler": "peer_torchrl:Prioritized",
}
ELSEWHERE = "the ratio to FreshPER's released code is checked elsewhere: it is on no registry"


class AbsentError(Exception):
    """A peer that is not installed or does not load here."""


class Field:
    """The contestants of one profile, opened, filled and checked when first asked for."""

    def __init__(self, source: Source, subjects: Mapping[str, Callable[[], Contestant]]) -> None:
        self.source = source
        self._subjects = subjects
        self._open: dict[str, Contestant | AbsentError] = {}

    def __getitem__(self, name: str) -> Contestant:
        """The filled contestant. Raises `AbsentError`, or `WrongBatchError` for batches that are not what went in."""
        if name not in self._open:
            self._open[name] = self._opened(name)
        found = self._open[name]
        if isinstance(found, AbsentError):
            raise found
        return found

    def _opened(self, name: str) -> Contestant | AbsentError:
        try:
            own = self._subjects.get(name)
            contestant = own() if own else opened(name, self.source.profile, len(self.source))
        except AbsentError as absent:
            return absent
        fill(contestant, self.source)
        check(name, contestant, self.source)
        return contestant


def opened(name: str, profile: Profile, n: int) -> Contestant:
    """An empty peer of capacity n. Raises `AbsentError` when it does not load."""
    module, _, kind = (PEERS | PRIORITIZED)[name].partition(":")
    try:
        contestant: Contestant = getattr(import_module(f".{module}", __package__), kind)(profile, n)
    except (ImportError, RuntimeError, OSError) as error:  # what is not installed, and what was built for another torch
        raise AbsentError(f"{name}: {error}") from error
    return contestant


def fill(contestant: Contestant, source: Source, turnovers: float = 1.25) -> None:
    """Fill a contestant past its capacity, so that the oldest have left."""
    stream = source.groups()
    for _ in range(int(turnovers * len(source)) // GROUP_SIZE):
        contestant.insert(contestant.convert(next(stream)))


def check(name: str, contestant: Contestant, source: Source) -> None:
    """Raises `WrongBatchError` unless a packed and a padded batch hold what was put in."""
    for n in (60, 512):
        verify(f"{name}, packed", contestant.packed_rows(contestant.packed(n)), source, n)
        verify(f"{name}, padded", contestant.padded_rows(contestant.padded(n)), source, n)
