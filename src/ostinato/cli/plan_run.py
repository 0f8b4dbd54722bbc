"""What a finished or growing run says about its workload: mu, variance by age, a limit on rho."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ostinato.cli.plan_facts import AgeRow, Facts, Known
from ostinato.errors import ConfigError, DataError
from ostinato.loop.run_directory import settings_of
from ostinato.stats import AGE_EDGES
from ostinato.stats.ages import age_names
from ostinato.telemetry import read_json_object, read_jsonl
from ostinato.theory import (
    AgeMoments,
    Estimate,
    MeasuredVariance,
    estimate_correlation_limit,
    estimate_exponent,
    estimate_mu,
    monotone,
)
from ostinato.theory.variance import Floats

COUNTERS = ("busy_generate_s", "generated", "busy_train_s", "trained")
GRADIENTS = ("grad_norm_fresh", "grad_norm_replayed", "grad_cosine", "fresh_fraction")
LAST_AGE_FACTOR = 1.5
"""The open bucket's age where no histogram tells it: this times its lower end."""

MOST = 1e100
"""No metric of a run is larger; their products must stay floats."""

Records = Sequence[Mapping[str, Any]]


def facts_of_run(directory: Path, *, want_mu: bool, want_variance: bool, want_rho: bool) -> Facts:
    """Read a run directory; only what is wanted must be there.

    Raises `ConfigError` when it is no run, `DataError` when the run lacks what is wanted.
    """
    steps = _steps(directory)
    rng = np.random.default_rng(0)
    mu = Known.measured(_mu(steps, directory, rng), f"{len(steps)} train steps") if want_mu else None
    notes: list[str] = []
    alpha, variance = None, None
    ages: list[AgeRow] = []
    if want_variance:
        moments = age_moments(steps, directory)
        try:
            alpha = Known.measured(estimate_exponent(moments, rng), "token ratios by age")
        except DataError as error:
            raise DataError(f"{directory}: {error}; give --alpha, or --variance") from None
        ages, variance = _by_age(moments)
        notes.append(
            "variance by age is a stand-in: the second moment of token ratios pi/mu, which knows nothing of clipping, "
            "of the size of single gradients, or of the bias that age brings"
        )
    limit = _rho_limit(steps, directory, rng) if want_rho else None
    return Facts(mu, alpha, limit, ages, variance, _settings(directory), {}, notes)


def _number(record: Mapping[str, Any], name: str, directory: Path) -> float | None:
    """A metric of a train step, None where it lacks. Raises `DataError` unless its size is below `MOST`."""
    value = record.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < MOST:
        raise DataError(f"{directory}/metrics.jsonl: {name} must be a number below {MOST:g}, got {str(value)[:40]!r}")
    return float(value)


def _counts(histogram: Any, path: Path) -> Floats:
    counts = histogram.get("counts") if isinstance(histogram, dict) else None
    if not isinstance(counts, list) or not all(isinstance(n, int | float) and 0 <= n < MOST for n in counts):
        raise DataError(f"{path}: staleness must hold a list of counts, got {str(histogram)[:40]}")
    return np.array(counts, np.float64)


def _settings(directory: Path) -> dict[str, Any]:
    """What a plan starts from. Raises `DataError` when the loop's sizes are not there."""
    settings = settings_of(directory)
    loop = settings.get("loop")
    for name in ("generators", "trainers", "batch_size"):
        size = loop.get(name) if isinstance(loop, dict) else None
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise DataError(f"{directory}/run.json: loop.{name} must be a whole number of at least 1, got {size!r}")
    return settings


