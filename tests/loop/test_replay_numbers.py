"""A long run against the closed forms of arXiv 2604.08706."""

import json

import numpy as np
import pytest

from ostinato.buffer import paper_fifo
from ostinato.rollouts import Rollouts
from ostinato.telemetry import read_jsonl
from ostinato.theory import compute_ratio, fifo_residence, mean_uses


@pytest.mark.parametrize(("generators", "trainers"), [(6, 2), (5, 3), (4, 4)])
def test_mean_uses_when_nobody_idles_is_mu_t_over_w_within_two_percent(toy, run_toy, generators, trainers) -> None:
    config = toy(loop={"generators": generators, "trainers": trainers, "train_steps": 1500}, buffer={"capacity": 252})
    directory = run_toy(config)
    statistics = json.loads((directory / "statistics.json").read_text())
    expected = mean_uses(5.28, generators, trainers)
    assert statistics["uses"]["mean"] == pytest.approx(expected, rel=0.02)
    last = read_jsonl(directory / "metrics.jsonl")[-1]
    assert last["trained"] / last["generated"] == pytest.approx(expected, rel=0.02)
    gamma = compute_ratio(5.28, generators, trainers)
    assert last["compute"] / last["train_step"] == pytest.approx(gamma, rel=0.02)


def test_residence_when_a_buffer_is_filled_and_drawn_in_turns_is_half_the_horizon() -> None:
    buffer, rng, ages = paper_fifo(252), np.random.default_rng(0), []
    for step in range(4000):
        prompts = [[0]] * 12
        buffer.add(Rollouts.from_completions(prompts, prompts, [[0.0]] * 12), train_step=step)
        if buffer.can_sample(60) and step >= 21:
            ages.append(buffer.sample(60, train_step=step, rng=rng).residence)
    drawn = np.concatenate(ages)
    assert drawn.mean() == pytest.approx(fifo_residence(252, 12), abs=0.06)  # (21 - 1) / 2
    assert np.bincount(drawn) / len(drawn) == pytest.approx(np.full(21, 1 / 21), rel=0.05)


def test_residence_when_generators_run_beside_the_learner_is_one_step_more(toy, run_toy) -> None:
    # (5, 3): 60 rollouts every 1.056 C while a step takes C / 3, so x = N / R = 13.3 steps. What arrives during a step
    # is drawn at the next one at the earliest: one optimizer step lies between, so residence is (x - 1) / 2 + 1.
    per_step = 60 * 5 / (5.28 * 3)
    directory = run_toy(toy(loop={"train_steps": 1500}, buffer={"capacity": 252}))
    statistics = json.loads((directory / "statistics.json").read_text())
    assert statistics["residence"]["mean"] == pytest.approx(fifo_residence(252, per_step) + 1, rel=0.02)
    # A group takes 1.056 C = 3.17 steps to generate.
    assert statistics["staleness"]["mean"] - statistics["residence"]["mean"] == pytest.approx(3.17, abs=0.05)
    assert sum(statistics["staleness"]["counts"]) == 1500 * 60
    assert sum(statistics["steps_since_last_use"]["counts"]) + statistics["new"] == 1500 * 60


def test_baseline_when_run_costs_one_unit_a_step_and_uses_each_once(toy, run_toy) -> None:
    directory = run_toy(toy(loop={"train_steps": 100}, buffer={"kind": "queue", "capacity": 180}))
    last = read_jsonl(directory / "metrics.jsonl")[-1]
    assert last["compute"] == pytest.approx(100, rel=0.02)
    assert json.loads((directory / "statistics.json").read_text())["uses"]["counts"] == [0, 6000]


def test_epochs_control_when_each_batch_is_trained_three_times_costs_less_a_step(toy, run_toy) -> None:
    directory = run_toy(toy(loop={"train_steps": 300, "epochs": 3}, buffer={"kind": "queue", "capacity": 180}))
    last = read_jsonl(directory / "metrics.jsonl")[-1]
    assert last["compute"] / 300 == pytest.approx((1 + 5.28 / 3) / (1 + 5.28), rel=0.02)
    statistics = json.loads((directory / "statistics.json").read_text())
    assert statistics["uses"]["mean"] == 3.0
    assert statistics["steps_since_last_use"]["counts"] == [0, 12000] and statistics["new"] == 6000


@pytest.mark.parametrize("buffer", [{"capacity": 1020}, {"kind": "queue", "capacity": 180}], ids=["replay", "queue"])
@pytest.mark.parametrize("clock", ["virtual", "wall"])
def test_toy_when_trained_learns(toy, run_toy, buffer, clock) -> None:
    config = toy(
        loop={"compute_units": 60.0, "clock": clock, "generators": 2},
        buffer=buffer,
        evaluation={"every_units": 20.0, "samples": 16},
    )
    records = read_jsonl(run_toy(config) / "metrics.jsonl")
    accuracies = [r["sampled_accuracy"] for r in records if r["event"] == "evaluation"]
    assert accuracies[0] < 0.15
    assert accuracies[-1] > 0.75
