"""What an arm saves against the baseline, by one rule fixed before any run.

The rule: arms of one seed are evaluated at the same compute points; a curve is the mean of 5 neighboring evaluations of
the sampled accuracy; the target is 98 % of the final value of the baseline's curve (same seed); the saving is
1 - compute(arm) / compute(baseline), both to the first crossing of the target; an arm that never reaches it saves 0.
The target carries the baseline's noise, and all arms of a seed share it: judge by several seeds and their median. Two
identical arms save 0 on average; a gain shows slightly too small, as noise makes the flatter curve cross earlier.

`summarize` returns, ready for JSON (None where something was not measured or not reached):

    rule                        window, target_fraction, baseline (its arm name), accuracy ("sampled"), same_points
    arms.<arm>.settings         dotted name -> value, of the settings that are not the same in all arms
    arms.<arm>.median           of the numbers below over seeds; None when a seed lacks the number
    arms.<arm>.quartiles        lower, upper: the same; only from 4 seeds on
    arms.<arm>.reached          number of seeds that reached the target
    arms.<arm>.seeds.<seed>
        saving                            compute in baseline updates, at the assumed mu
        saving_at_measured_mu             the same at the mu measured in this seed's baseline run
        saving_wall_time                  busy seconds of generators and trainers instead of compute
        compute_to_target, compute_to_target_at_measured_mu, wall_time_to_target_s
        target_accuracy, reached          the target of this seed; whether this run got there
        final_sampled_accuracy, peak_sampled_accuracy, final_greedy_accuracy, peak_greedy_accuracy   of the curve
        accuracy_at_equal_compute, equal_compute   sampled, where the shortest curve of this seed ends
        assumed_mu, measured_mu           of this run
        curve       compute, sampled_accuracy, greedy_accuracy as evaluated; smoothed_compute, smoothed_accuracy
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ostinato.errors import DataError
from ostinato.stats.curves import WINDOW, compute_to_target, saving, smoothed
from ostinato.theory import compute_units, measured_mu

AXES = {
    "saving": "compute_to_target",
    "saving_at_measured_mu": "compute_to_target_at_measured_mu",
    "saving_wall_time": "wall_time_to_target_s",
}
NUMBERS = (
    *AXES,
    *AXES.values(),
    "target_accuracy",
    "final_sampled_accuracy",
    "peak_sampled_accuracy",
    "final_greedy_accuracy",
    "peak_greedy_accuracy",
    "accuracy_at_equal_compute",
    "measured_mu",
)

Axis = NDArray[np.float64] | None


@dataclass(frozen=True, slots=True)
class ArmRun:
    """One finished run of a comparison.

    `evaluations` are metric records in order, with `compute`, `generated`, `trained`, `busy_generate_s`,
    `busy_train_s`, `sampled_accuracy`, and `greedy_accuracy` or None; `mu` is the assumed one.
    """

    arm: str
    seed: int
    settings: Mapping[str, Any]
    batch_size: int
    mu: float
    evaluations: Sequence[Mapping[str, Any]]

    def column(self, name: str) -> NDArray[np.float64]:
        """One value an evaluation."""
        return np.array([record[name] for record in self.evaluations], np.float64)


def summarize(
    runs: Sequence[ArmRun], *, baseline: str = "baseline", target_fraction: float = 0.98, window: int = WINDOW
) -> dict[str, Any]:
    """Savings and accuracies of every arm and seed; the module says under which keys.

    Raises `DataError` when an arm and seed come twice, a seed has no baseline, or a run has fewer evaluations than
    `window`.
    """
    by_seed = _grouped(runs, baseline, window)
    rows: dict[str, dict[str, dict[str, Any]]] = {run.arm: {} for run in runs}
    for seed, arms in by_seed.items():
        equal = min(smoothed(run.column("compute"), window)[-1] for run in arms.values())
        for arm, run in arms.items():
            rows[arm][str(seed)] = _row(run, arms[baseline], target_fraction, window, float(equal))
    settings = _differing({arm: _flat(run.settings) for arm, run in next(iter(by_seed.values())).items()})
    rule = {"window": window, "target_fraction": target_fraction, "baseline": baseline, "accuracy": "sampled"}
    return {
        "rule": {**rule, "same_points": all(_same_points(list(arms.values())) for arms in by_seed.values())},
        "arms": {
            arm: {"settings": settings.get(arm, {}), **_across_seeds(rows[arm]), "seeds": rows[arm]} for arm in rows
        },
    }


def _grouped(runs: Sequence[ArmRun], baseline: str, window: int) -> dict[int, dict[str, ArmRun]]:
    by_seed: dict[int, dict[str, ArmRun]] = {}
    for run in runs:
        arms = by_seed.setdefault(run.seed, {})
        if run.arm in arms:
            raise DataError(f"comparison: arm {run.arm!r} has two runs with seed {run.seed}")
        if len(run.evaluations) < window:
            got = f"{run.arm!r} with seed {run.seed} has {len(run.evaluations)} evaluations"
            raise DataError(f"comparison: arm {got}, expected at least {window}")
        arms[run.arm] = run
    for seed, arms in by_seed.items():
        if baseline not in arms:
            raise DataError(f"comparison: seed {seed} has no run of the arm {baseline!r}, got {sorted(arms)}")
    return by_seed


def _row(run: ArmRun, base: ArmRun, target_fraction: float, window: int, equal_compute: float) -> dict[str, Any]:
    compute, accuracy = (smoothed(run.column(name), window) for name in ("compute", "sampled_accuracy"))
    target = target_fraction * float(smoothed(base.column("sampled_accuracy"), window)[-1])
    greedy = None if any(e["greedy_accuracy"] is None for e in run.evaluations) else run.column("greedy_accuracy")
    greedy_curve = None if greedy is None else smoothed(greedy, window)
    return {
        **_savings(run, base, target, window),
        "target_accuracy": target,
        "reached": bool(accuracy.max() >= target),
        "final_sampled_accuracy": float(accuracy[-1]),
        "peak_sampled_accuracy": float(accuracy.max()),
        "final_greedy_accuracy": None if greedy_curve is None else float(greedy_curve[-1]),
        "peak_greedy_accuracy": None if greedy_curve is None else float(greedy_curve.max()),
        "accuracy_at_equal_compute": float(np.interp(equal_compute, compute, accuracy)),
        "equal_compute": equal_compute,
        "assumed_mu": run.mu,
        "measured_mu": _measured_mu(run),
        "curve": {
            "compute": run.column("compute").tolist(),
            "sampled_accuracy": run.column("sampled_accuracy").tolist(),
            "greedy_accuracy": None if greedy is None else greedy.tolist(),
            "smoothed_compute": compute.tolist(),
            "smoothed_accuracy": accuracy.tolist(),
        },
    }


def _savings(run: ArmRun, base: ArmRun, target: float, window: int) -> dict[str, float | None]:
    """Saving and compute to target on the three axes; None where an axis was not measured."""
    result: dict[str, float | None] = {}
    for (name, needed_name), own, other in zip(AXES.items(), _axes(run, base), _axes(base, base), strict=True):
        needed, by_baseline = _needed(run, own, target, window), _needed(base, other, target, window)
        result[name] = None if own is None or other is None else saving(needed, by_baseline)
        result[needed_name] = needed
    return result


def _needed(run: ArmRun, axis: Axis, target: float, window: int) -> float | None:
    accuracy = smoothed(run.column("sampled_accuracy"), window)
    return None if axis is None else compute_to_target(smoothed(axis, window), accuracy, target)


def _axes(run: ArmRun, base: ArmRun) -> tuple[Axis, Axis, Axis]:
    """Compute at the assumed mu, compute at the baseline's measured mu, busy seconds: each (evaluations,)."""
    mu = _measured_mu(base)
    generated, trained = run.column("generated"), run.column("trained")
    units = None if mu is None else compute_units(generated, trained, mu=mu, batch_size=base.batch_size)
    seconds = run.column("busy_generate_s") + run.column("busy_train_s")
    return run.column("compute"), units, seconds if seconds[-1] > 0 else None


