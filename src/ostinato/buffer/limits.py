"""Limiters: who must wait? Predicates only; the waiting is the loop's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ostinato.errors import ConfigError


class Limiter(Protocol):
    """Says whether an insert or a draw may go ahead now."""

    def can_add(self, n: int, *, size: int, capacity: int) -> bool:
        """Whether n rollouts may be inserted into `size` of `capacity`."""

    def can_sample(self, n: int, *, size: int) -> bool:
        """Whether a batch of n may be drawn from `size` rollouts."""


@dataclass(frozen=True, slots=True)
class MinSize:
    """Inserts never wait; draws wait until `n` rollouts are there. 0, the paper's buffer: until a batch is there."""

    n: int = 0

    def __post_init__(self) -> None:
        if self.n < 0:
            raise ConfigError(f"min_size must be at least 0, got {self.n}")

    def can_add(self, n: int, *, size: int, capacity: int) -> bool:
        return True

    def can_sample(self, n: int, *, size: int) -> bool:
        return size >= (self.n or n)


@dataclass(frozen=True, slots=True)
class BoundedQueue:
    """Inserts wait while the queue is full, draws wait while it holds less than a batch: the no-buffer baseline."""

    def can_add(self, n: int, *, size: int, capacity: int) -> bool:
        return size + n <= capacity

    def can_sample(self, n: int, *, size: int) -> bool:
        return size >= n
