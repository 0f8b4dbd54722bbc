"""G4: adding to a full buffer, so that the oldest leave. Groups of 16, then one rollout at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import cycle
from typing import Any

from .peers import ELSEWHERE, Contestant
from .profiles import GROUP_SIZE
from .results import Line, judged, least, most, skipped
from .setting import Setting
from .subject import NUMBA, NUMPY, Ostinato
from .timing import Measured, Pace, Times, race, ratio

PEERS = ("deque", "torchrl LazyTensorStorage", "cpprb")
READY = 64  # converted batches that take turns where the conversion is not timed
MUST = {GROUP_SIZE: {"torchrl LazyTensorStorage": 4.0, "cpprb": 3.0}, 1: {"torchrl LazyTensorStorage": 10.0}}
STRETCH_US = {GROUP_SIZE: 4.0, 1: 15.0}


def adding(setting: Setting) -> list[Line]:
    """Microseconds a rollout, with the conversion from records of numpy arrays (judged) and without."""
    lines, pace = list[Line](), replace(setting.pace, amortized=True)
    found = setting.fresh().present("G4", [NUMBA, NUMPY, *PEERS], lines)
    for size in (GROUP_SIZE, 1):
        times = race({name: _converting(setting, c, size) for name, c in found.items()}, pace)
        ready = race({name: _ready(setting, c, size) for name, c in found.items()}, pace)
        kind = "a group of 16" if size > 1 else "one rollout"
        if NUMBA not in times:
            continue
        for name in (NUMBA, NUMPY):
            beside = f"without conversion {_us(ready[name], size).value:.3g} us"
            what, stretch = f"{name}: add {kind}, a rollout", most(STRETCH_US[size]) if name == NUMBA else None
            lines.append(
                judged("G4", setting.profile, what, _us(times[name], size), "us", stretch=stretch, beside=beside)
            )
        for peer, bound in MUST[size].items():
            if peer in times:
                lines += _compared(setting, kind, size, peer, bound, times, ready)
        lines.append(_completions(setting, found[NUMBA], kind, size, pace))
        if "deque" in times:
            what, keeps = f"deque: add {kind}, a rollout", "keeps references, copies nothing"
            lines.append(judged("G4", setting.profile, what, _us(times["deque"], size), "us", beside=keeps))
    return [*lines, skipped("G4", setting.profile, "FreshPER", ELSEWHERE)]


def _compared(
    setting: Setting, kind: str, size: int, peer: str, bound: float, times: dict[str, Times], ready: dict[str, Times]
) -> list[Line]:
    lines = []
    for how, measured in (("with conversion", times), ("without conversion", ready)):
        speed, must = ratio(measured[peer], measured[NUMBA]), least(bound) if measured is times else None
        beside = f"{NUMBA} {_us(measured[NUMBA], size).value:.3g} us, {peer} {_us(measured[peer], size).value:.3g} us"
        what = f"{NUMBA}: add {kind} {how}, speed of {peer}"
        lines.append(judged("G4", setting.profile, what, speed, "x", must=must, beside=beside))
    return lines


def _completions(setting: Setting, contestant: Any, kind: str, size: int, pace: Pace) -> Line:
    stream = setting.source.groups(size)
    records = cycle([next(stream) for _ in range(READY)])
    call = {"convert": lambda: contestant.convert_completions(next(records))}
    what = f"Rollouts.from_completions of {kind}, a rollout"
    return judged("G4", setting.profile, what, _us(race(call, pace)["convert"], size), "us")


def _us(times: Times, size: int) -> Measured:
    return Measured(1e6 * times.median / size, 1e6 * times.best / size)


def _converting(setting: Setting, contestant: Contestant, size: int) -> Callable[[], Any]:
    stream = setting.source.groups(size)
    records = cycle([next(stream) for _ in range(READY)])
    if isinstance(contestant, Ostinato):
        if size == 1:
            return lambda: contestant.insert_one(next(records)[0])
        return lambda: contestant.insert_records(next(records))
    return lambda: contestant.insert(contestant.convert(next(records)))


def _ready(setting: Setting, contestant: Contestant, size: int) -> Callable[[], Any]:
    stream = setting.source.groups(size)
    converted: Iterator[Any] = cycle([contestant.convert(next(stream)) for _ in range(READY)])
    return lambda: contestant.insert(next(converted))
