"""What the machine allows: copies, disk writes and reads of the same bytes, and whether it is busy with other work."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

STEADY_ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(1 << 36)}
"""glibc keeps freed memory instead of returning it after each batch: every contestant's best case."""


def steady_environment() -> dict[str, str]:
    """This process's environment with the steady allocator."""
    return {**os.environ, **STEADY_ALLOCATOR}


def default_environment() -> dict[str, str]:
    """This process's environment with the allocator as it comes."""
    return {name: value for name, value in os.environ.items() if name not in STEADY_ALLOCATOR}


def with_steady_allocator() -> None:
    """Start this program again under the steady allocator, unless it is."""
    if any(os.environ.get(name) != value for name, value in STEADY_ALLOCATOR.items()):
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], steady_environment())


def cached_copy(arrays: Sequence[NDArray[Any]]) -> Callable[[], object]:
    """Copying these arrays, each into a fresh destination. Small ones stay in the processor's cache between calls."""
    sources = [array.copy() for array in arrays]
    return lambda: [source.copy() for source in sources]


def copy_from_memory(store: Sequence[NDArray[Any]], share: float) -> Callable[[], object]:
    """Copying a contiguous `share` of every array of a store into a fresh destination, another part at each call."""
    counts = [int(share * len(array)) for array in store]
    parts = max(1, int(1 / share) - 1)
    turn = 0

    def copy() -> object:
        nonlocal turn
        turn = (turn + 1) % parts
        return [array[turn * n : (turn + 1) * n].copy() for array, n in zip(store, counts, strict=True)]

    return copy


def write_and_sync(path: Path, data: NDArray[np.uint8]) -> None:
    """One write of all bytes, on the disk when it returns."""
    with path.open("wb", buffering=0) as file:
        view = memoryview(data.data)
        while len(view):
            view = view[file.write(view) :]
        os.fsync(file.fileno())


def cached_read(path: Path) -> NDArray[np.uint8]:
    """All bytes of a file that the page cache holds, into fresh memory."""
    return np.fromfile(path, np.uint8)


def resident_bytes() -> int:
    """Resident memory of this process, freed pages given back first."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return _status("VmRSS")


def peak_resident_bytes() -> int:
    """Largest resident memory since `forget_peak`."""
    return _status("VmHWM")


def forget_peak() -> None:
    """Let the peak start anew at what is resident now."""
    Path("/proc/self/clear_refs").write_text("5")


def idle_cores(seconds: float = 0.3) -> float:
    """Cores that nobody used during the last moments."""
    before = _cpu_times()
    time.sleep(seconds)
    after = _cpu_times()
    total = sum(after) - sum(before)
    idle = (after[3] + after[4]) - (before[3] + before[4])
    return (os.cpu_count() or 1) * idle / max(total, 1)


def _cpu_times() -> list[int]:
    return [int(value) for value in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status does not tell {name}")
