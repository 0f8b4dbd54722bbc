"""What a plan rests on: numbers, and where each of them comes from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ostinato.theory import Estimate, Limits, MeasuredVariance, Plan


@dataclass(frozen=True, slots=True)
class Known:
    """A number and its `origin`: given, measured or assumed; `low` and `high`, where it was estimated, its interval."""

    value: float
    origin: str
    low: float | None = None
    high: float | None = None

    @classmethod
    def measured(cls, estimate: Estimate, origin: str) -> Known:
        """An estimate of a run."""
        return cls(estimate.value, origin, estimate.low, estimate.high)


@dataclass(frozen=True, slots=True)
class AgeRow:
    """What a run saw of one age bucket: mean `age` in train steps, `second_moment` relative to age 0, `tokens`."""

    age: float
    second_moment: float
    tokens: float


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known before planning; None: not known. `rho_limit`: rho is at most this, by measurement.

    `settings`: the recipe that a written one starts from. `notes`: what a reader should hear about these numbers.
    """

    mu: Known | None = None
    alpha: Known | None = None
    rho_limit: Known | None = None
    ages: Sequence[AgeRow] = ()
    variance: MeasuredVariance | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    measured: Mapping[str, Any] = field(default_factory=dict)
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Advice:
    """A plan with its question and its grounds.

    `over_rho`, `over_alpha`: plans over the range of a number that is not known well, empty where it is. `break_even`:
    the rho up to which replay pays, None where that does not change over the range. `alpha`: None where the law was
    given by ages. `named_split`: the split without a buffer was named.
    """

    plan: Plan
    limits: Limits
    named_split: bool
    mu: Known
    alpha: Known | None
    rho: Known
    over_rho: Mapping[float, Plan]
    over_alpha: Mapping[float, Plan]
    break_even: float | None
    facts: Facts
