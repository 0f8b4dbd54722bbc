"""What a run tells about itself is what its batches say."""

import json

import numpy as np
import pytest
from watched import told, watch

from ostinato.backends.toy import ToyBackend
from ostinato.config import BufferConfig, LoopConfig
from ostinato.loop import Session, Stepped
from ostinato.loop.record import StepRecord
from ostinato.simulation import Simulation, simulate
from ostinato.telemetry import read_jsonl


@pytest.fixture
def watched_run(toy, tmp_path):
    settings = {"buffer": {"capacity": 252, "correct_above": 0.5}, "diagnostics": {"gradient_split_every": 4}}
    return watch(toy(loop={"train_steps": 24}, **settings), tmp_path / "run")


def test_metrics_when_recomputed_by_hand_from_the_draws_agree(watched_run) -> None:
    seen, lines, _ = watched_run
    assert len(lines) == 24
    for one, line in zip(seen, lines, strict=True):
        x, entropy = told(one.draw, one.before)
        weight, fresh, age = np.exp(x.sum(1)), one.draw.uses == 0, one.draw.staleness
        by_hand = {
            "rollouts": 60,
            "tokens": x.size,
            "kl_k1": -x.mean(),
            "kl_k2": (x**2).mean() / 2,
            "kl_k3": (np.exp(x) - 1 - x).mean(),
            "log_ratio_abs": np.abs(x).mean(),
            "ratio_mean": np.exp(x).mean(),
            "ratio_max": np.exp(x).max(),
            "ess_fraction": weight.sum() ** 2 / (60 * (weight**2).sum()),
            "geometric_ratio": np.exp(x.mean(1)).mean(),
            "entropy": entropy.mean(),
            "fresh_fraction": fresh.mean(),
            "correct_fraction": (one.draw.rollouts.reward > 0.5).mean(),
        }
        by_hand |= {"entropy_fresh": entropy[fresh].mean()} if fresh.any() else {}
        middle = (age >= 4) & (age < 16)
        if middle.any():
            by_hand |= {"age_4_15.rollouts": middle.sum(), "age_4_15.chi2_token": (np.exp(2 * x[middle]) - 1).mean()}
        assert {name: line.get(name) for name in by_hand} == pytest.approx(by_hand, rel=1e-6, abs=1e-9)
    assert sum("age_4_15.chi2_token" in line for line in lines) > 10
    assert max(line["kl_k3"] for line in lines) > 1e-3


def test_metrics_when_the_gradient_is_split_hold_both_halves_every_fourth_step(watched_run) -> None:
    seen, lines, _ = watched_run
    assert [line["train_step"] for line in lines if "grad_norm_fresh" in line] == [4, 8, 12, 16, 20, 24]
    for one, line in zip(seen, lines, strict=True):
        assert line["grad_norm"] * 20.0 == pytest.approx(np.linalg.norm(one.before - one.after), rel=1e-9)
        if line.get("grad_cosine") is not None:
            fresh, replayed = line["grad_norm_fresh"], line["grad_norm_replayed"]
            square = fresh**2 + replayed**2 + 2 * fresh * replayed * line["grad_cosine"]
            assert square == pytest.approx(line["grad_norm"] ** 2, rel=1e-9)
    assert sum(line.get("grad_cosine") is not None for line in lines) >= 3


def test_statistics_when_a_run_ends_hold_its_ages_and_drift(watched_run) -> None:
    seen, _, session = watched_run
    statistics = json.loads((session._files.path / "statistics.json").read_text())
    ages = np.concatenate([one.draw.staleness for one in seen])
    moved = np.concatenate([told(one.draw, one.before)[0].sum(1) for one in seen])
    low, high = 4, 16
    latest = moved[(ages >= low) & (ages < high)][-512:]
    numbers = statistics["ages"]["age_4_15"]
    assert numbers["rollouts"] == len(latest) == 512
    assert numbers["kl_sequence_k1"] == pytest.approx(-latest.mean(), rel=1e-6)
    weight = np.exp(latest)
    assert numbers["ess_fraction"] == pytest.approx(weight.sum() ** 2 / (512 * (weight**2).sum()), rel=1e-6)
    assert statistics["drift"] > 0


def test_share_of_correct_rollouts_when_held_is_that_of_the_buffer(toy, tmp_path) -> None:
    for shards in (False, True):
        config = toy(loop={"train_steps": 12, "shards": shards}, buffer={"capacity": 252, "correct_above": 0.5}, seed=2)
        directory = tmp_path / str(shards)
        _, lines, session = watch(config, directory)
        store = session._loop.parts.store
        rewards = np.concatenate([part.columns["reward"] for part in (store.shards if shards else [store])])
        assert lines[-1]["buffer_correct_fraction"] == pytest.approx(np.mean(rewards > 0.5))
        assert 0 < lines[-1]["buffer_correct_fraction"] < 1


def test_record_when_taken_late_is_the_one_taken_at_once(toy, tmp_path) -> None:
    config = toy(loop={"train_steps": 9}, buffer={"capacity": 252})
    _, lines, _ = watch(config, tmp_path / "run")
    session = Session(config, ToyBackend(config), tmp_path / "late")
    steps = [event for event in session._loop.run(session._clock) if isinstance(event, Stepped)]
    session.close()
    late = json.loads(json.dumps([step.record for step in steps]))
    timing = ("busy_generate_s", "busy_score_s", "busy_train_s", "mu_measured")
    for record, line in zip(late, lines, strict=True):
        assert len(record) > 40
        assert {k: v for k, v in record.items() if k not in timing} == {k: line[k] for k in record if k not in timing}


def test_record_when_nobody_takes_it_is_not_computed(monkeypatch) -> None:
    def numbers(self) -> dict:
        raise AssertionError("a simulation looks at no record")

    monkeypatch.setattr(StepRecord, "numbers", numbers)
    result = simulate(Simulation(LoopConfig(train_steps=20), BufferConfig()))
    assert result["train_steps"] == 20


def test_metrics_when_a_trainer_has_no_figures_lack_what_needs_them(toy, tmp_path) -> None:
    class Mute(ToyBackend):
        def trainer(self):
            trainer = super().trainer()
            step = trainer.step
            trainer.step = lambda draw: type(step(draw))({}, {})
            return trainer

    config = toy(loop={"train_steps": 3})
    Session(config, Mute(config), tmp_path).run()
    for line in read_jsonl(tmp_path / "metrics.jsonl"):
        assert "reward" in line and "kl_k3" not in line and "correct_fraction" not in line
    statistics = json.loads((tmp_path / "statistics.json").read_text())
    assert statistics["ages"] == {} and statistics["drift"] is None
