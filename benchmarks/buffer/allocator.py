"""G11: drawing into kept memory, with the allocator as it comes. Run as a module: one allocator's child."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable
from typing import Any

from ostinato.buffer import Workspace

from .children import measured
from .peers import check, fill
from .profiles import PROFILES, Source
from .results import Line, judged, most
from .setting import Setting
from .subject import Ostinato
from .timing import Measured, Pace, Times, at_most, race

BATCH = 512


def allocator(setting: Setting) -> list[Line]:
    """Children with the one and the other allocator take turns."""
    rounds: dict[tuple[str, bool], list[float]] = {}
    for _ in range(3):
        for steady in (True, False):
            found = measured("allocator", setting.profile, len(setting.source), steady=steady)
            for name, seconds in found.items():
                rounds.setdefault((name, steady), []).append(seconds)
    times = {key: Times(tuple(values)) for key, values in rounds.items()}
    lines = []
    for kind in ("packed", "padded"):
        best = min(times[kind, True], times[f"{kind}, out", True], key=lambda t: t.median)
        share: Measured = at_most(times[f"{kind}, out", False], best)
        beside = (
            f"default allocator: out= {1e3 * times[f'{kind}, out', False].median:.3g} ms, fresh "
            f"{1e3 * times[kind, False].median:.3g} ms; steady: {1e3 * best.median:.3g} ms"
        )
        what = f"ostinato: {kind} B=512 with out=, time of steady allocator"
        lines.append(judged("G11", setting.profile, what, share, "x", must=most(1.3), beside=beside))
    return lines


def child(profile: str, n: int) -> dict[str, float]:
    """Seconds a draw, into fresh and into kept memory."""
    source = Source(PROFILES[profile], n)
    contestant = Ostinato(n)
    fill(contestant, source)
    check("ostinato", contestant, source)
    kept = Workspace()
    draws: dict[str, Callable[[], Any]] = {
        "packed": functools.partial(contestant.packed, BATCH),
        "packed, out": functools.partial(contestant.packed, BATCH, out=kept),
        "padded": functools.partial(contestant.padded, BATCH),
        "padded, out": functools.partial(contestant.padded, BATCH, out=kept),
    }
    return {name: times.median for name, times in race(draws, Pace(3, 0.1)).items()}


if __name__ == "__main__":
    print(json.dumps(child(sys.argv[1], int(sys.argv[2]))))