def _measured_mu(run: ArmRun) -> float | None:
    last = run.evaluations[-1]
    spent = [last[name] for name in ("busy_generate_s", "generated", "busy_train_s", "trained")]
    return measured_mu(*spent) if min(spent) > 0 else None


def _across_seeds(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    columns = {name: [row[name] for row in rows.values()] for name in NUMBERS}
    levels = {"median": 0.5, "lower": 0.25, "upper": 0.75}
    values = {
        level: {name: None if None in c else float(np.quantile(c, q)) for name, c in columns.items()}
        for level, q in levels.items()
    }
    result: dict[str, Any] = {"reached": sum(row["reached"] for row in rows.values()), "median": values.pop("median")}
    return {**result, "quartiles": values} if len(rows) >= 4 else result


def _same_points(runs: Sequence[ArmRun]) -> bool:
    """Whether the arms were evaluated at the same compute, as far as the shortest run goes.

    An evaluation waits for the update in progress, so points count as the same within half of their mean spacing.
    """
    shortest = min(len(run.evaluations) for run in runs)
    points = np.array([run.column("compute")[:shortest] for run in runs])
    spacing = np.min(points[:, -1] - points[:, 0]) / max(shortest - 1, 1)
    return bool(np.all(np.ptp(points, axis=0) <= spacing / 2))


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return flat


def _differing(settings: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    names = dict.fromkeys(name for flat in settings.values() for name in flat if name != "seed")
    differ = [name for name in names if len({repr(flat.get(name)) for flat in settings.values()}) > 1]
    return {arm: {name: flat[name] for name in differ if name in flat} for arm, flat in settings.items()}
