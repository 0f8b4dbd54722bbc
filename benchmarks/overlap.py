"""Train steps an hour when generator and trainer work at once, by those of the same recipe when they take turns.

    python benchmarks/overlap.py                                           # the demo's policy, generator = hf
    python benchmarks/overlap.py --recipe recipes/smollm2/words.toml --steps 12 --rounds 1

One generator and one trainer with one thread each. A short run in turns measures mu; every rollout is then drawn that
often (`buffer.samples_per_insert`, rounded), so that neither has more to do than the other, and a step learns from as
many new rollouts whoever waits for whom. Turns on one thread, turns on two, at once in one process, and at once on Ray
follow one another in each round. The first fifth of the steps does not count; one evaluation comes before, one after.
Further settings go to every run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ostinato.telemetry import read_json_object, read_jsonl

WAYS = {
    "turns": ("--loop.clock", "turns"),
    "turns, two threads": ("--loop.clock", "turns", "--threads", "2"),
    "at once": ("--loop.clock", "wall"),
    "at once, Ray": ("--loop.clock", "wall", "--runtime", "ray", "--loop.requests_per_generator", "2"),
}
SPARE = ("--loop.generators", "1", "--loop.trainers", "1", "--loop.mu", "1", "--threads", "1")
PROBE_STEPS = 15


def main(arguments: argparse.Namespace, settings: Sequence[str]) -> dict[str, Any]:
    """All figures: a list of runs for each way, and the medians of the ratios within a round."""
    with tempfile.TemporaryDirectory() as directory:
        probe = run(arguments.recipe, Path(directory) / "probe", PROBE_STEPS, WAYS["turns"], spi=2, settings=settings)
        uses = max(1, round(probe["mu_measured"]))
        print(f"measured mu {probe['mu_measured']:.2f}: every rollout is drawn {uses} times", flush=True)
        runs: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
        for index in range(arguments.rounds):
            for way, options in WAYS.items():
                out = Path(directory) / f"{index}-{'-'.join(way.split())}"
                seeded = [*settings, "--seed", str(index)]
                found = run(arguments.recipe, out, arguments.steps, options, spi=uses, settings=seeded)
                runs[way].append(found)
                print(f"{way:<20}{json.dumps(found)}", flush=True)
    pace = {way: [found["steps_per_hour"] for found in rounds] for way, rounds in runs.items()}
    ratios = {way: [mine / turns for mine, turns in zip(of, pace["turns"], strict=True)] for way, of in pace.items()}
    return {"uses": uses, "runs": runs, "times turns": {way: statistics.median(r) for way, r in ratios.items()}}


def run(
    recipe: Path, out: Path, steps: int, options: Sequence[str], *, spi: int, settings: Sequence[str]
) -> dict[str, Any]:
    """Train; steps an hour behind the first fifth, busy shares, accuracies, samples drawn a rollout."""
    budget = ("--loop.train_steps", str(steps), "--loop.compute_units", "0", "--evaluation.every_units", "1000000")
    command = [sys.executable, "-m", "ostinato", "train", str(recipe), "--out", str(out), *SPARE, *budget]
    command += ["--buffer.samples_per_insert", str(spi), *options, *settings]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\nended with {done.returncode}:\n{done.stderr[-3000:]}")
    records = read_jsonl(out / "metrics.jsonl")
    taken = [record for record in records if record["event"] == "step"]
    first, last = taken[len(taken) // 5], taken[-1]
    accuracy = [record["sampled_accuracy"] for record in records if record["event"] == "evaluation"]
    seconds = last["time_s"] - first["time_s"]
    return {
        "steps_per_hour": round(3600 * (last["train_step"] - first["train_step"]) / seconds, 1),
        "generate_busy": round((last["busy_generate_s"] - first["busy_generate_s"]) / seconds, 3),
        "train_busy": round((last["busy_train_s"] - first["busy_train_s"]) / seconds, 3),
        "mu_measured": read_json_object(out / "finished.json", required=("mu_measured",))["mu_measured"],
        "drawn_a_rollout": round(last["trained"] / last["generated"], 2),
        "staleness": round(statistics.fmean(record["staleness"] for record in taken[len(taken) // 5 :]), 2),
        "sampled_accuracy": [round(value, 4) for value in accuracy],
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", type=Path, default=Path("recipes/demo.toml"))
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--rounds", type=int, default=3, help="each with another seed")
    chosen, rest = parser.parse_known_args()
    print(json.dumps(main(chosen, rest), indent=1))
