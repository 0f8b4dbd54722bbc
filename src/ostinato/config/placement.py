"""Settings of where things run, and of what survives, that contradict others."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ostinato.config.traffic import Checks

if TYPE_CHECKING:
    from ostinato.config.run import RunConfig

ADDRESS = re.compile(r"[^\s:/]+:([0-9]{1,5})")
LAST_PORT = 65535
LEAST_PART = 1e-4
"""Of a CPU or a GPU: what Ray counts by."""


def placement_checks(config: RunConfig) -> Checks:
    """Pairs of a fault and its message: `runtime`, `ray`, `buffer.journal`."""
    loop, buffer = config.loop, config.buffer
    on_ray = config.runtime == "ray"
    elsewhere = on_ray and config.ray.store != "driver"
    named = ADDRESS.fullmatch(config.ray.address)
    reachable = config.ray.address in ("", "auto") or (named and 0 < int(named[1]) <= LAST_PORT)
    journal_fits = buffer.kind == "replay" and loop.clock != "virtual" and not loop.shards
    return [
        (on_ray and loop.clock != "wall", f"runtime = ray works in real time: set loop.clock = wall, got {loop.clock}"),
        (
            not reachable,
            f"ray.address must be auto, the host:port of a cluster's head, or empty, got {config.ray.address!r}",
        ),
        (
            on_ray and bool(config.ray.address) and config.ray.object_store_bytes is not None,
            f"ray.object_store_bytes {config.ray.object_store_bytes} is for a Ray of this run's own: the cluster at "
            f"{config.ray.address!r} has its own already (`ray start --object-store-memory`); set it to none",
        ),
        *_parts(config),
        (
            on_ray and config.ray.store == "shards" and not loop.shards,
            "ray.store = shards needs loop.shards = true: each trainer then holds N/T and draws B/T",
        ),
        (
            on_ray and config.ray.store == "actor" and loop.shards,
            "ray.store = actor is one buffer: set loop.shards = false, or ray.store = shards",
        ),
        (
            elsewhere and (buffer.journal or loop.epochs > 1),
            f"ray.store = {config.ray.store} cannot have buffer.journal or loop.epochs above 1: set ray.store = driver",
        ),
        (
            buffer.journal and not journal_fits,
            "buffer.journal needs buffer.kind = replay, loop.clock = wall or turns and loop.shards = false: got "
            f"{buffer.kind}, {loop.clock} and {str(loop.shards).lower()}",
        ),
    ]


def _parts(config: RunConfig) -> Checks:
    """CPUs and GPUs of one process, as Ray takes them: of GPUs whole ones, or a part of one."""
    settings = config.ray
    sizes = {
        "ray.cpus_per_generator": settings.cpus_per_generator,
        "ray.cpus_per_trainer": settings.cpus_per_trainer,
        "ray.gpus_per_generator": settings.gpus_per_generator or 0.0,
        "ray.gpus_per_trainer": settings.gpus_per_trainer or 0.0,
    }
    too_small = [
        (0 < size < LEAST_PART, f"{name} must be 0 or at least {LEAST_PART:g}, got {size:g}")
        for name, size in sizes.items()
    ]
    uneven = [
        (
            "gpus" in name and size > 1 and size != int(size),
            f"{name} must be a whole number or a part of one GPU, got {size:g}",
        )
        for name, size in sizes.items()
    ]
    return [*too_small, *uneven]
