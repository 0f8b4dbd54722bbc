"""Does the theory rank designs as learning does? Sixteen (W/T, N) on the noisy toy at fixed compute.

    python recipes/theory_check.py [--jobs 2] [--out runs/theory-check]

Every design has the best of four learning rates on seeds 100 to 104 and is reported on 0 to 9. What is finished is
kept. Prediction: -J(x, y), alpha fitted to token ratios by age, rho over a grid, since no run tells it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parent / "staleness"))
from study import Job, perform_all

from ostinato.cli.plan_run import facts_of_run
from ostinato.recipe import config_from_dict, merge, recipe_tree
from ostinato.telemetry import read_jsonl, write_json
from ostinato.theory import PowerLaw, Workload, mean_uses

MU, BATCH = 5.28, 60
SPLITS, CAPACITIES = ((6, 2), (5, 3), (4, 4), (2, 6)), (84, 252, 756, 2268)
RATES, TUNING_SEEDS, SEEDS = (8.0, 32.0, 128.0, 512.0), tuple(range(100, 105)), tuple(range(10))
COMPUTE = 100.0
RHOS = (0.0, 0.05, 0.2, 1.0)

Cell = tuple[tuple[int, int], int]


def job(cell: Cell, rate: float, seed: int, out: Path) -> Job:
    """One run at fixed compute."""
    (generators, trainers), capacity = cell
    own: dict[str, Any] = {
        "seed": seed,
        "toy": {"learning_rate": rate},
        "loop": {"generators": generators, "trainers": trainers, "mu": MU, "compute_units": COMPUTE},
        "buffer": {"kind": "replay", "capacity": capacity},
        "evaluation": {"every_units": 10.0},
    }
    tree = recipe_tree(Path(__file__).parent / "staleness" / "toy.toml")
    for section, key in (("loop", "max_staleness"), ("loop", "train_steps"), ("loop", "groups_per_request")):
        del tree[section][key]
    del tree["buffer"]["order"]
    name = f"w{generators}t{trainers}-n{capacity}-rate{rate:g}-seed{seed}"
    return Job(name, seed, config_from_dict(merge(tree, own), name), out / name)


def accuracy(directory: Path) -> float:
    """Sampled accuracy, mean over all evaluations after the start: early and late count."""
    records = [r["sampled_accuracy"] for r in read_jsonl(directory / "metrics.jsonl") if r["event"] == "evaluation"]
    return float(np.mean(records[1:]))


def ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Ranks from 0, means where values tie."""
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(count)
    return np.asarray((ends - (count + 1) / 2)[place])


def rank_correlation(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    """Spearman's; 0 where one of them is constant."""
    x, y = ranks(a), ranks(b)
    x, y = x - x.mean(), y - y.mean()
    scale = float(np.sqrt((x @ x) * (y @ y)))
    return float(x @ y) / scale if scale else 0.0


def interval(predicted: NDArray[np.float64], achieved_ds: NDArray[np.float64]) -> tuple[float, float]:
    """90 % of 2,000 resamples of designs and, within each, of seeds."""
    rng = np.random.default_rng(0)
    designs, seeds = achieved_ds.shape
    found = []
    for _ in range(2000):
        rows = rng.integers(designs, size=designs)
        drawn = achieved_ds[rows[:, None], rng.integers(seeds, size=(designs, seeds))]
        found.append(rank_correlation(predicted[rows], drawn.mean(axis=1)))
    low, high = np.quantile(found, [0.05, 0.95])
    return float(low), float(high)


def main(words: Sequence[str] | None = None) -> None:
    """Run what is missing; print the designs and the correlations in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs/theory-check"))
    arguments = parser.parse_args(words)
    out: Path = arguments.out
    cells: list[Cell] = list(product(SPLITS, CAPACITIES))
    perform_all([job(c, rate, seed, out) for c in cells for rate in RATES for seed in TUNING_SEEDS], arguments.jobs)
    best = {
        c: max(RATES, key=lambda r, c=c: sum(accuracy(job(c, r, seed, out).directory) for seed in TUNING_SEEDS))
        for c in cells
    }
    perform_all([job(c, best[c], seed, out) for c in cells for seed in SEEDS], arguments.jobs)
    achieved = np.array([[accuracy(job(c, best[c], s, out).directory) for s in SEEDS] for c in cells])
    fitted = facts_of_run(
        job(((4, 4), 2268), best[(4, 4), 2268], 0, out).directory, want_mu=False, want_variance=True, want_rho=False
    ).alpha
    alpha = max(fitted.value, 0.0) if fitted is not None else 0.1
    report(cells, best, achieved, alpha, out)


def report(cells: list[Cell], best: dict[Cell, float], achieved: NDArray[np.float64], alpha: float, out: Path) -> None:
    """Tables, and everything as JSON."""
    print(f"alpha = {alpha:.3f}\n\n| W, T | N | uses | horizon | rate | accuracy, {len(SEEDS)} seeds |")
    print("|---|---|---|---|---|---|")
    x, y = np.zeros(len(cells)), np.zeros(len(cells))
    for i, (split, capacity) in enumerate(cells):
        y[i] = mean_uses(MU, *split)
        x[i] = capacity * y[i] / BATCH
        row = achieved[i]
        print(
            f"| {split[0]}, {split[1]} | {capacity} | {y[i]:.2f} | {x[i]:.1f} | {best[split, capacity]:g} "
            f"| {row.mean():.3f} ({row.min():.3f} to {row.max():.3f}) |"
        )
    print("\n| rho | rank correlation | 90 % |\n|---|---|---|")
    correlations = {}
    for rho in RHOS:
        predicted = -Workload(MU, rho, PowerLaw(alpha)).objective(x, y)
        low, high = interval(predicted, achieved)
        correlations[rho] = (rank_correlation(predicted, achieved.mean(axis=1)), low, high)
        print(f"| {rho} | {correlations[rho][0]:.2f} | {low:.2f} to {high:.2f} |")
    write_json(
        out / "theory_check.json",
        {"alpha": alpha, "accuracy": achieved.tolist(), "correlations": {str(k): v for k, v in correlations.items()}},
    )


if __name__ == "__main__":
    main()
