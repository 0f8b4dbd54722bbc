"""Environment variables that vLLM reads while an engine starts. Those that the user has set stay as they are."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

ALWAYS = {
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",  # a fork of a process with threads may hang
    "PYTHONWARNINGS": "ignore",  # of vLLM's dependencies, at every start
    "TORCH_CPP_LOG_LEVEL": "ERROR",
}
ON_CPU = {
    # The engine's process computes itself. Bound to cores, engines of one machine would all sit on the same ones.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    # Else the first request waits a quarter of a minute for kernels that save next to nothing.
    "TORCH_COMPILE_DISABLE": "1",
    # New weights are laid out anew layer by layer: in memory that glibc keeps that takes half the time, most
    # of the other half being page faults (135 M parameters: 0.7 to 0.9 s instead of 1.2 to 1.5 beside other work).
    "MALLOC_MMAP_THRESHOLD_": str(2**32 - 1),
    "MALLOC_TRIM_THRESHOLD_": str(2**34),
}

_STARTING = threading.Lock()


@contextmanager
def start_environment(threads: int) -> Iterator[None]:
    """What an engine and its processes shall find, for the time of the block; one engine starts at a time.

    `threads`: of arithmetic on a CPU, where OMP_NUM_THREADS does not say otherwise. Afterwards the environment is as
    before: vLLM changes it too, and later children of this process are not its own.
    """
    with _STARTING:
        before = dict(os.environ)
        for name, value in (*ALWAYS.items(), ("OMP_NUM_THREADS", str(threads))):
            os.environ.setdefault(name, value)
        try:
            yield
        finally:
            for name in os.environ.keys() - before.keys():
                del os.environ[name]
            os.environ.update(before)


def add_cpu_environment() -> None:
    """Inside `start_environment`, once it is known that vLLM is the one for CPUs."""
    for name, value in ON_CPU.items():
        os.environ.setdefault(name, value)
