"""Limiters: who must wait? Predicates only; the waiting is the loop's, or that of the faces in `ostinato.sharing`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from ostinato.errors import ConfigError
from ostinato.setting_checks import check_positive, check_whole

ROUNDING = 1e-6
"""Rollouts by which a band may be missed through floating point."""


class Traffic(NamedTuple):
    """What has gone through a buffer, in rollouts.

    `inserted` and `sampled` (repeats count) since the limiter's origin: when the buffer was made, cleared, or loaded
    under another limiter. There `sampled` is 0 and `inserted` what `Limiter.origin` says. `size` of `capacity` is held.
    """

    inserted: int
    sampled: int
    size: int
    capacity: int


class Limiter(Protocol):
    """Says whether an insert or a draw may go ahead now. Frozen: two with equal settings are equal."""

    def check(self, capacity: int) -> None:
        """Raise `ConfigError` when nobody could ever move at this capacity; asked at construction and resize."""

    def origin(self, size: int) -> int:
        """What `Traffic.inserted` starts from when this many rollouts are already held."""

    def can_add(self, n: int, traffic: Traffic) -> bool:
        """Whether n rollouts may be inserted."""

    def can_sample(self, n: int, traffic: Traffic) -> bool:
        """Whether a batch of n may be drawn."""


@dataclass(frozen=True, slots=True)
class MinSize:
    """Inserts never wait; draws wait until `n` rollouts are there.

    0, the paper's buffer, runs free: draws wait until a batch is there. 1: until anything is.
    """

    n: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", check_whole("min_size", self.n, least=0))

    def check(self, capacity: int) -> None:
        check_whole("capacity", capacity, least=0)
        if self.n > capacity:
            raise ConfigError(f"min_size {self.n} is never reached at a capacity of {capacity}")

    def origin(self, size: int) -> int:
        return 0

    def can_add(self, n: int, traffic: Traffic) -> bool:
        return True

    def can_sample(self, n: int, traffic: Traffic) -> bool:
        return traffic.size >= (self.n or n)


@dataclass(frozen=True, slots=True)
class BoundedQueue:
    """Inserts wait while the queue is full, draws wait while it holds less than a batch: the no-buffer baseline.

    `batch_size` and `group_size`, where told, are what one draw takes and one insert brings: a capacity at which both
    sides could wait for each other is refused.
    """

    batch_size: int = 1
    group_size: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "batch_size", check_whole("batch_size", self.batch_size, least=1))
        object.__setattr__(self, "group_size", check_whole("group_size", self.group_size, least=1))

    def check(self, capacity: int) -> None:
        check_whole("capacity", capacity, least=0)
        needed = self.batch_size + self.group_size - math.gcd(self.batch_size, self.group_size)
        if capacity < needed:
            raise ConfigError(
                f"a queue of {capacity} can hold too much for a group of {self.group_size} and too little for a batch "
                f"of {self.batch_size}: it needs a capacity of {needed}"
            )

    def origin(self, size: int) -> int:
        return 0

    def can_add(self, n: int, traffic: Traffic) -> bool:
        return traffic.size + n <= traffic.capacity

    def can_sample(self, n: int, traffic: Traffic) -> bool:
        return traffic.size >= n


@dataclass(frozen=True, slots=True)
class SamplesPerInsert:
    """Holds the mean number of draws of a rollout near `ratio`, after Reverb's SampleToInsertRatio.

    The balance is ratio * (inserted - floor) - sampled, in drawn rollouts. Draws wait while they would bring it below
    -error_buffer, inserts while they would bring it above +error_buffer; so whoever is too fast waits for the other.
    The first `floor` = max(min_size, batch_size) rollouts fill the buffer and are not counted: until they are there
    draws wait and inserts never do, and neither do they later while rules leave fewer.

    `batch_size` and `group_size`: the most that one draw takes and one insert brings. With
    error_buffer >= max(batch_size, ratio * group_size) one of both may always move, whatever happened before: inserts
    stop above error_buffer - ratio * group_size, draws below batch_size - error_buffer, which is not higher. That is
    also the default. Smaller bands are refused (`ConfigError`), as are ratios that are not positive.
    """

    ratio: float
    min_size: int = 0
    error_buffer: float | None = None
    batch_size: int = 1
    group_size: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "ratio", check_positive("samples per insert", self.ratio))
        for name, least in (("min_size", 0), ("batch_size", 1), ("group_size", 1)):
            object.__setattr__(self, name, check_whole(name, getattr(self, name), least=least))
        if self.error_buffer is not None:
            object.__setattr__(self, "error_buffer", check_positive("error_buffer", self.error_buffer))
            if self.error_buffer < self.narrowest:
                raise ConfigError(
                    f"error_buffer {self.error_buffer} lets both sides wait for each other: at {self.ratio} samples "
                    f"per insert, batches of {self.batch_size} and groups of {self.group_size} it must be at least "
                    f"{self.narrowest}"
                )

    @property
    def narrowest(self) -> float:
        """The smallest error_buffer that is accepted."""
        return max(float(self.batch_size), self.ratio * self.group_size)

    @property
    def band(self) -> float:
        """How far the balance may go to either side."""
        return self.narrowest if self.error_buffer is None else self.error_buffer

    @property
    def floor(self) -> int:
        """Rollouts that must be held before anything is drawn."""
        return max(self.min_size, self.batch_size)

    def check(self, capacity: int) -> None:
        check_whole("capacity", capacity, least=0)
        if capacity < self.floor:
            raise ConfigError(f"min_size and batch_size need {self.floor} rollouts, the capacity is {capacity}")
        if capacity < self.group_size:
            raise ConfigError(f"a group of {self.group_size} does not fit in a capacity of {capacity}")

    def origin(self, size: int) -> int:
        """What is held counts as the filling, no further: a new ratio owes nothing for the past."""
        return min(size, self.floor)

    def balance(self, inserted: int, sampled: int) -> float:
        """Draws that are due (above 0) or in advance (below 0)."""
        return self.ratio * (inserted - self.floor) - sampled

    def can_add(self, n: int, traffic: Traffic) -> bool:
        after = self.balance(traffic.inserted + n, traffic.sampled)
        return traffic.size < self.floor or after <= self.band + ROUNDING

    def can_sample(self, n: int, traffic: Traffic) -> bool:
        after = self.balance(traffic.inserted, traffic.sampled + n)
        return traffic.size >= max(self.floor, n) and after >= -self.band - ROUNDING
