"""What a recipe needs, against what is here: packages, memory, threads, disk, downloads, the cluster's address."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ostinato.cli.check_facts import GIB, Facts, Memory, facts_of
from ostinato.cli.check_sources import downloads, missing_packages
from ostinato.cli.check_warnings import remarks_of
from ostinato.cli.doctor_finding import FAULT, OK, WARNING, Finding, size_shown
from ostinato.cli.doctor_machine import Machine
from ostinato.config import RunConfig
from ostinato.errors import ConfigError
from ostinato.theory.sizes import FLOAT32

CHECKPOINT_BYTES = 12
"""A trained parameter in a checkpoint: float32 weight and Adam's two moments."""


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes that one device must have: `sure` without the estimated activations."""

    sure: int
    whole: int


def recipe_facts(config: RunConfig, machine: Machine) -> Facts:
    """Of `ostinato check`, for the first GPU here, or for this machine's memory. Raises `ConfigError`."""
    return facts_of(config, machine.gpus[0].memory_bytes if machine.gpus else machine.memory_bytes)


def recipe_findings(facts: Facts, machine: Machine) -> Iterator[Finding]:
    """Everything but threads and disk."""
    config = facts.config
    missing = missing_packages(config)
    for module, extra in missing:
        text = f"{module} is not installed, and the recipe needs it"
        yield Finding(FAULT, "packages", text, f"pip install 'ostinato[{extra}]'")
    yield from _remarks(facts, machine)
    for line in downloads(facts):
        yield Finding(WARNING, "download", f"a run would fetch {line}", "fetch it before the run")
    yield from _memory(facts, machine)
    if config.runtime == "ray" and not any(module == "ray" for module, _ in missing):
        yield _address(config)


def computing(config: RunConfig) -> tuple[int, str]:
    """(threads that compute at once on this machine, what they are)."""
    apart = config.runtime == "ray" or config.loop.clock == "wall"
    if config.model.backend == "toy" or not apart:
        return config.threads, "the run's own process"
    w, t = config.loop.generators, config.loop.trainers if config.runtime == "ray" else 1
    if config.runtime == "ray" and config.ray.address:
        return 0, "the cluster's processes"
    return (w + t) * config.threads, f"generators {w}, trainers {t}"


def checkpoint_bytes(facts: Facts) -> int:
    """Of one checkpoint's weights and optimizer; 0 where the model's size is not known."""
    sizes, rank = facts.model.sizes if facts.model else None, facts.config.lora.rank
    if sizes is None:
        return 0
    return CHECKPOINT_BYTES * (sizes.adapter_parameters(rank) if rank else sizes.parameters)


def _remarks(facts: Facts, machine: Machine) -> Iterator[Finding]:
    """What `ostinato check` warns of; its memory is of GPUs, and packages have been named."""
    # A node of GPUs that only this command's machine lacks is no reason to warn.
    seen = facts if machine.gpus else replace(facts, memory=None)
    for line in remarks_of(seen):
        yield Finding(WARNING, "recipe", line)


def _memory(facts: Facts, machine: Machine) -> Iterator[Finding]:
    memory, config = facts.memory, facts.config
    if memory is None:
        if facts.model is not None:
            yield Finding(WARNING, "memory", f"cannot be foreseen: the model's sizes are {facts.model.origin}")
        return
    trainer, generator = memory.trainer.total, _generator_bytes(memory, config, machine)
    figures = {"trainer_bytes": trainer, "generator_bytes": generator}
    text = f"expected: a trainer {size_shown(trainer)}, a generator {size_shown(generator)}"
    if config.runtime == "ray":
        yield Finding(OK, "memory", f"{text}; who shares a device of the cluster is Ray's to decide", figures=figures)
        return
    need, (have, where) = need_here(facts, machine), room(machine)
    text += f"; a run {size_shown(need.whole)} of {size_shown(have)} free on {where}"
    level = FAULT if need.sure > have else WARNING if need.whole > have else OK
    change = "fewer optimizer.tokens_per_microbatch, optimizer.activation_checkpointing, lora.rank, or a smaller model"
    figures |= {"run_bytes": need.whole, "free_bytes": have}
    yield Finding(level, "memory", text, "" if level == OK else change, figures)


def room(machine: Machine) -> tuple[int, str]:
    """(free bytes, name) of the GPU that torch takes first, or of this machine."""
    return (machine.gpus[0].free_bytes, machine.gpus[0].name) if machine.gpus else (machine.free_bytes, "this machine")


def need_here(facts: Facts, machine: Machine) -> Need:
    """The policy that a run starts from, a trainer and the generators, on one device; 0 where sizes are not known."""
    memory, config = facts.memory, facts.config
    if memory is None or facts.model is None or facts.model.sizes is None:
        return Need(0, 0)
    engines = config.loop.generators if config.loop.clock == "wall" and config.runtime == "local" else 1
    generators, activations = engines * _generator_bytes(memory, config, machine), memory.trainer.activations
    held, trainer = FLOAT32 * facts.model.sizes.parameters, memory.trainer.total - activations
    if machine.gpus and config.generator == "vllm" and config.loop.clock == "turns" and config.vllm.sleep_level:
        return Need(held + max(trainer, generators), held + max(trainer + activations, generators))
    return Need(held + trainer + generators, held + trainer + activations + generators)


def _generator_bytes(memory: Memory, config: RunConfig, machine: Machine) -> int:
    """Weights with keys and values. vLLM takes the share of a GPU that it is given, or the cache that it is told."""
    told = config.vllm.kv_cache_gib
    if config.generator != "vllm":
        return memory.generator.weights + (memory.kv_needed or 0)
    if machine.gpus and told is None:
        return int(memory.generator_share * memory.gpu_bytes)
    return memory.generator.weights + int((told or 1.0) * GIB)


def _address(config: RunConfig) -> Finding:
    from ostinato.cluster.runtime import CONNECT_S, refuse_silent

    address = config.ray.address
    if ":" not in address:
        where = f"ray.address {address!r}" if address else "Ray will be started on this machine"
        return Finding(OK, "ray", f"{where}; what needs the cluster is checked when a run joins it")
    try:
        refuse_silent(address)
    except ConfigError as error:
        return Finding(FAULT, "ray", str(error), f"start the cluster, or open the port (waited {CONNECT_S:g} s)")
    return Finding(OK, "ray", f"{address} answers; its resources are checked when a run joins it")
