"""The store that a recipe asks for."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ostinato.buffer import (
    Epoch,
    Exponential,
    FreshAnchored,
    Limiter,
    MaxStaleness,
    MinSize,
    NeverUsedFirst,
    PositiveBias,
    Prioritized,
    ReplayBuffer,
    Retention,
    Sampler,
    SamplesPerInsert,
    ShardedBuffer,
    Uniform,
    no_buffer,
)
from ostinato.buffer.sampling import Indexed
from ostinato.config import BufferConfig, LoopConfig
from ostinato.config.bounds import least_ratio, oldest_kept, shard_count, share_of_request
from ostinato.errors import ConfigError
from ostinato.loop.priorities import COLUMNS
from ostinato.protocols import Store

EPS = 1e-6
"""Added to every priority, so that none is 0 (arXiv 1511.05952; the same in the others)."""


@dataclass(frozen=True, slots=True)
class Scheme:
    """What a prioritized sampler does where a recipe says nothing; see docs/presets.md.

    `written`: the priority is written back after each train step even where it is a column, so that newcomers, which
    have the largest priority held, come first.
    """

    priority: str = "advantage"
    exponent: float = 0.6
    beta: float = 0.0
    tau: float | None = None
    written: bool = False


SCHEMES = {
    "prioritized": Scheme(),
    "per": Scheme(beta=0.4, written=True),
    "freshness_per": Scheme("reward", tau=500.0),
    "advantage_prioritized": Scheme(exponent=0.5),
}


def written_priority(buffer: BufferConfig) -> str | None:
    """The priority that must be written back after each train step (`loop.priorities`), None: none."""
    if not is_prioritized(buffer):
        return None
    scheme = SCHEMES[buffer.sampler]
    name = buffer.priority or scheme.priority
    return name if scheme.written or name not in COLUMNS else None


def is_prioritized(buffer: BufferConfig) -> bool:
    """Whether draws go by priority."""
    return buffer.kind == "replay" and buffer.sampler in SCHEMES


def settle_sums(store: Store) -> None:
    """Let rows lie, and sums over them be formed, as after loading a checkpoint.

    Sums of floats depend on the order in which they are formed, and with them importance weights in their last digit.
    After each train step of a prioritized run: so it goes on after an interruption as if there had been none. O(N).
    """
    for shard in store.shards if isinstance(store, ShardedBuffer) else [store]:
        if isinstance(shard, ReplayBuffer) and isinstance(shard.sampler, Indexed):
            shard.sampler.rebuilt(shard.columns)


def build_store(buffer: BufferConfig, loop: LoopConfig) -> Store:
    """The buffer, its T shards, or the queue that a recipe asks for.

    Raises `ConfigError` for a capacity or samples per insert that is still `auto`: see `governors.control`.
    """
    capacity = buffer.capacity
    if isinstance(capacity, str):
        raise ConfigError(f"buffer.capacity = {capacity} needs a run that measures; give a number")
    if buffer.kind == "queue":
        queue = no_buffer(capacity, order=buffer.order, max_staleness=loop.max_staleness)
        queue.statistics.correct_above = buffer.correct_above
        return queue
    count = shard_count(loop)
    shards = [
        ReplayBuffer(
            capacity // count,
            capacity_bytes=None if buffer.capacity_bytes is None else buffer.capacity_bytes // count,
            sampler=_sampler(buffer),
            retention=_retention(buffer, loop),
            limiter=limiter_of(buffer, loop),
            first_id=index,
            id_stride=count,
        )
        for index in range(count)
    ]
    for shard in shards:
        shard.statistics.correct_above = buffer.correct_above
    return ShardedBuffer(shards) if loop.shards else shards[0]


def limiter_of(buffer: BufferConfig, loop: LoopConfig) -> Limiter:
    """Who must wait, of the buffer or of each shard."""
    count, ratio, band = shard_count(loop), buffer.samples_per_insert, buffer.error_buffer
    if ratio is None:
        return MinSize(buffer.min_size // count)
    if isinstance(ratio, str):
        raise ConfigError(f"buffer.samples_per_insert = {ratio} needs a run that measures; give a number")
    return SamplesPerInsert(
        ratio,
        min_size=buffer.min_size // count,
        # Checked for the whole buffer: a share may lie a rounding error below its own bound.
        error_buffer=None
        if band is None
        else max(band / count, loop.batch_size / count, ratio * share_of_request(loop)),
        batch_size=loop.batch_size // count,
        group_size=share_of_request(loop),
    )


def awaited(buffer: BufferConfig, loop: LoopConfig) -> int:
    """Rollouts that a draw may wait for although a batch is there: those that pay for it, and one request."""
    ratio = least_ratio(buffer)
    return 0 if ratio is None else math.ceil(loop.batch_size / ratio) + shard_count(loop) * share_of_request(loop)


def _sampler(buffer: BufferConfig) -> Sampler:
    if buffer.sampler in SCHEMES:
        return _prioritized(buffer, SCHEMES[buffer.sampler])
    if buffer.sampler == "epoch":
        return Epoch()
    return NeverUsedFirst() if buffer.sampler == "never_used_first" else Uniform(buffer.replacement)


def _prioritized(buffer: BufferConfig, scheme: Scheme) -> Sampler:
    anchored = buffer.sampler == "advantage_prioritized"
    beta = scheme.beta if buffer.beta is None else buffer.beta
    tau = scheme.tau if buffer.freshness_tau is None else buffer.freshness_tau
    sampler = Prioritized(
        "priority" if written_priority(buffer) else buffer.priority or scheme.priority,
        scheme.exponent if buffer.priority_exponent is None else buffer.priority_exponent,
        beta=beta or None,
        normalize=None if buffer.normalize == "off" else buffer.normalize or "buffer",
        eps=EPS,
        decay=None if tau is None else Exponential(tau),
        replacement=buffer.replacement and not anchored,
    )
    # The size of a batch is the recipe's: what new rollouts leave of it is replayed, from the first step on.
    return FreshAnchored(sampler) if anchored else sampler


def _retention(buffer: BufferConfig, loop: LoopConfig) -> list[Retention]:
    bound = oldest_kept(loop, buffer)
    rules: list[Retention] = [] if bound is None else [MaxStaleness(bound)]
    return [*rules, PositiveBias(buffer.positive_bias, buffer.correct_above)] if buffer.positive_bias else rules
