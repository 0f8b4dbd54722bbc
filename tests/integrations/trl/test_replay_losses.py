"""Losses of the library through the real trainer, against the library's own numbers on the same draws."""

import numpy as np
import pytest
import torch

pytest.importorskip("trl")

from replaying import Rewards, log_of, run, weights

from ostinato.buffer import Groups, Prioritized
from ostinato.errors import ConfigError
from ostinato.integrations.trl import ReplayConfig
from ostinato.losses.catalog import objective
from ostinato.losses.inputs import LossInputs

TEMPERATURE = 0.7


def inputs_of(model, parts, draw):
    """What a loss sees of a whole draw, log-probs from transformers' own forward pass, padded side by side."""
    columns = []
    for index, part in enumerate(parts):
        rows = slice(index * 4, index * 4 + 4)
        ids = torch.cat([part["prompt_ids"], part["completion_ids"]], 1)
        attention = torch.cat([part["prompt_mask"], part["completion_mask"]], 1)
        logits = model(input_ids=ids, attention_mask=attention).logits[:, part["prompt_ids"].shape[1] - 1 : -1]
        policy = (logits / TEMPERATURE).log_softmax(-1)
        columns.append((policy.gather(-1, part["completion_ids"][:, :, None]).squeeze(-1), part, rows))
    return columns


@pytest.mark.parametrize(
    ("name", "options", "beta"),
    [
        ("asymre", {"shift": -0.1}, 0.0),
        ("grpo", {"clip_low": 0.9, "clip_high": 1.1}, 0.0),
        ("gspo", {}, 0.2),
        ("dr_grpo", {"advantage": "group_mean"}, 0.0),
        ("m2po", {"threshold": 0.002}, 0.0),
        ("trajectory_balance", {}, 0.5),
    ],
)
def test_loss_and_gradient_in_the_trainer_are_those_of_the_library(
    model_directory, tmp_path, name, options, beta
) -> None:
    groups = name == "trajectory_balance"  # compares the members of a group
    sampler = Groups() if groups else Prioritized("reward", beta=0.5, eps=1.0)
    replay = ReplayConfig(capacity=32, uses=3, sampler=sampler, loss=name, loss_options=options)
    given = {
        "temperature": TEMPERATURE,
        "beta": beta,
        "optim": "sgd",
        "max_grad_norm": 0.0,
        "lr_scheduler_type": "constant",
    }
    done = run(model_directory, tmp_path, replay, max_steps=4, **given)
    before = run(model_directory, tmp_path, replay, max_steps=3, **given)
    draw, parts = done.drawn[-1], done._window.parts
    if groups:
        chosen = objective(name, {"beta": beta})
    else:
        sections = {key: value for key, value in options.items() if key in ("shift", "advantage")}
        rest = {key: value for key, value in options.items() if key not in sections}
        chosen = objective(name, rest, kl_coefficient=beta, **sections)
    advantages = torch.from_numpy(chosen.advantages(draw.rollouts)).float()
    xs = []
    for logprobs, part, rows in inputs_of(before.model, parts, draw):
        xs.append(
            LossInputs(
                logprobs=logprobs,
                behavior_logprobs=part["old_per_token_logps"],
                mask=part["completion_mask"].bool(),
                advantages=advantages[rows],
                weights=torch.from_numpy(draw.importance_weights).float()[rows],
                group_id=torch.from_numpy(draw.rollouts.group_id)[rows],
                staleness=torch.from_numpy(draw.staleness)[rows],
                replayed=torch.from_numpy(draw.uses > 0)[rows],
                ref_logprobs=part.get("ref_per_token_logps"),
            )
        )
    denominator = chosen.denominator(draw.rollouts, max_new_tokens=6)
    statistics = chosen.statistics(xs)
    loss = sum(chosen(x, denominator, statistic).loss for x, statistic in zip(xs, statistics, strict=True))
    assert sum(done.losses[-2:]) == pytest.approx(loss.item(), rel=1e-4, abs=1e-6)
    parameters = [p for p in before.model.parameters() if p.requires_grad]
    slope = torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters)])
    stepped = (weights(before) - weights(done)) / 5e-3  # SGD: one step of the learning rate along the gradient
    assert slope.abs().max() > 1e-2
    torch.testing.assert_close(stepped, slope, rtol=2e-3, atol=2e-4)
    assert draw.staleness.max() == 3 and (groups or len(set(draw.importance_weights.tolist())) > 1)


