"""Countdown: reach a target from a few numbers, each used at most once, with + - * / and parentheses."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Self

import numpy as np

from ostinato.errors import ConfigError
from ostinato.protocols import Task
from ostinato.tasks.options import integer_options

MAX_EXPRESSION_CHARACTERS = 256
MOST_REDRAWS = 100
_ALLOWED = re.compile(rf"[0-9+\-*/() ]{{1,{MAX_EXPRESSION_CHARACTERS}}}")
_PROMPT = re.compile(r"([0-9]+(?:,[0-9]+)*)>([0-9]+)=")
_SUM, _PRODUCT, _ATOM = range(3)


@dataclass(frozen=True, slots=True)
class Countdown:
    """`3,7,25>82=` asks for an expression worth 82, for example `3*25+7`."""

    numbers: int
    max_number: int
    max_target: int

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Self:
        """`numbers` (3) from 1 to `max_number` (25), target up to `max_target` (999). Raises `ConfigError`."""
        settings = integer_options(
            "countdown", options, numbers=(3, 2, 8), max_number=(25, 1, 10**6), max_target=(999, 1, 10**9)
        )
        if settings["max_number"] > settings["max_target"]:
            raise ConfigError(
                f"task.options of task 'countdown': max_number {settings['max_number']} must not exceed"
                f" max_target {settings['max_target']}"
            )
        return cls(**settings)

    def make(self, rng: np.random.Generator) -> tuple[str, str]:
        """Combine random numbers two by two until one is left: the target, with its solution.

        A target that is one of the numbers would give itself away; it is drawn again, `MOST_REDRAWS` times at most.
        """
        for _ in range(MOST_REDRAWS):
            numbers, target = self._draw(rng)
            if target.value not in numbers:
                break
        return f"{','.join(map(str, numbers))}>{target.value}=", target.text

    def _draw(self, rng: np.random.Generator) -> tuple[list[int], _Term]:
        numbers = [int(number) for number in rng.integers(1, self.max_number, size=self.numbers, endpoint=True)]
        terms = [_Term(number, str(number), _ATOM) for number in numbers]
        while len(terms) > 1:
            i, j = (int(k) for k in rng.choice(len(terms), size=2, replace=False))
            results = _combinations(terms[i], terms[j], self.max_target)
            rest = [term for k, term in enumerate(terms) if k not in (i, j)]
            if not rest:
                results = [term for term in results if term.value not in numbers] or results
            terms = [*rest, results[rng.integers(len(results))]]
        return numbers, terms[0]

    def score(self, task: Task, text: str) -> float:
        """1 for any valid expression worth the target, 0 for everything else."""
        match = _PROMPT.fullmatch(task.prompt)
        if match is None:
            raise ValueError(f"expected a countdown prompt like '3,7,25>82=', got {task.prompt!r}")
        numbers = [int(number) for number in match[1].split(",")]
        return float(evaluate(text.strip(), numbers) == int(match[2]))


def evaluate(expression: str, numbers: list[int]) -> Fraction | None:
    """Exact value of an expression that uses each of `numbers` at most once; None when it is not one.

    Only + - * / between integers and parentheses are allowed: no sign, no power, no floor division. Nothing is
    executed; length and leaves are bounded before any arithmetic, so a hostile text costs no more than a good one.
    """
    if not _ALLOWED.fullmatch(expression):
        return None
    try:
        tree = ast.parse(expression, mode="eval").body
    except (SyntaxError, MemoryError, RecursionError):
        return None
    leaves = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    if Counter(leaves) - Counter(numbers):
        return None
    try:
        return _value(tree)
    except (TypeError, ZeroDivisionError):
        return None


@dataclass(frozen=True, slots=True)
class _Term:
    value: int
    text: str
    level: int

    def within(self, level: int) -> str:
        """The text, in parentheses when it binds less tightly than `level`."""
        return self.text if self.level >= level else f"({self.text})"


def _combinations(a: _Term, b: _Term, high: int) -> list[_Term]:
    """All results from 1 to `high`; never empty for a, b in that range: a difference or, when equal, a quotient."""
    big, small = (a, b) if a.value >= b.value else (b, a)
    results = []
    if a.value + b.value <= high:
        results.append(_Term(a.value + b.value, f"{a.text}+{b.text}", _SUM))
    if big.value > small.value:
        results.append(_Term(big.value - small.value, f"{big.text}-{small.within(_PRODUCT)}", _SUM))
    if a.value * b.value <= high:
        results.append(_Term(a.value * b.value, f"{a.within(_PRODUCT)}*{b.within(_PRODUCT)}", _PRODUCT))
    if big.value % small.value == 0:
        quotient = f"{big.within(_PRODUCT)}/{small.within(_ATOM)}"
        results.append(_Term(big.value // small.value, quotient, _PRODUCT))
    return results


def _value(node: ast.AST) -> Fraction:
    match node:
        case ast.Constant(value=int(number)):
            return Fraction(number)
        case ast.BinOp(left, ast.Add(), right):
            return _value(left) + _value(right)
        case ast.BinOp(left, ast.Sub(), right):
            return _value(left) - _value(right)
        case ast.BinOp(left, ast.Mult(), right):
            return _value(left) * _value(right)
        case ast.BinOp(left, ast.Div(), right):
            return _value(left) / _value(right)
    raise TypeError(f"{type(node).__name__} is not part of a countdown expression")
