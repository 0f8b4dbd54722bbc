"""Mean uses of a rollout: what the paper prints, what theory says, and which service times come near.

    python -m benchmarks.mean_uses

Source of the printed values: arXiv 2604.08706, figure 2.
"""

from __future__ import annotations

import math

import numpy as np

from ostinato.config import BufferConfig, LoopConfig
from ostinato.simulation import LogNormal, Service, Simulation, simulate

SPLITS = ((6, 2), (5, 3), (4, 4))
PRINTED = {"Qwen2.5-7B": (5.28, (1.78, 3.42, 7.0)), "Qwen3-0.6B": (6.84, (2.2, 5.6, 17.6))}
PAUSES = tuple(np.arange(0, 0.24, 0.01))


def simulated(mu: float, service: Service, steps: int = 1500) -> list[float]:
    """Mean uses of each split, N = 252."""
    uses = []
    for generators, trainers in SPLITS:
        loop = LoopConfig(
            generators=generators, trainers=trainers, batch_size=60, group_size=12, mu=mu, train_steps=steps
        )
        uses.append(float(simulate(Simulation(loop, BufferConfig(capacity=252), service))["uses"]["mean"]))
    return uses


def misfit(found: list[float], printed: tuple[float, ...]) -> float:
    """Root mean square of the log of found over printed."""
    return math.sqrt(float(np.mean(np.log(np.array(found) / np.array(printed)) ** 2)))


def main() -> None:
    """Print a table in Markdown."""
    print("| model | service times | (6, 2) | (5, 3) | (4, 4) | misfit |\n|---|---|---|---|---|---|")
    for model, (mu, printed) in PRINTED.items():
        rows: dict[str, list[float]] = {"steady: mu T / W": simulated(mu, Service())}
        longest = Service(LogNormal(0.5), "longest")
        ratio = math.exp(np.mean(np.log(np.array(printed) / np.array(rows["steady: mu T / W"]))))
        rows[f"every request {ratio:.2f} times slower"] = [ratio * u for u in rows["steady: mu T / W"]]
        rows["log-normal lengths (sigma 0.5), waiting for the longest"] = simulated(mu, longest)
        fits = {p: simulated(mu, Service(pause=float(p), pause_for="published"), steps=400) for p in PAUSES}
        best = min(fits, key=lambda p: misfit(fits[p], printed))
        rows[f"a pause of {best:.2f} C each time weights are published"] = simulated(
            mu, Service(pause=float(best), pause_for="published")
        )
        print(f"| {model} | printed | {' | '.join(f'{u:.2f}' for u in printed)} | |")
        for name, uses in rows.items():
            print(f"| | {name} | {' | '.join(f'{u:.2f}' for u in uses)} | {misfit(uses, printed):.0%} |")


if __name__ == "__main__":
    main()
