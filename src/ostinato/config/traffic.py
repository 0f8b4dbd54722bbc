"""Who waits for whom, and what is kept at its optimum: settings that could not work."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.config.bounds import (
    bounds_of,
    controlled,
    least_ratio,
    most_ratio,
    narrowest_band,
    oldest_kept,
    request_size,
    shard_count,
    share_of_request,
)
from ostinato.config.sections import AUTO

if TYPE_CHECKING:
    from ostinato.config.run import RunConfig

Checks = list[tuple[bool, str]]
"""Whether something is wrong, and what."""


def capacity_to_check(config: RunConfig) -> int:
    """What the sizes must be possible at."""
    capacity = config.buffer.capacity
    if isinstance(capacity, str):
        return bounds_of(config.loop, config.buffer, config.control).least_capacity
    return capacity


def control_checks(config: RunConfig) -> Checks:
    """What is kept at its optimum."""
    loop, buffer, rules = config.loop, config.buffer, config.control
    auto_capacity, auto_ratio = controlled(buffer)
    bounds = bounds_of(loop, buffer, rules)
    named = "buffer.capacity" if auto_capacity else "buffer.samples_per_insert"
    return [
        *(
            (isinstance(value, str) and value != AUTO, f"{name} must be a number or auto, got {value!r}")
            for name, value in (
                ("buffer.capacity", buffer.capacity),
                ("buffer.samples_per_insert", buffer.samples_per_insert),
            )
        ),
        (
            buffer.kind == "queue" and (auto_capacity or auto_ratio),
            f"{named} = auto needs buffer.kind = replay: a queue uses each rollout once",
        ),
        (
            (auto_capacity or auto_ratio) and buffer.journal,
            f"{named} = auto is in checkpoints, not in a journal: set buffer.journal = false, or a number",
        ),
        (
            (auto_capacity or auto_ratio) and config.runtime == "ray" and config.ray.store != "driver",
            f"{named} = auto turns a buffer of this process: set ray.store = driver, got {config.ray.store}",
        ),
        (
            auto_capacity and bounds.least_capacity > bounds.most_capacity,
            f"buffer.capacity = auto has no room: at least {bounds.least_capacity} rollouts are needed for a batch, a "
            "request, buffer.min_size, buffer.positive_bias and buffer.samples_per_insert, at most "
            f"{bounds.most_capacity} allowed; raise control.max_batches {rules.max_batches} or change those",
        ),
    ]


def traffic_checks(config: RunConfig) -> Checks:
    """Samples per insert: nobody may wait for ever."""
    loop, buffer = config.loop, config.buffer
    ratio, band, n = least_ratio(buffer), buffer.error_buffer, capacity_to_check(config)
    if ratio is None:
        return [
            (band is not None, f"buffer.error_buffer {band} needs buffer.samples_per_insert: nobody waits without it"),
            (
                loop.clock == "turns" and buffer.kind == "replay",
                "loop.clock = turns needs buffer.samples_per_insert: without it the learner would never give way; "
                "set a number (`ostinato plan --colocated` gives one) or auto, or buffer.kind = queue",
            ),
        ]
    narrowest, share = narrowest_band(loop, ratio), share_of_request(loop)
    return [
        (ratio <= 0, f"buffer.samples_per_insert must be above 0, got {ratio}"),
        (
            buffer.kind == "queue",
            f"buffer.samples_per_insert {buffer.samples_per_insert} needs buffer.kind = replay: a queue uses each "
            "rollout once",
        ),
        (
            band is not None and band < narrowest,
            f"buffer.error_buffer {band} lets both sides wait for each other: at {ratio} samples per insert, batches "
            f"of {loop.batch_size} and requests of {request_size(loop)} it must be at least {narrowest:g}, or none",
        ),
        (
            0 < ratio * n < loop.batch_size,
            f"buffer.samples_per_insert {ratio:g} * buffer.capacity {n} < loop.batch_size {loop.batch_size}: the whole "
            "buffer would be replaced between two draws; raise one of the first two",
        ),
        (
            ratio > most_ratio(loop, buffer),
            f"buffer.samples_per_insert {buffer.samples_per_insert} is never reached: what leaves beyond staleness "
            f"{oldest_kept(loop, buffer)} stays for too few draws, {most_ratio(loop, buffer):g} samples per insert at "
            "most; lower it, or raise loop.max_staleness",
        ),
        (
            share > n // shard_count(loop),
            f"loop.shards: {share} rollouts of a request do not fit in a shard of {n // shard_count(loop)}; raise "
            f"buffer.capacity to {share * shard_count(loop)}",
        ),
        (
            loop.shards and bool(_leaving(config)),
            f"loop.shards with buffer.samples_per_insert and {_leaving(config)}: rollouts would leave one shard and "
            "not another, and each could wait for the other; set loop.shards = false",
        ),
    ]


def _leaving(config: RunConfig) -> str:
    """The first setting that lets rollouts leave before the capacity does, empty: none."""
    buffer, rules = config.buffer, config.governors
    reasons = {
        "loop.max_staleness": oldest_kept(config.loop, buffer) is not None,
        "buffer.capacity_bytes": buffer.capacity_bytes is not None,
        "buffer.positive_bias": buffer.positive_bias > 0,
        "governors.ratio_bound": rules.ratio_bound is not None,
        "governors.ess_bound": rules.ess_bound is not None,
        "governors.gate_z": rules.gate_z is not None,
    }
    return next((name for name, given in reasons.items() if given), "")
