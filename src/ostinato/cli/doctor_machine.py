"""What this machine has: cores, memory, GPUs, load."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path

from ostinato.cli.check_facts import GIB
from ostinato.cli.doctor_finding import FAULT, OK, WARNING, Finding, size_shown

CGROUP = Path("/sys/fs/cgroup")
"""Where a container's limits stand (cgroup v2)."""

BUSY = 1.5
"""Load a core from which other work on the machine is worth a warning."""

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "VLLM_CPU_OMP_THREADS_BIND")


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU; memory in bytes."""

    name: str
    memory_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True)
class Machine:
    """`cores`: that this process may use; memory in bytes, `free_bytes`: without swapping; `load`: tasks that wanted to
    run in the last minute; `torch_threads`: None without torch."""

    cores: float
    memory_bytes: int
    free_bytes: int
    load: float
    gpus: tuple[Gpu, ...]
    torch_threads: int | None


def this_machine() -> Machine:
    """Reads what the operating system, the container and torch say."""
    total, free = _memory()
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    return Machine(_cores(), total, free, load, *_torch())


def device_findings(machine: Machine) -> Iterator[Finding]:
    """Cores, memory and GPUs."""
    memory = f"{size_shown(machine.free_bytes)} of {size_shown(machine.memory_bytes)} of memory free"
    yield Finding(OK, "cpu", f"{machine.cores:g} cores for this process, {memory}", figures=_host_figures(machine))
    if machine.torch_threads is None:
        return
    if not machine.gpus:
        yield Finding(OK, "gpu", "none that torch sees: everything is computed on the CPU")
    for i, gpu in enumerate(machine.gpus):
        text = f"cuda:{i} {gpu.name}, {size_shown(gpu.free_bytes)} of {size_shown(gpu.memory_bytes)} free"
        taken = gpu.free_bytes < gpu.memory_bytes / 2
        change = "another process has more than half of it: nvidia-smi shows which" if taken else ""
        yield Finding(WARNING if taken else OK, "gpu", text, change, asdict(gpu))


def thread_findings(machine: Machine, wanted: int, what: str) -> Iterator[Finding]:
    """`wanted`: threads that compute at once, `what` they are; 0: not known, without a recipe."""
    given = {name: os.environ[name] for name in THREAD_VARIABLES if name in os.environ}
    said = ", ".join(f"{name}={value}" for name, value in given.items()) or "no thread variables set"
    torch = "torch is not installed" if machine.torch_threads is None else f"torch would use {machine.torch_threads}"
    figures = {"wanted": wanted, "torch_threads": machine.torch_threads, "environment": given, "load": machine.load}
    level, text, change = OK, f"{torch}; {said}", ""
    if wanted:
        text = f"{what}: {wanted} computing threads on {machine.cores:g} cores; {said}"
    omp = given.get("OMP_NUM_THREADS", "").partition(",")[0]
    if wanted > machine.cores:
        level, change = WARNING, "more threads than cores: lower threads, loop.generators or loop.trainers"
    elif omp.isdigit() and int(omp) > machine.cores:
        level, change = WARNING, f"OMP_NUM_THREADS {omp} is more than {machine.cores:g} cores: lower it"
    yield Finding(level, "threads", text, change, figures)
    if machine.load > BUSY * machine.cores:
        text = f"load {machine.load:.1f} on {machine.cores:g} cores: other work is running"
        yield Finding(WARNING, "load", text, "wait for it or end it: times, and mu, measured now would be wrong")


def disk_finding(topic: str, directory: Path, needed_bytes: int, what: str) -> Finding:
    """Whether files can be written where `directory` is or will be, and `needed_bytes` of them."""
    place = directory.absolute()
    while not place.exists():
        place = place.parent
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(b"0")
        free = shutil.disk_usage(place).free
    except OSError as error:
        text = f"{directory} cannot be written: {error.strerror or error}"
        return Finding(FAULT, topic, text, f"make {place} writable, or choose another ({what})")
    needs = f", a checkpoint takes about {size_shown(needed_bytes)}" if needed_bytes else ""
    text = f"{directory} can be written, {size_shown(free)} free{needs}"
    figures = {"directory": str(directory), "free_bytes": free, "needed_bytes": needed_bytes}
    if free < needed_bytes:
        return Finding(FAULT, topic, text, f"make room, or choose another disk ({what})", figures)
    low = free < max(GIB, 2 * needed_bytes)
    return Finding(
        WARNING if low else OK, topic, text, f"little room: {what} names another disk" if low else "", figures
    )


def _host_figures(machine: Machine) -> dict[str, float]:
    return {name: getattr(machine, name) for name in ("cores", "memory_bytes", "free_bytes", "load")}


def _torch() -> tuple[tuple[Gpu, ...], int | None]:
    if find_spec("torch") is None:
        return (), None
    import torch

    gpus = []
    for i in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(i)
        gpus.append(Gpu(torch.cuda.get_device_name(i), total, free))
    return tuple(gpus), torch.get_num_threads()


def _cores() -> float:
    cores = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    quota, _, period = _read(CGROUP / "cpu.max").partition(" ")
    return min(cores, int(quota) / int(period)) if quota.isdigit() and period.isdigit() else cores


def _memory() -> tuple[int, int]:
    """(total, available without swapping) of the machine, or of the container where that is less."""
    kib = {name: value.split()[0] for name, _, value in _rows(_read(Path("/proc/meminfo")), ":")}
    if "MemAvailable" in kib:
        total, free = int(kib["MemTotal"]) * 1024, int(kib["MemAvailable"]) * 1024
    else:
        total = free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit, used = _read(CGROUP / "memory.max"), _read(CGROUP / "memory.current")
    if limit.isdigit() and used.isdigit():
        # Files in the container's page cache count as used and are given up when memory is wanted.
        cached = {name: value for name, _, value in _rows(_read(CGROUP / "memory.stat"), " ")}
        room = int(limit) - int(used) + int(cached.get("inactive_file", 0))
        total, free = min(total, int(limit)), min(free, max(0, room))
    return total, free


def _rows(text: str, separator: str) -> Iterator[tuple[str, str, str]]:
    return (line.partition(separator) for line in text.splitlines() if line.partition(separator)[2].strip())


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return ""
