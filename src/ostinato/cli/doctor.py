"""`ostinato doctor`: whether this machine, and a recipe on it, are fit for training, and what to change."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

from ostinato.cli.backends import cache_directory, open_backend
from ostinato.cli.check_facts import Facts
from ostinato.cli.check_sources import check_task, downloads
from ostinato.cli.doctor_finding import FAULT, OK, WARNING, Finding, size_shown, worst
from ostinato.cli.doctor_machine import Machine, device_findings, disk_finding, this_machine, thread_findings
from ostinato.cli.doctor_packages import package_findings
from ostinato.cli.doctor_probe import probe, probed
from ostinato.cli.doctor_recipe import checkpoint_bytes, computing, need_here, recipe_facts, recipe_findings, room
from ostinato.config import RunConfig
from ostinato.errors import ConfigError, OstinatoError
from ostinato.recipe import load_recipe

RUNS = Path("runs")


def run(arguments: Namespace) -> int:
    """Print the findings as they come; returns 1 with a FAULT among them, else 0. Raises `ConfigError` for a recipe
    that would not run."""
    if arguments.recipe is None and arguments.overrides:
        raise ConfigError(f"{arguments.overrides[0]} is a setting of a recipe, and none is given: name a RECIPE.toml")
    config = load_recipe(arguments.recipe, arguments.overrides) if arguments.recipe else None
    name = f"{arguments.recipe.stem}-train" if arguments.recipe else ""
    findings = []
    for finding in examined(config, arguments.out or RUNS / name):
        findings.append(finding)
        if not arguments.json:
            print("\n".join(finding.lines()), flush=True)
    level = worst(findings)
    if arguments.json:
        print(json.dumps({"level": level, "findings": [f.as_json() for f in findings]}, allow_nan=False))
    else:
        counts = ", ".join(f"{sum(f.level == each for f in findings)} {each}" for each in (FAULT, WARNING))
        print(f"\n{level}: {counts}")
    return 1 if level == FAULT else 0


def examined(config: RunConfig | None, directory: Path) -> Iterator[Finding]:
    """All findings: about the machine, the recipe on it, then its model, tasks and engine at work."""
    machine = this_machine()
    facts, task, faults = None, None, []
    if config is not None:
        facts = recipe_facts(config, machine)
        task = _task(config)
    for finding in _at_rest(machine, facts, directory):
        yield finding
        faults += [finding] * (finding.level == FAULT)
    if facts is not None and task is not None:
        yield task
        yield from _at_work(facts, machine, stopped=bool(faults) or task.level == FAULT)


def _at_rest(machine: Machine, facts: Facts | None, directory: Path) -> Iterator[Finding]:
    yield from package_findings()
    yield from device_findings(machine)
    yield from thread_findings(machine, *(computing(facts.config) if facts else (0, "")))
    yield disk_finding("cache", cache_directory(), 0, "the variable OSTINATO_CACHE")
    yield disk_finding("runs", directory, checkpoint_bytes(facts) if facts else 0, "--out")
    if facts is not None:
        yield from recipe_findings(facts, machine)


def _task(config: RunConfig) -> Finding:
    """Raises `ConfigError` for a task that the recipe describes wrongly."""
    try:
        return Finding(OK, "task", check_task(config))
    except ConfigError:
        raise
    except (OstinatoError, OSError) as error:
        return Finding(FAULT, "task", _one_line(error), "mend the task's data, or install what it needs")


def _at_work(facts: Facts, machine: Machine, *, stopped: bool) -> Iterator[Finding]:
    """The probe, unless something stands in its way. It never goes to the network."""
    absent = list(downloads(facts))
    config = probed(facts.config, facts.model.place if facts.model else None)
    need, (have, where) = need_here(recipe_facts(config, machine), machine), room(machine)
    obstacle = None
    if stopped:
        obstacle = "because of the faults above", "mend them, then ask again"
    elif absent:
        obstacle = "since what it needs is not on this machine", "fetch it, then ask again"
    elif need.sure > have:
        text = f"since model, trainer and generator in one place take {size_shown(need.sure)}, {where} has"
        obstacle = f"{text} {size_shown(have)} free", "ask on a machine where they fit"
    if obstacle:
        yield Finding(WARNING, "parity", f"not checked, {obstacle[0]}", obstacle[1])
        return
    try:
        backend = open_backend(config)
        built = facts.model is not None and not config.model.path and facts.config.warm_start.target_accuracy > 0
        yield Finding(OK, "model", backend.describe() + ("; here without its warm start" if built else ""))
        yield from probe(config, backend)
    except Exception as error:  # noqa: BLE001 - whatever a model, an engine or a device raises is what was asked for
        yield Finding(FAULT, "parity", _one_line(error), _remedy(error))


def _remedy(error: Exception) -> str:
    if isinstance(error, MemoryError) or "out of memory" in str(error).lower():
        return "lower optimizer.tokens_per_microbatch or vllm.gpu_memory_utilization, or see lora.rank"
    return "a run would end with the same error: mend what it names"


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, OstinatoError) and text else f"{type(error).__name__}: {text}".rstrip(": ")
