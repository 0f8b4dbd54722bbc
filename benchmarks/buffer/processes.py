"""G9: a producer and a consumer, two processes, flat out at once. Run as a module: one contestant's child."""

from __future__ import annotations

import json
import multiprocessing
import sys
import time
from itertools import cycle, islice
from typing import Any, Protocol

import numpy as np

from .batches import WrongBatchError, verify
from .children import ChildError, measured
from .peer_queue import Queue
from .peers import fill
from .profiles import PROFILES, Source
from .results import Line, judged, least, most, skipped, wrong
from .setting import Setting

QUEUE, TORCHRL, OURS = "multiprocessing.Queue", "torchrl shared LazyMemmapStorage", "ostinato.sharing"
BATCH = 60
CHECK_EVERY = 64
ROUNDS = 3


class Link(Protocol):
    """Both ends of a hand-over, opened before the processes part."""

    def produce(self, stop: Any, count: Any) -> None:
        """Put rollouts in until the event `stop` is set; `count.value`: how many went in."""

    def consume(self) -> int:
        """Take a batch, return how many rollouts it holds."""

    def check(self) -> None:
        """Raises `WrongBatchError` unless the last batch is right."""

    def close(self) -> None:
        """Remove what it left outside of memory."""


class SharedTorchrl:
    """torchrl's replay buffer on memory-mapped storage with `shared=True`."""

    def __init__(self, source: Source) -> None:
        import torch

        from .peer_torchrl import Shared

        torch.set_num_threads(1)  # its thread pool does not survive a fork
        self._source = source
        self._peer = Shared(source.profile, len(source))
        fill(self._peer, source, turnovers=0.25)
        self._ready = [self._peer.convert(records) for records in islice(source.groups(), 64)]

    def produce(self, stop: Any, count: Any) -> None:
        """Ready-made groups of 16."""
        for converted in cycle(self._ready):
            if stop.is_set():
                return
            self._peer.insert(converted)
            count.value += len(converted)

    def consume(self) -> int:
        """A batch of 60."""
        self._last = self._peer.padded(BATCH)
        return BATCH

    def check(self) -> None:
        """The last batch."""
        verify(TORCHRL, self._peer.padded_rows(self._last), self._source, BATCH)

    def close(self) -> None:
        """Its storage goes with the process."""


def links() -> dict[str, Any]:
    """The contestants by name."""
    from .subject_shared import SharedOstinato

    return {QUEUE: Queue, TORCHRL: SharedTorchrl, OURS: SharedOstinato}


def processes(setting: Setting) -> list[Line]:
    """Rollouts a second in and out, each contestant in turn, with the allocator as it comes."""
    profile, lines = setting.profile, list[Line]()
    rounds: dict[str, list[dict[str, float]]] = {}
    failed: dict[str, str] = {}
    for _ in range(1 if setting.quick else ROUNDS):
        for name in (QUEUE, TORCHRL, OURS):
            if name not in failed:
                try:
                    found = measured("processes", name, profile, len(setting.source), 1.5, steady=False, timeout_s=90)
                    rounds.setdefault(name, []).append(found)
                except ChildError as error:
                    failed[name] = str(error)
    lines += [(wrong if name == OURS else skipped)("G9", profile, name, reason) for name, reason in failed.items()]
    middle = {n: {key: float(np.median([r[key] for r in rs])) for key in rs[0]} for n, rs in rounds.items()}
    if OURS not in middle:
        return lines
    ours, busy = middle[OURS], setting.busy()
    for peer, way, bound, stretch in ((QUEUE, "in", 8.0, 15.0), (TORCHRL, "out", 5.0, 8.0)):
        if peer in middle:
            theirs = middle[peer]
            beside = f"ostinato in {ours['in']:,.0f}/s out {ours['out']:,.0f}/s, {peer} {theirs[way]:,.0f}/s"
            what, times = f"two processes: rollouts/s {way}, times {peer}", ours[way] / theirs[way]
            lines.append(
                judged(
                    "G9",
                    profile,
                    what,
                    times,
                    "x",
                    must=None if busy else least(bound),
                    stretch=least(stretch),
                    beside=f"{beside} {busy}",
                )
            )
    lines.append(judged("G9", profile, "two processes: wrong batches", ours["wrong"], "", must=most(0)))
    lines.append(
        judged(
            "G9",
            profile,
            "two processes: p99 of a draw of 60",
            ours["p99_ms"],
            "ms",
            must=None if busy else most(1.0),
            beside=busy,
        )
    )
    return lines


def child(name: str, profile: str, n: int, seconds: float) -> dict[str, float]:
    """Run both ends for so many seconds."""
    fork = multiprocessing.get_context("fork")
    source = Source(PROFILES[profile], n)
    link: Link = links()[name](source)
    stop, count = fork.Event(), fork.Value("q", 0, lock=False)
    producer = fork.Process(target=link.produce, args=(stop, count), daemon=True)
    producer.start()
    try:
        while count.value < 4 * BATCH:
            time.sleep(0.01)
        link.consume()
        return _consumed(link, count, seconds)
    finally:
        stop.set()
        producer.join(5)
        producer.kill()
        link.close()


def _consumed(link: Link, count: Any, seconds: float) -> dict[str, float]:
    out, wrong, batches, calls = 0, 0, 0, list[float]()
    checked_s = 0.0
    begin, before = time.perf_counter(), count.value
    while (now := time.perf_counter()) - begin < seconds:
        out += link.consume()
        calls.append(time.perf_counter() - now)
        batches += 1
        if batches % CHECK_EVERY == 0:
            wrong += _is_wrong(link)
            checked_s += time.perf_counter() - now - calls[-1]
    took = time.perf_counter() - begin
    return {
        "in": (count.value - before) / took,
        "out": out / (took - checked_s),
        "wrong": wrong,
        "p50_ms": 1e3 * float(np.quantile(calls, 0.5)),
        "p99_ms": 1e3 * float(np.quantile(calls, 0.99)),
    }


def _is_wrong(link: Link) -> int:
    try:
        link.check()
    except WrongBatchError:
        return 1
    return 0


if __name__ == "__main__":
    print(json.dumps(child(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))))
