"""G10: the whole buffer to disk and back, beside raw writing, cached reading and `torch.save` of a deque."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from .batches import WrongBatchError
from .machine import cached_read, write_and_sync
from .peers import AbsentError, check, fill, opened
from .results import Line, judged, least, most, skipped, wrong
from .setting import Setting
from .subject import NUMBA, Ostinato
from .timing import Measured, Pace, Times, at_most, race, ratio

RUNS = Path(__file__).parents[2] / "runs"
SAVE_S, LOAD_S = 0.25, 0.1


def checkpoint(setting: Setting) -> list[Line]:
    """Files lie in the repository's `runs`: on a disk, not in a file system in memory."""
    profile, payload = setting.profile, setting.source.payload_bytes
    subject = Ostinato(len(setting.source))
    fill(subject, setting.source)
    RUNS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=RUNS) as directory:
        ours, raw, theirs = (Path(directory) / name for name in ("ours", "raw", "deque"))
        size = subject.buffer.save(ours, rng=subject.rng)
        data = np.fromfile(ours, np.uint8)
        back = Ostinato(len(setting.source))
        try:
            back.buffer.load(ours)
            check("ostinato, loaded", back, setting.source)
        except WrongBatchError as error:
            return [wrong("G10", profile, NUMBA, str(error))]
        saves: dict[str, Callable[[], Any]] = {
            "ours": lambda: subject.buffer.save(ours, rng=subject.rng),
            "raw": lambda: write_and_sync(raw, data),
        }
        loads: dict[str, Callable[[], Any]] = {"ours": lambda: back.buffer.load(ours), "raw": lambda: cached_read(raw)}
        lines = _with_deque(setting, theirs, saves, loads)
        pace = Pace(3, 0.0)
        written, read = race(saves, pace), race(loads, pace)
    scale = payload / (175 << 20)  # the bounds in seconds are of 175 MiB
    saved, loaded = at_most(written["ours"], written["raw"]), at_most(read["ours"], read["raw"])
    what, must = "save with fsync, time of a raw write with fsync", most(2.0) if setting.is_long else None
    lines.append(judged("G10", profile, what, saved, "x", must=must, beside=_both(written)))
    lines.append(judged("G10", profile, "load, time of a cached read", loaded, "x", must=must, beside=_both(read)))
    must = most(1.02) if setting.is_long else None
    lines.append(judged("G10", profile, "file size / payload", size / payload, "x", must=must))
    if setting.is_long:
        lines += [
            judged("G10", profile, "save with fsync", _seconds(written["ours"]), "s", must=most(SAVE_S * scale)),
            judged("G10", profile, "load", _seconds(read["ours"]), "s", must=most(LOAD_S * scale)),
        ]
    for what, times in (("save", written), ("load", read)):
        if "deque" in times:
            beside, what = f"torch {times['deque'].median:.3g} s", f"{what}, speed of torch.{what}(deque)"
            speed = ratio(times["deque"], times["ours"])
            lines.append(judged("G10", profile, what, speed, "x", must=least(8.0), beside=beside))
    return lines


def _with_deque(
    setting: Setting, path: Path, saves: dict[str, Callable[[], Any]], loads: dict[str, Callable[[], Any]]
) -> list[Line]:
    try:
        import torch

        deque: Any = opened("deque", setting.source.profile, len(setting.source))
    except (ImportError, AbsentError) as error:
        return [skipped("G10", setting.profile, "torch.save(deque)", str(error))]
    fill(deque, setting.source)
    saves["deque"] = lambda: torch.save(list(deque.items), path)
    loads["deque"] = lambda: torch.load(path, weights_only=False)
    saves["deque"]()
    return []


def _seconds(times: Times) -> Measured:
    return Measured(times.median, times.best)


def _both(times: dict[str, Times]) -> str:
    return f"ostinato {times['ours'].median:.3g} s, raw {times['raw'].median:.3g} s"
