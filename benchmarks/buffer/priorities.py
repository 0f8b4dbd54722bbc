"""G6: drawing by priority and writing new priorities back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ostinato.buffer.sampling import Prioritized

from .batches import WrongBatchError
from .drawing import beside_peer
from .freshness import tiny_rollouts
from .peers import ELSEWHERE, PRIORITIZED, AbsentError, check, fill, opened
from .results import Line, judged, least, most, skipped, wrong
from .setting import Setting
from .subject import NUMBA, TRAIN_STEP, Ostinato
from .timing import milliseconds, race, ratio

BATCH, MILLION = 512, 1_000_000
CPPRB = "cpprb PrioritizedReplayBuffer"


def prioritized(setting: Setting) -> list[Line]:
    """B = 512 padded with importance weights, and the update; then the draw of row numbers from a million."""
    lines: list[Line] = []
    n = len(setting.source)
    contestants: dict[str, Any] = {NUMBA: Ostinato(n, sampler=Prioritized(exponent=0.6, beta=0.4))}
    for name in PRIORITIZED:
        try:
            contestants[name] = opened(name, setting.source.profile, n)
        except AbsentError as absent:
            lines.append(skipped("G6", setting.profile, name, str(absent)))
    for name, contestant in list(contestants.items()):
        try:
            fill(contestant, setting.source)
            check(name, contestant, setting.source)
        except WrongBatchError as error:
            lines.append(wrong("G6", setting.profile, name, str(error)))
            del contestants[name]
    fresh = np.random.default_rng(1).gamma(1.0, size=(64, BATCH)) + 0.01
    times = race({name: _step(c, fresh) for name, c in contestants.items()}, setting.pace)
    if NUMBA in contestants:
        what = f"{NUMBA}: prioritized padded B=512 and update"
        lines.append(judged("G6", setting.profile, what, milliseconds(times[NUMBA]), "ms"))
        if CPPRB in times:
            speed, beside = ratio(times[CPPRB], times[NUMBA]), beside_peer(times, NUMBA, CPPRB)
            lines.append(
                judged("G6", setting.profile, f"{what}, speed of cpprb", speed, "x", must=least(1.3), beside=beside)
            )
        packed = race({NUMBA: _step(contestants[NUMBA], fresh, "packed")}, setting.pace)[NUMBA]
        stretch = most(1.0) if setting.is_long else None
        what = f"{NUMBA}: prioritized packed B=512 and update"
        lines.append(judged("G6", setting.profile, what, milliseconds(packed), "ms", stretch=stretch))
    if setting.is_long:
        lines.append(_index_draw(setting))
    return [*lines, skipped("G6", setting.profile, "FreshPER", ELSEWHERE)]


def _step(contestant: Any, fresh: np.ndarray[Any, Any], kind: str = "padded") -> Callable[[], None]:
    turn = 0

    def step() -> None:
        nonlocal turn
        turn = (turn + 1) % len(fresh)
        batch = getattr(contestant, kind)(BATCH)
        if isinstance(contestant, Ostinato):
            contestant.buffer.update_priorities(batch.rollout_ids, fresh[turn])
        else:
            contestant.update(batch, fresh[turn])

    return step


def _index_draw(setting: Setting) -> Line:
    n = MILLION // 16 if setting.quick else MILLION
    subject = Ostinato(n, sampler=Prioritized(exponent=0.6, beta=0.4))
    rng = np.random.default_rng(2)
    for rollouts in tiny_rollouts(n):
        subject.buffer.add(rollouts, train_step=TRAIN_STEP, priorities=rng.gamma(1.0, size=len(rollouts)))
    columns, sampler = subject.buffer.columns, subject.buffer.sampler
    took = race({"draw": lambda: sampler(columns, BATCH, subject.rng)}, setting.pace)["draw"]
    what = f"{NUMBA}: row numbers of 512 by priority, N = {n:,}"
    return judged("G6", setting.profile, what, milliseconds(took), "ms", must=most(0.1))
