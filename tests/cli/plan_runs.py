"""Run directories whose mu and variance by age are known."""

from pathlib import Path

import numpy as np

from ostinato.config import RunConfig, config_to_dict
from ostinato.recipe import config_from_dict
from ostinato.telemetry import JsonlWriter, write_json

MU, ALPHA = 4.0, 0.15
MEAN_AGES = {"age_1_3": 2.0, "age_4_15": 8.0, "age_16_63": 30.0}


def toy_config(**loop) -> RunConfig:
    tree = {
        "model": {"backend": "toy"},
        "task": {"name": "toy"},
        "loop": {"generators": 4, "trainers": 4, "batch_size": 40, "group_size": 8, "train_steps": 50, **loop},
        "buffer": {"capacity": 800},
    }
    return config_from_dict(tree)


def make_run(directory: Path, *, steps: int = 150, ages: bool = True, gradients: bool = False) -> Path:
    """mu 4, sigma^2 = s^0.3 at ages 2, 8 and 30, and 1 at age 0."""
    rng = np.random.default_rng(0)
    write_json(directory / "run.json", {"settings": config_to_dict(toy_config())})
    writer = JsonlWriter(directory / "metrics.jsonl")
    generated = trained = generate_s = train_s = 0.0
    for step in range(1, steps + 1):
        generated, trained = generated + 16, trained + 40
        generate_s += 16 * 0.2 * rng.gamma(16, 1 / 16)
        train_s += 40 * 0.2 / MU * rng.gamma(16, 1 / 16)
        record = {
            "event": "step", "compute": float(step), "train_step": step, "generated": generated, "trained": trained,
            "busy_generate_s": generate_s, "busy_train_s": train_s,
        }  # fmt: skip
        if ages:
            record |= {"age_0.tokens": 90.0, "age_0.chi2_token": 0.0}
            for name, age in MEAN_AGES.items():
                moment = age ** (2 * ALPHA) * rng.gamma(25, 1 / 25)
                record |= {f"{name}.tokens": 100.0, f"{name}.chi2_token": moment - 1}
        if gradients:
            # Rollout gradients of length 1 with inner products of 0.01 in a batch of 16 fresh, 24 replayed rollouts.
            square, dot = (16 + 16 * 15 * 0.01) / 40**2, 16 * 24 * 0.01 / 40**2
            other = (24 + 24 * 23 * 0.01) / 40**2
            record |= {
                "fresh_fraction": 0.4, "grad_norm_fresh": square**0.5, "grad_norm_replayed": other**0.5,
                "grad_cosine": dot / (square * other) ** 0.5,
            }  # fmt: skip
        writer.write(record)
    writer.close()
    counts = np.zeros(31, int)
    counts[[0, *map(int, MEAN_AGES.values())]] = 10
    write_json(directory / "statistics.json", {"staleness": {"counts": counts.tolist(), "mean": 10.0}})
    return directory
