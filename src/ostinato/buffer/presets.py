"""Named argument lists of `ReplayBuffer`."""

from __future__ import annotations

from typing import Any

from ostinato.buffer.limits import BoundedQueue, MinSize
from ostinato.buffer.replay import ReplayBuffer
from ostinato.buffer.retention import MaxStaleness, MaxUses, Retention
from ostinato.buffer.sampling import Newest, Oldest, Sampler, Uniform
from ostinato.errors import ConfigError


def paper_fifo(
    capacity: int, *, replacement: bool = True, min_size: int = 0, max_staleness: int | None = None, **ids: Any
) -> ReplayBuffer:
    """Uniform draws from the newest `capacity` rollouts; drawing does not remove (arXiv 2604.08706, section 2)."""
    return ReplayBuffer(
        capacity,
        sampler=Uniform(replacement),
        retention=_bounded_age(max_staleness),
        limiter=MinSize(min_size),
        **ids,
    )


def no_buffer(capacity: int, *, order: str = "newest", max_staleness: int | None = None) -> ReplayBuffer:
    """The baseline: a bounded queue whose rollouts are used once, newest first (the paper) or oldest first."""
    orders: dict[str, Sampler] = {"newest": Newest(), "oldest": Oldest()}
    if order not in orders:
        raise ConfigError(f"order must be one of {sorted(orders)}, got {order!r}")
    return ReplayBuffer(
        capacity,
        sampler=orders[order],
        retention=(MaxUses(1), *_bounded_age(max_staleness)),
        limiter=BoundedQueue(),
    )


def _bounded_age(max_staleness: int | None) -> tuple[Retention, ...]:
    return () if max_staleness is None else (MaxStaleness(max_staleness),)
