"""What a buffer's sizes must keep to: one batch, one request, one filling. Checks refuse what lies outside, and
`governors.control` moves inside.

Sharded, each of T shards holds N/T rollouts, gives B/T and is dealt its part of a request; else T = 1 here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ostinato.config.governing import ControlConfig
from ostinato.config.sections import AUTO, SAMPLER_STALENESS, BufferConfig, LoopConfig

MOST_USES = 32.0
"""Samples per insert that are kept at the optimum stay below it, as those of a plan do."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of what is kept at its optimum, both included: of the capacity, in whole `step`s, and of the samples per
    insert. Where a least exceeds a most nothing is possible."""

    least_capacity: int
    most_capacity: int
    step: int
    least_uses: float
    most_uses: float


def shard_count(loop: LoopConfig) -> int:
    """T with shards, else 1."""
    return loop.trainers if loop.shards else 1


def request_size(loop: LoopConfig) -> int:
    """Rollouts that one request of a generator brings."""
    return loop.group_size * loop.groups_per_request


def share_of_request(loop: LoopConfig) -> int:
    """The most that one request brings to a shard; one more where it is dealt unevenly, since a shard may then be ahead
    of another by one rollout, and both sides must not wait, each for another shard."""
    part, rest = divmod(request_size(loop), shard_count(loop))
    return part + 2 if rest else part


def narrowest_band(loop: LoopConfig, ratio: float) -> float:
    """The least error_buffer, of the whole buffer, at which learner and generators cannot wait for each other."""
    count = shard_count(loop)
    return count * max(loop.batch_size / count, ratio * share_of_request(loop))


def kept_newest(capacity: int, positive_bias: float, shards: int) -> int:
    """The newest rollouts that are kept whatever their reward."""
    return int((1 - positive_bias) * (capacity // shards)) * shards


def oldest_kept(loop: LoopConfig, buffer: BufferConfig) -> int | None:
    """The staleness beyond which a rollout leaves a replay buffer, None where none does."""
    return SAMPLER_STALENESS.get(buffer.sampler) if loop.max_staleness is None else loop.max_staleness


def most_ratio(loop: LoopConfig, buffer: BufferConfig) -> float:
    """The samples per insert that no run can exceed: a rollout that stays up to a staleness of S is there for S + 1
    draws, and each of these needs `floor` of them."""
    oldest = oldest_kept(loop, buffer)
    return math.inf if oldest is None else (oldest + 1) * loop.batch_size / max(loop.batch_size, buffer.min_size)


def bounds_of(loop: LoopConfig, buffer: BufferConfig, control: ControlConfig) -> Bounds:
    """The bounds of a recipe. `least_capacity` exceeds `most_capacity` when no capacity serves."""
    step, need = shard_count(loop), max(loop.batch_size, buffer.min_size)
    least = max(need, request_size(loop))
    if (ratio := least_ratio(buffer)) is not None:
        # Below B / y the whole buffer would be replaced between two draws.
        least = max(least, step * share_of_request(loop), math.ceil(loop.batch_size / ratio))
    most = control.max_batches * loop.batch_size
    share = 1 - buffer.positive_bias  # at 0 nothing is kept without correct ones
    least = max(least, math.ceil(need / share)) if share else most + 1
    least = -(-least // step) * step
    while least <= most and kept_newest(least, buffer.positive_bias, step) < need:
        least += step  # rounding, within and across shards
    band = buffer.error_buffer
    most_uses = min(MOST_USES, most_ratio(loop, buffer))
    most_uses = most_uses if band is None else min(most_uses, band / (step * share_of_request(loop)))
    return Bounds(least, most // step * step, step, 1.0, most_uses)


def least_ratio(buffer: BufferConfig) -> float | None:
    """The samples per insert that a recipe must be possible at; None: it sets none."""
    ratio = buffer.samples_per_insert
    return 1.0 if isinstance(ratio, str) else ratio


def controlled(buffer: BufferConfig) -> tuple[bool, bool]:
    """Whether capacity, and samples per insert, are kept at their optimum."""
    return buffer.capacity == AUTO, buffer.samples_per_insert == AUTO
