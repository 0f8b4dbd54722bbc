"""Tasks with one right answer that can be computed: sorting digits, adding numbers, adding in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from ostinato.errors import ConfigError
from ostinato.protocols import Task
from ostinato.tasks.options import integer_options
from ostinato.tasks.scoring import exact, last_number

MAX_DIGITS = 64


@dataclass(frozen=True, slots=True)
class Sort:
    """`3141592653=` asks for `1123345569`: the digits in ascending order. Scored exactly."""

    digits: int
    min_digits: int

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Self:
        """`digits` (10) of the longest string, `min_digits` (the same) of the shortest. Raises `ConfigError`."""
        given = {"min_digits": options.get("digits", 10), **options}
        bounds = (10, 1, MAX_DIGITS)
        settings = integer_options("sort", given, digits=bounds, min_digits=bounds)
        _check_order("sort", settings, "min_digits", "digits")
        return cls(**settings)

    def make(self, rng: np.random.Generator) -> tuple[str, str]:
        """A length uniform between the bounds, then uniform digits."""
        length = rng.integers(self.min_digits, self.digits, endpoint=True)
        digits = "".join(map(str, rng.integers(0, 10, size=length)))
        return f"{digits}=", "".join(sorted(digits))

    def score(self, task: Task, text: str) -> float:
        """1 for the sorted digits and nothing else."""
        return exact(text, task.answer)


@dataclass(frozen=True, slots=True)
class Add:
    """`123+45=` asks for `168`. Scored exactly."""

    terms: int
    digits: int
    min_digits: int

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Self:
        """`terms` (2) numbers of `min_digits` (1) to `digits` (3) digits. Raises `ConfigError`."""
        settings = integer_options(
            "add", options, terms=(2, 2, 16), digits=(3, 1, MAX_DIGITS), min_digits=(1, 1, MAX_DIGITS)
        )
        _check_order("add", settings, "min_digits", "digits")
        return cls(**settings)

    def make(self, rng: np.random.Generator) -> tuple[str, str]:
        """Terms uniform among all numbers of the allowed lengths."""
        numbers = [self._number(rng) for _ in range(self.terms)]
        return "+".join(map(str, numbers)) + "=", str(sum(numbers))

    def score(self, task: Task, text: str) -> float:
        """1 for the sum and nothing else."""
        return exact(text, task.answer)

    def _number(self, rng: np.random.Generator) -> int:
        # Digit by digit, because 64 digits exceed the generator's integers; a number that is too short is redrawn.
        low = 10 ** (self.min_digits - 1) if self.min_digits > 1 else 0
        while True:
            number = int("".join(map(str, rng.integers(0, 10, size=self.digits))))
            if number >= low:
                return number


@dataclass(frozen=True, slots=True)
class WordSum:
    """`What is 17 plus 25? Answer with the number only.` for a chat model; the last number of the completion counts."""

    low: int
    high: int

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Self:
        """Both numbers lie in `low` (1) <= a, b < `high` (50). Raises `ConfigError`."""
        settings = integer_options("words", options, low=(1, 0, 10**9), high=(50, 1, 10**9))
        if settings["low"] >= settings["high"]:
            raise ConfigError(
                f"task.options of task 'words': low {settings['low']} must be below high {settings['high']}"
            )
        return cls(**settings)

    def make(self, rng: np.random.Generator) -> tuple[str, str]:
        """Two uniform numbers."""
        a, b = (int(number) for number in rng.integers(self.low, self.high, size=2))
        return f"What is {a} plus {b}? Answer with the number only.", str(a + b)

    def score(self, task: Task, text: str) -> float:
        """1 when the last number of the completion is the sum."""
        return last_number(text, task.answer)


def _check_order(task: str, settings: Mapping[str, int], low: str, high: str) -> None:
    if settings[low] > settings[high]:
        raise ConfigError(
            f"task.options of task {task!r}: {low} {settings[low]} must not exceed {high} {settings[high]}"
        )
