"""Where generators and trainers run: the `ray` section of a recipe."""

from __future__ import annotations

from dataclasses import dataclass

from ostinato.config.setting import setting

LONGEST_S = 1e7
"""A third of a year: what waits longer than that waits for ever."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RayConfig:
    """W generator processes and T trainer processes on a Ray cluster (runtime = ray)."""

    address: str = setting(
        "", "an existing cluster: auto, or host:port of its head; empty: a Ray of this run's own, on this machine"
    )
    cpus_per_generator: float = setting(1.0, "CPUs that Ray sets aside for a generator", low=0, high=4096)
    gpus_per_generator: float | None = setting(
        None,
        "GPUs of a generator, may be a fraction; none: 1, or vllm.tensor_parallel_size, where there are any, else 0",
        low=0,
        high=4096,
    )
    cpus_per_trainer: float = setting(1.0, "CPUs that Ray sets aside for a trainer", low=0, high=4096)
    gpus_per_trainer: float | None = setting(
        None, "GPUs of a trainer, may be a fraction; none: 1 where the cluster has any, else 0", low=0, high=4096
    )
    store: str = setting(
        "driver",
        "where the buffer lives: driver (this process), actor (a process of its own) or shards (N/T in each trainer, "
        "with loop.shards); from the last two what is drawn goes to the trainers without passing this process",
        choices=("driver", "actor", "shards"),
    )
    object_store_bytes: int | None = setting(
        None,
        "shared memory of a Ray of our own, for weights and rollouts on their way; none: 30 % of memory",
        low=1 << 27,
    )
    start_timeout_s: float = setting(600.0, "how long a process may take to load its model", low=1, high=LONGEST_S)
    generate_timeout_s: float = setting(
        600.0,
        "a generator that takes longer for a request hangs: it is killed and its prompts are given out again",
        low=0.1,
        high=LONGEST_S,
    )
    train_timeout_s: float = setting(
        1800.0,
        "trainers that take longer for a step hang: they go back to the last checkpoint",
        low=1,
        high=LONGEST_S,
    )
    max_restarts: int = setting(
        3, "how often in a row a generator may fail at one request, or trainers without finishing a step", low=0
    )