def age_moments(steps: Records, directory: Path) -> AgeMoments:
    """1 + chi2 of the token ratios by age bucket and train step, weighted by tokens.

    Raises `DataError` when the metrics hold no ages.
    """
    names = age_names(AGE_EDGES)
    weights, totals = np.zeros((len(steps), len(names))), np.zeros((len(steps), len(names)))
    for i, record in enumerate(steps):
        for j, name in enumerate(names):
            tokens, chi2 = (
                _number(record, f"{name}.tokens", directory),
                _number(record, f"{name}.chi2_token", directory),
            )
            if tokens and tokens > 0 and chi2 is not None:
                # The mean of squares is above 0; rounding may take it there.
                weights[i, j], totals[i, j] = tokens, tokens * max(1 + chi2, 1e-12)
    if not weights.any():
        raise DataError(
            f"{directory}/metrics.jsonl has no figures by age (age_1_3.chi2_token ...) to fit the variance to; "
            "give --alpha, or run again with this version"
        )
    return AgeMoments(_mean_ages(directory), weights, totals)


def _steps(directory: Path) -> Records:
    if (directory / "summary.json").exists():
        raise ConfigError(f"{directory} holds a comparison; give one of its runs")
    if not (directory / "metrics.jsonl").exists():
        raise ConfigError(f"{directory} is no run: it has no metrics.jsonl")
    steps = [record for record in read_jsonl(directory / "metrics.jsonl") if record["event"] == "step"]
    if len(steps) < 2:
        raise DataError(f"{directory}/metrics.jsonl has {len(steps)} train steps, a plan needs at least 2")
    return steps


def _mu(steps: Records, directory: Path, rng: np.random.Generator) -> Estimate:
    lacking = [name for name in COUNTERS if any(record.get(name) is None for record in steps)]
    if lacking:
        raise DataError(f"{directory}/metrics.jsonl lacks {lacking[0]!r} in some train steps; give --mu")
    counters = np.array([[_number(record, name, directory) for name in COUNTERS] for record in steps], np.float64)
    generate_s, generated, train_s, trained = np.diff(counters, axis=0, prepend=0.0).T
    return estimate_mu(generate_s, generated, train_s, trained, rng)


def _mean_ages(directory: Path) -> Floats:
    """The geometric mean age of each bucket by the run's histogram of staleness; without one, of its two ends."""
    path = directory / "statistics.json"
    counts = np.zeros(0)
    if path.exists():
        histogram = read_json_object(path, required=("staleness",))["staleness"]
        counts = _counts(histogram, path)
    means = []
    for low, high in zip(AGE_EDGES, (*AGE_EDGES[1:], len(counts)), strict=True):
        held = counts[low:high]
        if low == 0:
            means.append(0.0)
        elif held.sum() > 0:
            means.append(float(np.exp(held @ np.log(np.arange(low, low + len(held))) / held.sum())))
        else:
            means.append(float(np.sqrt(low * (high - 1))) if high > low else low * LAST_AGE_FACTOR)
    return np.array(means)


def _by_age(moments: AgeMoments) -> tuple[list[AgeRow], MeasuredVariance]:
    seen = moments.seen()
    ages, values, weights = moments.ages[seen], moments.mean()[seen], moments.weights.sum(0)[seen]
    relative = values / (values[0] if ages[0] == 0 else 1.0)  # at age 0 every ratio is 1
    rows = [AgeRow(float(a), float(v), float(w)) for a, v, w in zip(ages, relative, weights, strict=True)]
    return rows, MeasuredVariance(ages, monotone(relative, weights))


def _rho_limit(steps: Records, directory: Path, rng: np.random.Generator) -> Known | None:
    used = [record for record in steps if all(record.get(name) is not None for name in GRADIENTS)]
    first, last = (_number(steps[i], "generated", directory) for i in (0, -1))
    if len(used) < 2 or first is None or last is None or last <= first:
        return None
    fresh_norm, replayed_norm, cosine, share = (
        np.array([_number(record, name, directory) for record in used], np.float64) for name in GRADIENTS
    )
    batch = float(_settings(directory)["loop"]["batch_size"])
    fresh, replayed = share * batch, (1 - share) * batch
    if not float((fresh * replayed).sum()) > 0:
        return None
    per_step = (last - first) / (len(steps) - 1)
    estimate = estimate_correlation_limit(
        (fresh_norm * batch) ** 2, fresh_norm * replayed_norm * cosine * batch**2, fresh, replayed, per_step, rng
    )
    return Known.measured(estimate, f"gradients of {len(used)} batches")
