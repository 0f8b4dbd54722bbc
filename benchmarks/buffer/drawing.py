"""G1, G1b, G2, G3, G8: drawing batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ostinato.buffer import Uniform

from .batches import WrongBatchError
from .machine import cached_copy, copy_from_memory
from .peers import check, fill
from .results import Bound, Line, judged, least, most, skipped, wrong
from .setting import Setting, calls
from .subject import NUMBA, NUMPY, TWO_THREADS, Ostinato
from .timing import Times, at_most, milliseconds, race, ratio

BATCH, SMALL = 512, 60
COPY, CACHED = "copy from memory", "copy from cache"
DEQUE, STACK, PADDED, CPPRB = "deque", "torchrl LazyStackStorage", "torchrl LazyTensorStorage", "cpprb"


def packed(setting: Setting) -> list[Line]:
    """G1 with compiled kernels, G1b without: B = 512 packed, beside a contiguous copy of as many bytes."""
    lines: list[Line] = []
    found = setting.present("G1", [NUMBA, TWO_THREADS, NUMPY, DEQUE, STACK], lines)
    source, share = setting.source, BATCH / len(setting.source)
    store = [source.tokens, source.mask, source.logprobs]
    machine = {COPY: copy_from_memory(store, share), CACHED: cached_copy([a[: int(share * len(a))] for a in store])}
    times = race(machine | calls(found, "packed", BATCH), setting.pace)
    for goal, name, of_copy, of_deque, of_stack in (("G1", NUMBA, 0.3, 4.5, 15.0), ("G1b", NUMPY, 0.16, 2.5, None)):
        if name not in times:
            continue
        stretch = least(0.36 if goal == "G1" else 0.30)
        lines += _shares(setting, goal, name, times, least(of_copy) if setting.is_long else None, stretch)
        lines += _faster(setting, goal, f"{name}: packed B=512", times, name, {DEQUE: least(of_deque)})
        if of_stack:
            lines += _faster(setting, goal, f"{name}: packed B=512", times, name, {STACK: least(of_stack)})
    if TWO_THREADS in times:
        lines += _two_threads(setting, "G1", lambda: _shares(setting, "G1", TWO_THREADS, times, None, least(0.55)))
    return lines


def padded(setting: Setting) -> list[Line]:
    """G2: B = 512 padded."""
    lines: list[Line] = []
    found = setting.present("G2", [NUMBA, TWO_THREADS, NUMPY, DEQUE, PADDED, CPPRB], lines)
    times = race(calls(found, "padded", BATCH), setting.pace)
    what = f"{NUMBA}: padded B=512"
    lines += _faster(setting, "G2", what, times, NUMBA, {CPPRB: least(1.4), PADDED: least(1.4), DEQUE: least(3.5)})
    if {NUMPY, CPPRB} <= times.keys():
        share = at_most(times[NUMPY], times[CPPRB])
        what = f"{NUMPY}: padded B=512, time of cpprb's"
        lines.append(judged("G2", setting.profile, what, share, "x", must=most(1.15), beside=_shown(times, CPPRB)))
    if {TWO_THREADS, CPPRB} <= times.keys():
        what = f"{TWO_THREADS}: padded B=512, cpprb's time / ours"
        fast = ratio(times[CPPRB], times[TWO_THREADS])
        line = judged("G2", setting.profile, what, fast, "x", stretch=least(3.5), beside=_shown(times, CPPRB))
        lines += _two_threads(setting, "G2", lambda: [line])
    return lines


def small(setting: Setting) -> list[Line]:
    """G3: B = 60, packed and padded."""
    lines: list[Line] = []
    found = setting.present("G3", [NUMBA, DEQUE, CPPRB], lines)
    peers = {"packed": {DEQUE: least(3.5)}, "padded": {DEQUE: least(3.5), CPPRB: least(1.6)}}
    for kind, bound in (("packed", 0.12), ("padded", 0.15)):
        names = {name: found[name] for name in (NUMBA, *peers[kind]) if name in found}
        times = race(calls(names, kind, SMALL), setting.pace)
        if NUMBA not in times:
            continue
        must, stretch = (most(bound), None) if setting.is_long else (None, most(0.05))
        what = f"{NUMBA}: {kind} B=60"
        lines.append(judged("G3", setting.profile, what, milliseconds(times[NUMBA]), "ms", must=must, stretch=stretch))
        lines += _faster(setting, "G3", what, times, NUMBA, peers[kind])
    return lines


def without_replacement(setting: Setting) -> list[Line]:
    """G8: B = 512 padded, without replacement beside with it, and every batch of 512 distinct rollouts."""
    n = len(setting.source)
    contestants: dict[str, Any] = {
        "with": Ostinato(n, sampler=Uniform(replacement=True)),
        "without": Ostinato(n, sampler=Uniform(replacement=False)),
    }
    try:
        for name, contestant in contestants.items():
            fill(contestant, setting.source)
            check(f"{name} replacement", contestant, setting.source)
    except WrongBatchError as error:
        return [wrong("G8", setting.profile, "without replacement", str(error))]
    distinct = [len(np.unique(contestants["without"].packed(BATCH).rollout_ids)) for _ in range(100)]
    lines = [
        judged(
            "G8", setting.profile, "distinct rollouts in the worst of 100 batches", min(distinct), "", must=least(BATCH)
        )
    ]
    for kind in ("packed", "padded"):
        times = race(calls(contestants, kind, BATCH), setting.pace)
        share = at_most(times["without"], times["with"])
        must = most(1.1) if kind == "padded" else None
        what = f"{kind} B=512 without replacement, time of with"
        lines.append(judged("G8", setting.profile, what, share, "x", must=must, beside=_shown(times, "with")))
    return lines


def _shares(
    setting: Setting, goal: str, name: str, times: Mapping[str, Times], must: Bound | None, stretch: Bound
) -> list[Line]:
    """The speed as a share of a contiguous copy's: from a store as large (judged), and from the cache."""
    lines = []
    for copy in (COPY, CACHED):
        what = f"{name}: packed B=512, speed of a {copy}"
        judge = (must, stretch) if copy == COPY else (None, None)
        share = ratio(times[copy], times[name])
        beside = beside_peer(times, name, copy)
        line = judged(goal, setting.profile, what, share, "", must=judge[0], stretch=judge[1], beside=beside)
        lines.append(line)
    return lines


def _faster(
    setting: Setting, goal: str, what: str, times: Mapping[str, Times], name: str, peers: Mapping[str, Bound]
) -> list[Line]:
    lines = []
    for peer, must in peers.items():
        if {peer, name} <= times.keys():
            beside = beside_peer(times, name, peer)
            speed = ratio(times[peer], times[name])
            lines.append(
                judged(goal, setting.profile, f"{what}, speed of {peer}", speed, "x", must=must, beside=beside)
            )
    return lines


def beside_peer(times: Mapping[str, Times], name: str, peer: str) -> str:
    """Both times, for the end of a line."""
    return f"{_shown(times, name)}, {_shown(times, peer)}"


def _shown(times: Mapping[str, Times], name: str) -> str:
    return f"{name} {milliseconds(times[name]).value:.3g} ms"


def _two_threads(setting: Setting, goal: str, lines: Callable[[], list[Line]]) -> list[Line]:
    busy = setting.busy()
    return [skipped(goal, setting.profile, TWO_THREADS, busy)] if busy else lines()
