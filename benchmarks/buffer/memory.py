"""G5: resident memory of a full buffer beside the payload it holds. Run as a module: one contestant's child."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from ostinato.buffer import PositiveBias

from .children import ChildError, measured
from .machine import forget_peak, peak_resident_bytes, resident_bytes
from .peers import ELSEWHERE, PEERS, opened
from .profiles import PAYLOAD_BYTES_PER_TOKEN, PROFILES, Record, Source
from .results import Bound, Line, judged, least, most, skipped, wrong
from .setting import Setting
from .subject import Ostinato

FIFO, BIAS, ARBITRARY = "oldest leave", "positive bias", "any leave"
PADDED = ("torchrl LazyTensorStorage", "cpprb")
TURNOVERS = 3
BATCH = 512


def memory(setting: Setting) -> list[Line]:
    """Each contestant in a fresh process with the allocator as it comes."""
    lines: list[Line] = []
    n = len(setting.source)
    bounds = {FIFO: most(1.05), BIAS: most(1.05), ARBITRARY: most(1.25)}
    per_token = {}
    for name in (*bounds, *PEERS):
        try:
            found = measured("memory", name, setting.profile, n, steady=False)
        except ChildError as error:
            line = wrong if name in bounds else skipped
            lines.append(line("G5", setting.profile, f"memory, {name}", str(error)))
            continue
        per_token[name] = found["bytes_per_token"]
        if name in bounds:
            lines += _own(setting, name, found, bounds[name])
    if FIFO in per_token:
        for name in sorted(set(PEERS) & per_token.keys()):
            times, must = per_token[name] / per_token[FIFO], least(3.9) if name in PADDED else None
            beside = f"{name} {per_token[name]:.1f} bytes a token"
            judge = must if setting.is_long and not setting.quick else None
            lines.append(
                judged("G5", setting.profile, f"memory of {name} / ours", times, "x", must=judge, beside=beside)
            )
    return [*lines, skipped("G5", setting.profile, "FreshPER", ELSEWHERE)]


def _own(setting: Setting, name: str, found: dict[str, Any], bound: Bound) -> list[Line]:
    """A small buffer pays for the libraries around it, so a quick run judges nothing."""
    profile, judge = setting.profile, not setting.quick
    beside = f"{found['bytes_per_token']:.2f} bytes a token, {found['held_tokens'] / 1e6:.1f} M tokens held"
    must, stretch = (bound, most(1.02)) if setting.is_long and judge else (None, None)
    over, what = found["over_payload"], f"ostinato, {name}: resident memory / payload"
    lines = [judged("G5", profile, what, over, "x", must=must, stretch=stretch, beside=beside)]
    allocated = found["allocated_over_payload"]
    lines.append(judged("G5", profile, f"ostinato, {name}: allocated_bytes / payload", allocated, "x"))
    if name != FIFO:
        return lines
    if not setting.is_long:
        must, each = most(10.5) if judge else None, found["bytes_per_token"]
        lines.append(judged("G5", profile, f"ostinato, {name}: memory", each, "B/token", must=must))
    peak = found["peak_over_held_bytes"] / found["batch_bytes"]
    must = most(1.0) if judge else None
    lines.append(judged("G5", profile, "ostinato: peak of a draw over what is held, in batches", peak, "", must=must))
    return lines


def child(name: str, profile: str, n: int) -> dict[str, float]:
    """Fill the contestant, turn it over, draw; what that took."""
    source = Source(PROFILES[profile], n)
    _run(_contestant(name, source, 256), source, turnovers=512 / n, arbitrary=name == ARBITRARY)  # load and compile
    before = resident_bytes()
    contestant = _contestant(name, source, n)
    _run(contestant, source, turnovers=TURNOVERS, arbitrary=name == ARBITRARY)
    contestant.padded(16)
    tokens = _held_tokens(contestant, source, n)  # may renumber the rows: before what is held is measured
    held = resident_bytes() - before
    forget_peak()
    batch = contestant.padded(BATCH)
    peak = peak_resident_bytes() - before
    allocated = contestant.buffer.allocated_bytes if isinstance(contestant, Ostinato) else held
    payload = tokens * PAYLOAD_BYTES_PER_TOKEN
    return {
        "over_payload": held / payload,
        "bytes_per_token": held / tokens,
        "held_tokens": tokens,
        "allocated_over_payload": allocated / payload,
        "peak_over_held_bytes": max(0, peak - held),
        "batch_bytes": _batch_bytes(batch),
    }


def _contestant(name: str, source: Source, n: int) -> Any:
    if name == BIAS:
        return Ostinato(n, retention=[PositiveBias(0.5, 0.5)])
    return Ostinato(n) if name in (FIFO, ARBITRARY) else opened(name, source.profile, n)


def _run(contestant: Any, source: Source, *, turnovers: float, arbitrary: bool) -> None:
    """Add this many times the contents; `arbitrary`: a random rollout leaves for each that comes."""
    rng = np.random.default_rng(0)
    stream: Callable[[], list[Record]] = _copies(source).__next__
    for _ in range(max(1, int(turnovers * len(source)) // 16)):
        records = stream()
        if arbitrary and len(contestant.buffer) + len(records) > contestant.buffer.capacity:
            held = contestant.buffer.columns["rollout_id"]
            contestant.buffer.remove(rng.choice(held, len(records), replace=False))
        contestant.insert(contestant.convert(records))


def _copies(source: Source) -> Iterator[list[Record]]:
    """Records whose arrays are their own, as an engine's are: what a contestant keeps of them is its memory."""
    arrays = ("tokens", "mask", "logprobs")
    for records in source.groups():
        yield [{**record, **{name: record[name].copy() for name in arrays}} for record in records]


def _held_tokens(contestant: Any, source: Source, n: int) -> int:
    if isinstance(contestant, Ostinato):
        return int(contestant.buffer.columns["length"].sum())
    return int(source.lengths.sum())  # a whole turnover of the source is held


def _batch_bytes(batch: Any) -> int:
    """Memory that the arrays of a batch keep, what several are views of counted once."""
    parts = batch if isinstance(batch, Mapping) else {f.name: getattr(batch, f.name) for f in fields(batch)}
    arrays = [array for part in parts.values() for array in (part.values() if isinstance(part, Mapping) else (part,))]
    owners: dict[int, int] = {}
    for array in arrays:
        owner = array if getattr(array, "base", None) is None else array.base
        owners[id(owner)] = int(getattr(owner, "nbytes", 0))
    return sum(owners.values())


if __name__ == "__main__":
    print(json.dumps(child(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
