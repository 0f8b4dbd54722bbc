"""What went wrong in a run and was put right: one line a fault in `faults.jsonl`, and their sums.

    fault                  what was done about it                                      numbers of its line
    generator_died         started again, its prompts given out again, same seeds      generator, reissued_groups
    generator_timed_out    killed, then as above                                       generator, reissued_groups
    reissued               a further request of a generator that is started again      generator, reissued_groups
    state_lost             trainers and buffer started again from the last checkpoint
    rolled_back            a run went on from its last checkpoint                      lost_train_steps, lost_rollouts,
                                                                                       recovered_rollouts

The file only grows, so that it survives what it tells about: a kill, a checkpoint that takes the run back.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from pathlib import Path

from ostinato.errors import DataError

SUMMED = ("reissued_groups", "lost_train_steps", "lost_rollouts", "recovered_rollouts")
"""Numbers of a line that add up."""

FAULTS_FILE = "faults.jsonl"
"""Of the file, in the directory of a run."""


class FaultLog:
    """Appends faults to a file, from any thread; nothing is written before the first one."""

    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, threading.Lock()
        self._counts: Counter[str] | None = None

    def record(self, fault: str, *, why: str = "", **numbers: int) -> None:
        """Append one fault. Raises `OSError` when it cannot be written."""
        line = {"fault": fault, "at_unix_s": round(time.time(), 3), **numbers, "why": why}
        with self._lock:
            counts = self._read()
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
            counts.update(_counted(line))

    def counts(self) -> dict[str, float]:
        """`faults.<fault>`: how many there were in the whole run; `faults.<number>`: the sums of `SUMMED`."""
        with self._lock:
            return {f"faults.{name}": float(value) for name, value in sorted(self._read().items())}

    def _read(self) -> Counter[str]:
        if self._counts is None:
            self._counts = Counter(fault_counts(self._path))
        return self._counts


def read_faults(path: Path) -> list[dict[str, object]]:
    """All whole lines of a `faults.jsonl`, none where there is no such file. Raises `DataError` for a damaged line."""
    if not path.exists():
        return []
    lines = []
    for number, text in enumerate(path.read_bytes().split(b"\n")[:-1], 1):
        try:
            line = json.loads(text)
            line["fault"]
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path}:{number} is not a fault: {error}") from None
        lines.append(line)
    return lines


def fault_counts(path: Path) -> dict[str, int]:
    """How many faults of each name, and the sums of `SUMMED`. Raises `DataError` for a damaged line."""
    counts: Counter[str] = Counter()
    for line in read_faults(path):
        counts.update(_counted(line))
    return dict(sorted(counts.items()))


def _counted(line: dict[str, object]) -> dict[str, int]:
    return {str(line["fault"]): 1} | {name: int(str(line[name])) for name in SUMMED if line.get(name)}
