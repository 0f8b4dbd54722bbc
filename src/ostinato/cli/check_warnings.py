"""Settings that are possible and yet hardly meant."""

from __future__ import annotations

from collections.abc import Iterator

from ostinato.cli.check_facts import GIB, Facts, Memory
from ostinato.cli.check_sources import missing_packages
from ostinato.config import RunConfig


def warnings_of(facts: Facts) -> list[str]:
    """One line each, with what to change."""
    return [*_packages(facts.config), *remarks_of(facts)]


def remarks_of(facts: Facts) -> list[str]:
    """Those of settings, whatever is installed."""
    config = facts.config
    found = [*_replay(facts), *_placement(config), *_scoring(config)]
    return found + (list(_memory(config, facts.memory)) if facts.memory else [])


def _packages(config: RunConfig) -> Iterator[str]:
    for module, extra in missing_packages(config):
        yield f"{module} is not installed; run: pip install 'ostinato[{extra}]'"


def _replay(facts: Facts) -> Iterator[str]:
    config, pace = facts.config, facts.pace
    loop = config.loop
    ratio = config.buffer.samples_per_insert
    if pace.capacity is not None and pace.horizon is not None:
        split = f"loop.generators {loop.generators} beside loop.trainers {loop.trainers} is too many at mu {loop.mu:g}"
        if pace.gamma >= 1:
            why = split if ratio is None else f"buffer.samples_per_insert {ratio} is too few"
            yield f"gamma = {pace.gamma:.2f}: a train step costs no less than without a buffer; {why}"
        if pace.uses < 1:
            cure = "fewer loop.generators, more trainers" if ratio is None else "raise buffer.samples_per_insert"
            yield f"a rollout is used {pace.uses:.2f} times: some are never drawn; {cure}"
        if pace.capacity > pace.rollouts:
            yield (
                f"buffer.capacity {pace.capacity} is more than the {pace.rollouts} rollouts of the whole run: "
                "nothing ever leaves"
            )
        bound = loop.max_staleness
        if bound is not None and pace.horizon > bound + 1:
            yield (
                f"loop.max_staleness {bound} removes what buffer.capacity {pace.capacity} would keep for "
                f"{pace.horizon:.0f} train steps"
            )
    if loop.batch_size % loop.group_size and config.buffer.kind == "queue":
        yield f"loop.batch_size {loop.batch_size} is no multiple of loop.group_size {loop.group_size}: groups are split"


def _placement(config: RunConfig) -> Iterator[str]:
    loop = config.loop
    if config.runtime == "local" and loop.clock != "virtual" and loop.trainers > 1:
        yield (
            f"runtime = local with loop.clock = {loop.clock} trains in one process: loop.trainers {loop.trainers}"
            " counts in nothing but shards and what is predicted; runtime = ray has that many"
        )
    if config.runtime == "ray" and config.model.backend == "toy" and loop.trainers > 1:
        yield f"runtime = ray refuses loop.trainers {loop.trainers} of model.backend = toy, set it to 1"
    if loop.clock != "virtual" and not config.checkpoint_every:
        yield "checkpoint_every 0: a run in real time that is killed begins anew"


def _scoring(config: RunConfig) -> Iterator[str]:
    task = config.task
    if task.scorer and task.score_workers == 0:
        yield "task.score_workers 0: a scorer of your own that hangs would stop the run"


def _memory(config: RunConfig, memory: Memory) -> Iterator[str]:
    gpu, need = memory.gpu_bytes, memory.trainer.total
    if config.loop.clock == "virtual":
        return  # one machine plays the node
    if need > gpu:
        yield (
            f"a trainer needs about {need / GIB:.0f} GiB, more than a GPU of {gpu / GIB:.0f}: optimizer.fsdp with more "
            "loop.trainers, optimizer.activation_checkpointing, fewer optimizer.tokens_per_microbatch, or lora.rank"
        )
    if memory.kv_room <= 0:
        yield (
            f"a generator's weights take {memory.generator.weights / GIB:.0f} GiB, more than "
            f"{memory.generator_share:g} of a GPU of {gpu / GIB:.0f}: vllm.tensor_parallel_size"
        )
    elif config.generator == "vllm" and memory.sequence_tokens:
        fit = memory.generator.completions(memory.kv_room, memory.sequence_tokens)
        if fit < config.loop.group_size:
            yield (
                f"{fit} sequences of vllm.max_model_len {memory.sequence_tokens} fit beside a generator's weights,"
                f" fewer than loop.group_size {config.loop.group_size}: they will wait for each other"
            )
