"""Many rollouts of 1,000 tokens, bounded by bytes: memory over ten turnovers, and costs beside those of 20,000."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from itertools import cycle
from typing import Any

import numpy as np

from ostinato.buffer import ReplayBuffer, Workspace
from ostinato.buffer.sampling import Prioritized
from ostinato.rollouts import Rollouts

from .machine import resident_bytes
from .profiles import GROUP_SIZE, PAYLOAD_BYTES_PER_TOKEN
from .results import Line, judged, most
from .subject import NUMBA
from .timing import Pace, at_most, race

TOKENS, PROMPT, SMALL, TURNOVERS = 1000, 128, 20_000, 10
GROUPS = 512  # that take turns
SECONDS_PER_MILLION_ADDED = 25.0


def million(n: int, *, quick: bool = False) -> list[Line]:
    """n rollouts; prints as it goes, since it takes minutes and n x 9 KB of memory."""
    turnovers = 2 if quick else TURNOVERS
    expected = SECONDS_PER_MILLION_ADDED * n * turnovers / 1e6
    print(
        f"{n:,} rollouts, {n * TOKENS * PAYLOAD_BYTES_PER_TOKEN / 1e9:.1f} GB, about {expected / 60:.1f} minutes",
        flush=True,
    )
    groups = _groups()
    small, large = (_filled(count, groups) for count in (SMALL, n))
    resident, added_s = [resident_bytes()], []
    for _ in range(turnovers):
        start = time.process_time()
        for _ in range(n // GROUP_SIZE):
            large.add(next(groups), train_step=0)
        added_s.append((time.process_time() - start) / n)
        resident.append(resident_bytes())
        print(f"  {1e6 * added_s[-1]:.2f} us a rollout, {resident[-1] / 1e9:.3f} GB resident", flush=True)
    payload = len(large) * TOKENS * PAYLOAD_BYTES_PER_TOKEN
    profile, held = (
        "1,000",
        f"{len(large):,} rollouts held, {large.nbytes / 1e9:.2f} of {large.capacity_bytes or 0:.3g} bytes",
    )
    lines = [
        judged(
            "1M",
            profile,
            f"resident after {turnovers} turnovers / after filling",
            resident[-1] / resident[0],
            "x",
            must=most(1.02),
            beside=held,
        ),
        judged(
            "1M",
            profile,
            "highest / lowest resident after a turnover",
            max(resident) / min(resident),
            "x",
            must=most(1.02),
        ),
        judged("1M", profile, "allocated_bytes / payload", large.allocated_bytes / payload, "x", must=most(1.05)),
        judged("1M", profile, "slowest / fastest turnover, adding", max(added_s) / min(added_s), "x"),
    ]
    lines += _costs(small, large, groups)
    print(*lines, sep="\n")
    return lines


def _costs(small: ReplayBuffer, large: ReplayBuffer, groups: Iterator[Rollouts]) -> list[Line]:
    rng, lines = np.random.default_rng(0), list[Line]()
    for what, operation in _operations(rng, groups).items():
        times = race(
            {"small": functools.partial(operation, small), "large": functools.partial(operation, large)}, Pace()
        )
        share = at_most(times["large"], times["small"])
        beside = f"{1e3 * times['large'].median:.3g} ms, at {SMALL:,} {1e3 * times['small'].median:.3g} ms"
        lines.append(
            judged(
                "1M", "1,000", f"{NUMBA}: {what}, time of that at {SMALL:,}", share, "x", must=most(1.5), beside=beside
            )
        )
    return lines


def _operations(rng: np.random.Generator, groups: Iterator[Rollouts]) -> dict[str, Callable[[ReplayBuffer], Any]]:
    kept = Workspace()

    def update(buffer: ReplayBuffer) -> None:
        newest = buffer.added
        buffer.update_priorities(newest - 1 - rng.integers(0, len(buffer), 512), rng.random(512) + 0.1)

    return {
        "add 16": lambda buffer: buffer.add(next(groups), train_step=0),
        "prioritized packed B=512": lambda buffer: buffer.sample(512, train_step=0, rng=rng, out=kept),
        "prioritized padded B=512": lambda buffer: buffer.sample_padded(512, train_step=0, rng=rng, out=kept),
        "prioritized packed B=60": lambda buffer: buffer.sample(60, train_step=0, rng=rng, out=kept),
        "update 512 priorities": update,
    }


def _filled(n: int, groups: Iterator[Rollouts]) -> ReplayBuffer:
    """A buffer that bytes bound at about n rollouts, full."""
    probe = ReplayBuffer(GROUP_SIZE)
    probe.add(next(groups), train_step=0)
    buffer = ReplayBuffer(2 * n, capacity_bytes=probe.nbytes * n // GROUP_SIZE, sampler=Prioritized())
    for _ in range(-(-n // GROUP_SIZE) + 1):
        buffer.add(next(groups), train_step=0)
    return buffer


def _groups() -> Iterator[Rollouts]:
    """Groups of 16 with a common prompt, each prompt another one for ever."""
    rng, ready = np.random.default_rng(1), []
    for group in range(GROUPS):
        prompt = rng.integers(1, 150_000, PROMPT)
        rows = rng.integers(1, 150_000, (GROUP_SIZE, TOKENS - PROMPT))
        logprobs = -rng.random(rows.shape)
        ready.append(Rollouts.from_completions([prompt] * GROUP_SIZE, list(rows), list(logprobs), group_id=group))
    for turn, rollouts in enumerate(cycle(ready)):
        for row in range(GROUP_SIZE):  # a prompt that comes again would be stored once, which is not what is measured
            rollouts.tokens[row * TOKENS] = turn % 2**31
        yield rollouts
