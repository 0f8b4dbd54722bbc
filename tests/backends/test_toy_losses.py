"""Every loss of the catalog trains the toy; without torch two of them do."""

import json
import subprocess
import sys

import numpy as np
import pytest
from test_toy import CONFIG, batch

from ostinato.backends.toy import CLOSED_FORMS, ToyBackend, ToyTrainer, closed_form
from ostinato.config import LossConfig, ToyConfig
from ostinato.config.losses import LOSSES
from ostinato.loop import Session
from ostinato.protocols import Draw
from ostinato.recipe import config_from_dict, merge
from ostinato.stats import FIGURES
from ostinato.telemetry import read_arrays, read_jsonl

TOY = {
    "model": {"backend": "toy"},
    "task": {"name": "toy"},
    "toy": {"prompts": 4, "length": 2, "vocabulary": 4, "learning_rate": 20.0},
    "loop": {"train_steps": 60},
    "buffer": {"capacity": 252},
    "evaluation": {"every_units": 0.0},
    "checkpoint_every": 0,
}
GIVEN = {
    "gipo": {"loss": {"options": {"sigma": 0.5}}},
    "truncated_importance": {"loss": {"options": {"high": 2.0}}},
    "cispo": {"loss": {"clip_high": 2.0}},
    # Its partition function needs the members of a group in one batch: a queue hands out whole groups.
    "trajectory_balance": {
        "loss": {"options": {"beta": 0.2}},
        "buffer": {"kind": "queue", "capacity": 180},
        "toy": {"learning_rate": 1.0},
    },
}


def rewards(tmp_path, name: str, **sections) -> list[float]:
    tree = merge(json.loads(json.dumps(TOY)), {"loss": {"name": name}})
    config = config_from_dict(merge(merge(tree, json.loads(json.dumps(GIVEN.get(name, {})))), sections))
    Session(config, ToyBackend(config), tmp_path / "run").run()
    return [record["reward"] for record in read_jsonl(tmp_path / "run" / "metrics.jsonl")]


@pytest.mark.parametrize("name", LOSSES)
def test_toy_when_trained_under_any_loss_finds_the_hidden_sequences(tmp_path, name) -> None:
    reward = rewards(tmp_path, name)
    assert np.mean(reward[:5]) < 0.2  # chance: 1 of 16
    assert np.mean(reward[-10:]) > 0.55


def test_toy_when_trained_under_trajectory_balance_ends_at_the_tilted_reference(tmp_path) -> None:
    settings = {"loop": {"train_steps": 150}, "toy": {"length": 1}, "loss": {"options": {"beta": 0.5}}}
    rewards(tmp_path, "trajectory_balance", **settings, checkpoint_every=150)
    table = read_arrays(tmp_path / "run" / "checkpoints" / "step-00000150" / "trainer" / "table.npz")["table"][:, 0]
    policy = np.exp(table) / np.exp(table).sum(-1, keepdims=True)
    # pi is proportional to the uniform reference times exp(R / beta), with R = 1 for one token of four.
    other = 1 / (np.exp(1 / 0.5) + 3)
    assert np.sort(policy) == pytest.approx(np.array([[other, other, other, 1 - 3 * other]] * 4), abs=1e-3)


def test_toy_when_held_to_the_uniform_start_stays_nearer_to_it(tmp_path) -> None:
    entropy = {}
    for coefficient in (0.0, 1.0):
        out = tmp_path / str(coefficient)
        out.mkdir()
        rewards(out, "grpo", loss={"name": "grpo", "kl_coefficient": coefficient})
        entropy[coefficient] = read_jsonl(out / "run" / "metrics.jsonl")[-1]["entropy"]
    assert entropy[0.0] < 0.4 and entropy[1.0] > 1.0  # nats a token; uniform: 1.386


@pytest.mark.parametrize("name", ["grpo", "m2po"])
def test_figures_when_a_toy_step_is_taken_are_in_the_order_of_the_draw(name) -> None:
    backend, rng = ToyBackend(CONFIG), np.random.default_rng(4)
    rollouts = batch(backend, rng.normal(size=(32, 3, 4)), 6)
    trainer = ToyTrainer(ToyConfig(learning_rate=1.0), LossConfig(name=name))
    order, zeros = rng.permutation(len(rollouts)), np.zeros(len(rollouts), np.int64)
    seen = [
        trainer_step(trainer, Draw(part, zeros, np.ones(len(zeros)), zeros, zeros, zeros, zeros))
        for part in (rollouts, rollouts.select(order))
    ]
    assert tuple(seen[0]) == FIGURES
    for figure in FIGURES:
        assert seen[1][figure] == pytest.approx(seen[0][figure][order], abs=1e-12)
    # Each token's log-ratio: uniform over 4 against the table that generated.
    moved = -np.log(4) - rollouts.behavior_logprobs[rollouts.loss_mask].reshape(-1, 3)
    assert seen[0]["log_ratio_sum"] == pytest.approx(moved.sum(1), abs=1e-6)
    assert seen[0]["entropy_sum"] == pytest.approx(np.full(len(rollouts), 3 * np.log(4)))
    assert seen[0]["tokens"].tolist() == [3.0] * len(rollouts)
    assert 0 < seen[0]["clipped"].sum() < 3 * len(rollouts)


def trainer_step(trainer: ToyTrainer, draw: Draw) -> dict:
    trainer.table = np.zeros_like(trainer.table)
    return dict(trainer.step(draw).figures)


def test_losses_when_torch_is_missing_are_the_two_closed_forms() -> None:
    code = (
        "import sys\n"
        "sys.modules['torch'] = None\n"
        "from ostinato.backends.toy import ToyTrainer\n"
        "from ostinato.config import LossConfig, ToyConfig\n"
        "from ostinato.errors import MissingExtraError\n"
        "for loss in (LossConfig(), LossConfig(name='asymre'), LossConfig(name='dapo'), "
        "LossConfig(kl_coefficient=0.1)):\n"
        "    try:\n"
        "        ToyTrainer(ToyConfig(), loss)\n"
        "        print('trains')\n"
        "    except MissingExtraError as error:\n"
        "        print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    missing = "torch is not installed; run: pip install 'ostinato[hf]'"
    assert done.stdout.splitlines() == ["trains", "trains", missing, missing]
    assert CLOSED_FORMS == ("grpo", "asymre") and callable(closed_form(LossConfig()))