def test_diagnostics_of_a_step_are_of_what_it_trained_on(model_directory, tmp_path) -> None:
    done = run(model_directory, tmp_path, ReplayConfig(capacity=32, uses=3), max_steps=3, temperature=TEMPERATURE)
    tokens = [int(part["completion_mask"].sum()) for part in done.batches]
    assert log_of(done, "replay/policy/tokens") == [tokens[0] + tokens[1], tokens[2] + tokens[3], tokens[4] + tokens[5]]
    moved = log_of(done, "replay/policy/kl_k3")
    assert moved[0] == pytest.approx(0.0, abs=1e-9) and 1e-6 < moved[1] < moved[2]


def test_loss_of_ours_without_replay_trains_on_each_rollout_once_in_order(model_directory, tmp_path) -> None:
    replay = ReplayConfig(capacity=0, loss="asymre")
    done = run(model_directory, tmp_path, replay, steps_per_generation=4)
    assert len(done.generated) == 3
    assert np.concatenate([draw.rollout_ids for draw in done.drawn]).tolist() == list(range(48))
    assert [int(draw.staleness.max()) for draw in done.drawn] == [0, 1, 0, 1, 0, 1]


def test_asymre_learns_where_its_advantage_differs_from_that_of_trl(model_directory, tmp_path) -> None:
    """Equal rewards: GRPO has nothing to learn, AsymRE with shift -0.5 reinforces what was sampled."""
    equal = {"rewards": Rewards(lambda number, ids: 1.0), "max_steps": 6, "learning_rate": 1e-2}
    flat = run(model_directory, tmp_path, ReplayConfig(capacity=64, uses=3), **equal)
    shifted = run(
        model_directory,
        tmp_path,
        ReplayConfig(capacity=64, uses=3, loss="asymre", loss_options={"shift": -0.5}),
        **equal,
    )
    assert set(flat.losses) == {0.0}
    assert log_of(shifted, "replay/policy/entropy")[-1] < log_of(flat, "replay/policy/entropy")[-1] - 0.02


@pytest.mark.parametrize(
    ("replay", "settings", "message"),
    [
        ({"loss": "asymetric"}, {}, "loss must be one of None, 'grpo', .* got 'asymetric'"),
        ({"loss": "asymre", "loss_options": {"clip_low": 0.5}}, {}, "unknown option 'clip_low' of loss 'asymre'"),
        ({"loss": "trajectory_balance"}, {}, r"needs a reference: set GRPOConfig\(beta"),
        ({"loss": "asymre"}, {"delta": 2.0}, "delta=2.0 belongs to TRL's own losses.*leave it at None"),
        ({"loss": "asymre"}, {"entropy_coef": 0.1}, "entropy_coef=0.1 belongs"),
    ],
)
def test_losses_that_contradict_the_settings_are_refused(model_directory, tmp_path, replay, settings, message) -> None:
    with pytest.raises(ConfigError, match=message):
        run(model_directory, tmp_path, ReplayConfig(capacity=64, **replay), **settings)


def test_loss_options_without_a_loss_are_refused() -> None:
    with pytest.raises(ConfigError, match="belong to no loss: give loss="):
        ReplayConfig(capacity=8, loss_options={"shift": 0.1})
    with pytest.raises(ConfigError, match=r"GRPOConfig\(beta=...\)"):
        ReplayConfig(capacity=8, loss="asymre", loss_options={"kl_coefficient": 0.1})
