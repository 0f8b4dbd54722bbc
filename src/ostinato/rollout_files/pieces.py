"""Parts small enough: of bounded rollouts and bytes."""

from __future__ import annotations

from collections.abc import Iterator

from ostinato.rollouts import Rollouts


def pieces(part: Rollouts, *, rollouts: int, nbytes: int | None = None) -> Iterator[Rollouts]:
    """`part` in order, in pieces of at most so many rollouts and about so many bytes, at least one rollout each."""
    count = rollouts
    if nbytes is not None:
        count = max(1, min(count, len(part) * nbytes // max(1, part.nbytes)))
    for first in range(0, len(part), count):
        rows = range(first, min(first + count, len(part)))
        yield part if len(rows) == len(part) else part.select(rows)
