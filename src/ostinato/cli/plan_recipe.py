"""A plan as a recipe that `ostinato train` takes."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ostinato.cli.plan_facts import Advice
from ostinato.cli.plan_numbers import chosen
from ostinato.errors import ConfigError
from ostinato.recipe import config_from_dict, merge
from ostinato.telemetry import write_atomic
from ostinato.theory import Limits, Plan

COMPUTE_UNITS = 240.0
"""How long a recipe from numbers alone trains."""


def refuse_existing(path: Path, *, overwrite: bool) -> None:
    """Raise `ConfigError` when there is something already, or the directory is missing."""
    if path.exists() and not overwrite:
        raise ConfigError(f"{path} exists; add --force to overwrite it, or choose another --write")
    if not path.parent.is_dir():
        raise ConfigError(f"--write: {path.parent} is no directory")


def refuse_no_directory(option: str, path: Path | None) -> None:
    """Raise `ConfigError` when `path` can be no directory: it or something above it is a file."""
    if path is not None:
        nearest = next(parent for parent in (path, *path.parents) if parent.exists())
        if not nearest.is_dir():
            raise ConfigError(f"{option}: {nearest} is no directory")


def write_recipe(path: Path, advice: Advice, *, overwrite: bool) -> None:
    """Write the plan as TOML, over the settings that it started from; arms are left out.

    Raises `ConfigError` when those settings contradict the plan.
    """
    tree: dict[str, Any] = copy.deepcopy(dict(advice.facts.settings))
    tree.pop("arms", None)
    merge(tree, planned_settings(advice))
    config_from_dict(tree, where=f"the planned recipe {path}")
    refuse_existing(path, overwrite=overwrite)
    write_atomic(path, "\n".join(_text(tree, advice)) + "\n")


def planned_settings(advice: Advice) -> dict[str, Any]:
    """The sections that the plan decides."""
    plan, limits = advice.plan, advice.limits
    base = advice.facts.settings.get("loop", {})
    loop: dict[str, Any] = {
        **(_turns(plan, limits) if plan.in_turns else _split(plan, limits, base)),
        "mu": plan.workload.mu,
        "batch_size": limits.batch_size,
        "group_size": limits.group_size,
    }
    if not base.get("compute_units") and not base.get("train_steps"):
        loop["compute_units"] = COMPUTE_UNITS
    if plan.replays:
        ratio = plan.design.uses_per_rollout if plan.in_turns else None
        kept = {"kind": "replay", "capacity": plan.design.capacity, "samples_per_insert": ratio, "error_buffer": None}
        return {"loop": loop | {"epochs": 1}, "buffer": kept}
    request = limits.group_size * loop.get("groups_per_request", base.get("groups_per_request", 1))
    free = {"samples_per_insert": None, "error_buffer": None}
    return {"loop": loop, "buffer": {"kind": "queue", "capacity": limits.batch_size + request, **free}}


def _split(plan: Plan, limits: Limits, base: Mapping[str, Any]) -> dict[str, Any]:
    """W generators beside T trainers."""
    setting = chosen(plan)
    clock = {"clock": "wall"} if base.get("clock") == "turns" else {}
    return clock | {
        "generators": setting["generators"],
        "trainers": setting["trainers"],
        "shards": limits.sharded and plan.replays,
    }


def _turns(plan: Plan, limits: Limits) -> dict[str, Any]:
    """One engine and one trainer by turns; the whole groups that a train step needs of new rollouts are one request."""
    new = limits.batch_size / (plan.design.uses_per_rollout if plan.replays else 1.0)
    return {
        "clock": "turns",
        "generators": 1,
        "requests_per_generator": 1,
        "groups_per_request": max(int(new / limits.group_size), 1),
        "trainers": 1,
        "shards": False,
    }


def _text(tree: Mapping[str, Any], advice: Advice) -> Iterator[str]:
    plan: Plan = advice.plan
    yield f"# Written by `ostinato plan`: mu {plan.workload.mu:.4g}, rho {plan.workload.rho:.4g}" + (
        "" if advice.alpha is None else f", alpha {advice.alpha.value:.4g}"
    )
    if plan.replays:
        yield f"# Predicted: {plan.design.saving_per_update:.1%} less compute an update, " + (
            f"{plan.design.saving_to_accuracy:.1%} less to an accuracy."
        )
    else:
        yield "# No buffer: the best design with one would cost more."
    if plan.in_turns:
        yield "# One machine in turns: the dial is how often a rollout is used, buffer.samples_per_insert."
    if not advice.facts.settings:
        yield "# Model, task and optimizer are the defaults; put in your own."
    plain = {key: value for key, value in tree.items() if not isinstance(value, Mapping)}
    yield from (f"{key} = {_value(value)}" for key, value in plain.items())
    for section, values in tree.items():
        if isinstance(values, Mapping) and values:
            yield ""
            yield f"[{section}]"
            yield from (f"{_key(key)} = {_value(value)}" for key, value in values.items())


def _value(value: Any) -> str:
    if value is None:
        return '"none"'
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(key)} = {_value(inner)}" for key, inner in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return json.dumps(value)


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _value(key)
