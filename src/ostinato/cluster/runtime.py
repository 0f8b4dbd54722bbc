"""The Ray cluster that a run works on, and what it must have."""

from __future__ import annotations

import logging
import math
import os
import socket
from dataclasses import dataclass
from typing import Any

import ray

from ostinato.config import RunConfig
from ostinato.errors import ConfigError, RunError

CONNECT_S = 10.0


def connect(config: RunConfig) -> None:
    """Join the cluster at `ray.address`, or start one of this process's own with CPUs for everybody.

    A Ray that this process has joined already is used as it is. Raises `ConfigError` when nothing answers at the
    address, or the cluster can never hold what the recipe asks for.
    """
    settings = config.ray
    if not ray.is_initialized():
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        # What Ray will do from its next major release on: a process without GPUs keeps what it sees.
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        refuse_silent(settings.address)
        try:
            if settings.address:
                ray.init(address=settings.address, **quiet)
            else:
                # CPUs are what Ray counts by; the operating system shares the cores out when there are fewer.
                cpus = max(os.cpu_count() or 1, math.ceil(wanted_cpus(config)))
                memory = settings.object_store_bytes
                ray.init(num_cpus=cpus, include_dashboard=False, object_store_memory=memory, **quiet)
        except (ConnectionError, ValueError) as error:
            reason = " ".join(str(error).split())
            if not settings.address:
                raise ConfigError(
                    f"Ray did not start with ray.object_store_bytes = {settings.object_store_bytes or 'none'}: {reason}"
                ) from None
            raise ConfigError(
                f"ray.address {settings.address!r} cannot be joined: {reason}; start one with `ray start --head`, "
                "or leave the address empty"
            ) from None
        except (RuntimeError, OSError) as error:
            raise RunError(f"Ray did not start: {' '.join(str(error).split())}") from error
    Places.of(config)


def refuse_silent(address: str) -> None:
    """Raise `ConfigError` when nobody listens at host:port: Ray itself would knock for minutes."""
    host, colon, port = address.rpartition(":")
    if not colon:
        return
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_S).close()
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"ray.address {address!r}: nobody answers ({error}); start a cluster with `ray start --head`, or leave the "
            "address empty"
        ) from None


def disconnect() -> None:
    """Leave the cluster, and end it if this process started it; its actors end."""
    ray.shutdown()


@dataclass(frozen=True, slots=True)
class Places:
    """What Ray sets aside for each generator and each trainer, as options of an actor."""

    generator: dict[str, float]
    trainer: dict[str, float]

    @classmethod
    def of(cls, config: RunConfig) -> Places:
        """As the recipe says, by default with a GPU where there are any.

        Raises `ConfigError` when the cluster is too small.
        """
        settings, have = config.ray, dict[str, float](ray.cluster_resources())  # type: ignore[no-untyped-call]
        any_gpu = have.get("GPU", 0) > 0
        engine = config.vllm.tensor_parallel_size if config.generator == "vllm" else 1
        wanted = (settings.gpus_per_generator, engine), (settings.gpus_per_trainer, 1)
        gpus = [float(default * any_gpu) if n is None else n for n, default in wanted]
        places = cls(
            {"num_cpus": settings.cpus_per_generator, "num_gpus": gpus[0]},
            {"num_cpus": settings.cpus_per_trainer, "num_gpus": gpus[1]},
        )
        w, t = config.loop.generators, config.loop.trainers
        for resource, option in (("CPU", "num_cpus"), ("GPU", "num_gpus")):
            needed = w * places.generator[option] + t * places.trainer[option]
            if needed > have.get(resource, 0) + 1e-9:
                unit = resource.lower()
                raise ConfigError(
                    f"{w} generators with {places.generator[option]:g} {resource}s and {t} trainers with "
                    f"{places.trainer[option]:g} need {needed:g} {resource}s, the cluster has "
                    f"{have.get(resource, 0):g}: lower loop.generators, loop.trainers, ray.{unit}s_per_generator or "
                    f"ray.{unit}s_per_trainer"
                )
        return places


def wanted_cpus(config: RunConfig) -> float:
    """CPUs of all generators and trainers."""
    loop, settings = config.loop, config.ray
    return loop.generators * settings.cpus_per_generator + loop.trainers * settings.cpus_per_trainer
