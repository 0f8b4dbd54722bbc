"""Any data set of the reasoning-gym package: `task.name = reasoning-gym:DATASET`."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Self

import numpy as np

from ostinato.errors import ConfigError, MissingExtraError
from ostinato.protocols import Task
from ostinato.tasks.options import nearest, refuse_unknown
from ostinato.tasks.task_set import TEST, prompt_id

PREFIX = "reasoning-gym:"
CHUNK = 256
_OPEN, _CLOSE = "<answer>", "</answer>"


class ReasoningGymSource:
    """Proposes the entries of one reasoning-gym data set.

    The package's data sets have a fixed size, and some prepare all entries up front, so they are created in chunks of
    `CHUNK` entries, each chunk from a seed of its own. Options are the fields of the data set's configuration except
    `seed` and `size`. `task.answer` is empty where the data set has no single gold answer. Rewards are the package's
    own, partial credit included. Entries are as reproducible as the package makes them.
    """

    def __init__(self, name: str, factory: Any, options: Mapping[str, Any], seed: int) -> None:
        self.name = name
        self._factory = factory
        self._options = dict(options)
        self._seed = seed
        self._chunk = lru_cache(maxsize=4)(self._create_chunk)

    @classmethod
    def from_options(cls, name: str, options: Mapping[str, Any], seed: int) -> Self:
        """Check name and options. Raises `ConfigError`, or `MissingExtraError` without the package."""
        if importlib.util.find_spec("reasoning_gym") is None:
            raise MissingExtraError("reasoning-gym", "tasks")
        from reasoning_gym import factory

        dataset = name.removeprefix(PREFIX)
        # A composite is configured by nested objects, which a recipe cannot write.
        known = sorted(set(factory.DATASETS) - {"composite"})
        if dataset not in known:
            near = PREFIX + nearest(dataset, known)
            raise ConfigError(f"task.name: unknown reasoning-gym data set {dataset!r}; did you mean {near!r}?")
        config_type = factory.DATASETS[dataset][1]
        refuse_unknown(name, options, sorted({f.name for f in dataclasses.fields(config_type)} - {"seed", "size"}))
        source = cls(name, factory, options, seed)
        try:
            source.propose(TEST, 0, 0)
        except (AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise ConfigError(f"task.options of {name!r} are refused by the data set: {error}") from error
        return source

    def __reduce__(self) -> tuple[Any, ...]:
        return self.from_options, (self.name, self._options, self._seed)

    def propose(self, split: int, index: int, attempt: int) -> Task:
        """Entry `index` modulo `CHUNK` of the chunk that holds it."""
        chunk, position = divmod(index, CHUNK)
        entry = self._chunk(split, chunk, attempt)[position]
        gold = entry["answer"]
        return Task(
            prompt=entry["question"],
            answer="" if gold is None else str(gold),
            prompt_id=prompt_id(entry["question"]),
            source=self.name,
            details=entry,
        )

    def score(self, task: Task, text: str) -> float:
        """The data set's reward of the extracted answer."""
        return float(self._chunk(TEST, 0, 0).score_answer(answer=extract_answer(text), entry=dict(task.details)))

    def _create_chunk(self, split: int, chunk: int, attempt: int) -> Any:
        # 31 bits: entry i is made from seed + i, and some data sets hand that to numpy, which takes 32.
        seed = int(np.random.default_rng((self._seed, split, chunk, attempt)).integers(2**31))
        name = self.name.removeprefix(PREFIX)
        return self._factory.create_dataset(name, seed=seed, size=CHUNK, **self._options)


def extract_answer(text: str) -> str:
    """What follows the last `<answer>`, up to `</answer>` if there is one; the whole text without the tag; stripped."""
    return text.rpartition(_OPEN)[2].partition(_CLOSE)[0].strip() if _OPEN in text else text.strip()
