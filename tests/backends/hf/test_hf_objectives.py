"""One step of a tiny transformer under every loss of the catalog, against the loss function over the whole batch."""

import copy
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from ostinato import losses
from ostinato.advantages import score_group
from ostinato.backends.hf.generator import HFGenerator
from ostinato.backends.hf.models import snapshot
from ostinato.backends.hf.trainer import HFTrainer
from ostinato.config import LossConfig, OptimizerConfig
from ostinato.config.losses import LOSSES
from ostinato.errors import ConfigError
from ostinato.losses import PRESETS
from ostinato.protocols import GroupRequest, Sampling, Task
from ostinato.rollouts import concatenate
from ostinato.stats import FIGURES, diagnose

MAX_NEW_TOKENS, ROLLOUTS = 7, 12
OPTIMIZER = OptimizerConfig(learning_rate=2e-3, grad_clip=0.0)


def plain(loss, advantages="std", **options):
    def call(x, denominator):
        a = getattr(x, advantages)
        return loss(x.logprobs, x.behavior, a, x.mask, weights_B=x.weights, denominator=denominator, **options)

    return call


def without_ratio(loss, advantages, **options):
    def call(x, denominator):
        return loss(x.logprobs, getattr(x, advantages), x.mask, weights_B=x.weights, denominator=denominator, **options)

    return call


def proximal(loss, **options):
    def call(x, denominator):
        extra = {name: getattr(x, value) for name, value in options.items()}
        return loss(
            x.logprobs, x.proximal, x.behavior, x.std, x.mask, weights_B=x.weights, denominator=denominator, **extra
        )

    return call


def balance(x, denominator):
    return losses.trajectory_balance(
        x.logprobs, x.ref, x.reward, x.group, x.mask, beta=0.5, weights_B=x.weights, denominator=denominator
    )


TOKENS, COUNT, CONSTANT = "tokens", float(ROLLOUTS), float(ROLLOUTS * MAX_NEW_TOKENS)
# name: (settings of the recipe, the function as the paper calls it, what its sum is divided by)
DIRECT = {
    "grpo": ({}, plain(losses.grpo), TOKENS),
    "asymre": ({}, without_ratio(losses.asymre, "shifted"), COUNT),
    "grpo_paper": ({}, plain(PRESETS["grpo"]), COUNT),
    "dapo": ({}, plain(PRESETS["dapo"]), TOKENS),
    "dr_grpo": ({}, plain(PRESETS["dr_grpo"], "mean"), CONSTANT),
    "gspo": ({}, plain(PRESETS["gspo"]), COUNT),
    "deepseek_v32": ({}, plain(PRESETS["deepseek_v32"]), COUNT),
    "advantage_prioritized": ({}, plain(PRESETS["advantage_prioritized"]), TOKENS),
    "clipped_surrogate": (
        {"clip_low": 0.7, "options": {"level": "sequence", "dual_clip": 2.0, "aggregation": "sequence_mean"}},
        plain(losses.clipped_surrogate, clip_low=0.7, level="sequence", dual_clip=2.0, aggregation="sequence_mean"),
        COUNT,
    ),
    "decoupled_ppo": ({}, proximal(losses.decoupled_ppo), TOKENS),
    "centered_clip": ({}, proximal(losses.centered_clip, replayed_B="replayed"), TOKENS),
    "sat": ({"options": {"kernel": "hill"}}, plain(losses.sat, kernel=losses.hill), TOKENS),
    "m2po": ({"options": {"threshold": 0.01}}, plain(losses.m2po, threshold=0.01), TOKENS),
    "sapo": ({}, plain(losses.sapo), COUNT),
    "gipo": ({"options": {"sigma": 0.5}}, plain(losses.gipo, sigma=0.5), TOKENS),
    "shaped_importance": ({}, plain(losses.shaped_importance), TOKENS),
    "reinforce": ({}, without_ratio(losses.reinforce, "mean"), COUNT),
    "truncated_importance": (
        {"options": {"high": 1.5, "bound": "mask"}},
        plain(losses.truncated_importance, high=1.5, bound="mask"),
        TOKENS,
    ),
    "cispo": ({"clip_high": 1.1}, plain(losses.cispo, clip_high=1.1), TOKENS),
    "cispo_minimax": ({}, plain(PRESETS["cispo_minimax"]), TOKENS),
    "cispo_scalerl": ({}, plain(PRESETS["cispo_scalerl"]), TOKENS),
    "topr": ({"advantage": "fixed_baseline", "baseline": 0.5}, plain(losses.topr, "fixed"), COUNT),
    "vespo": ({"options": {"positive": [1.0, 2.0]}}, plain(losses.vespo, positive=(1.0, 2.0)), TOKENS),
    "kimi": ({}, plain(losses.kimi, "mean"), COUNT),
    "trajectory_balance": ({"options": {"beta": 0.5}}, balance, COUNT),
}


@pytest.fixture(scope="module")
def draw(qwen, tokenizer, make_module_draw):
    requests = [
        GroupRequest(Task(prompt, "", i, "t"), i, 4, (i,), Sampling(temperature=t, max_new_tokens=MAX_NEW_TOKENS))
        for i, (prompt, t) in enumerate([("12+30=", 1.0), ("7=", 0.7), ("sort this 54321", 1.0)])
    ]
    rewards = [[0, 1, 0, 1], [1, 0, 0, 0], [0, 0, 1, 1]]
    groups = HFGenerator(qwen, tokenizer).stream(requests)
    rollouts = concatenate([score_group(group, reward) for group, reward in zip(groups, rewards, strict=True)])
    drawn = make_module_draw(rollouts, np.linspace(0.5, 1.5, ROLLOUTS))
    return replace(drawn, staleness=np.arange(ROLLOUTS) % 5, uses=np.arange(ROLLOUTS) % 2)


def trainer(model, tokenizer, loss, *, max_new_tokens=MAX_NEW_TOKENS, **optimizer) -> HFTrainer:
    settings = replace(OPTIMIZER, **optimizer)
    return HFTrainer(model, tokenizer, loss=loss, optimizer=settings, max_new_tokens=max_new_tokens)


def logprobs_of(model, rollouts) -> torch.Tensor:
    """(B, L) of the completions alone, rollout by rollout without padding; 0 behind each."""
    rows = []
    for i in range(len(rollouts)):
        tokens = torch.from_numpy(rollouts.tokens[rollouts.offsets[i] : rollouts.offsets[i + 1]]).long()
        start = int(rollouts.prompt_length[i])
        logits = model(input_ids=tokens[None]).logits[0, start - 1 : -1] / float(rollouts.temperature[i])
        picked = logits.log_softmax(-1)[torch.arange(len(tokens) - start), tokens[start:]]
        rows.append(torch.nn.functional.pad(picked, (0, MAX_NEW_TOKENS - len(picked))))
    return torch.stack(rows)


def known(model, start, draw) -> SimpleNamespace:
    """Everything a loss may want, made here from the rollouts and the two models."""
    rollouts = draw.rollouts
    reward, mean = torch.from_numpy(rollouts.reward).float(), torch.from_numpy(rollouts.group_reward_mean).float()
    behavior = torch.zeros(ROLLOUTS, MAX_NEW_TOKENS)
    mask = torch.zeros(ROLLOUTS, MAX_NEW_TOKENS, dtype=torch.bool)
    for i, n in enumerate(rollouts.completion_lengths):
        mask[i, :n] = True
        behavior[i, :n] = torch.from_numpy(rollouts.behavior_logprobs[rollouts.offsets[i + 1] - n :][:n])
    logprobs = logprobs_of(model, rollouts)
    age = torch.from_numpy(draw.staleness).float()[:, None]
    share = ((age - 1) / age.clamp(min=1)).clamp(min=0)
    with torch.no_grad():
        ref = logprobs_of(start, rollouts)
    return SimpleNamespace(
        logprobs=logprobs,
        behavior=behavior,
        mask=mask,
        ref=ref,
        proximal=behavior + share * (logprobs.detach() - behavior),
        replayed=torch.from_numpy(draw.uses > 0),
        weights=torch.from_numpy(draw.importance_weights).float(),
        group=torch.from_numpy(rollouts.group_id),
        reward=reward,
        std=torch.from_numpy(rollouts.advantage).float(),
        mean=reward - mean,
        shifted=reward - (mean - 0.05),
        fixed=reward - 0.5,
    )


def step_and_compare(subject: HFTrainer, start, draw, loss) -> None:
    """The gradient that the step left in the parameters is that of `loss(known)`, to rounding in float32."""
    reference = copy.deepcopy(subject._model)
    metrics = subject.step(draw).metrics
    value = loss(known(reference, start, draw))
    reference.zero_grad()
    value.backward()
    ours = torch.cat([p.grad.flatten() for p in subject._model.parameters()])
    theirs = torch.cat([p.grad.flatten() for p in reference.parameters()])
    assert (ours - theirs).norm() < 3e-6 * max(1.0, theirs.norm())
    assert theirs.norm() > 1e-3
    assert metrics["loss"] == pytest.approx(value.item(), abs=1e-5)


@pytest.mark.parametrize("tokens_per_microbatch", [10**6, 40])
@pytest.mark.parametrize("name", LOSSES)
def test_gradient_when_in_microbatches_is_that_of_the_loss_over_the_batch(
    qwen, tokenizer, draw, name, tokens_per_microbatch
) -> None:
    settings, direct, divisor = DIRECT[name]
    loss = LossConfig(name=name, **settings)
    subject = trainer(qwen, tokenizer, loss, tokens_per_microbatch=tokens_per_microbatch)
    subject.step(draw)  # the policy moves away from the one that generated
    denominator = float(draw.rollouts.loss_mask.sum()) if divisor == TOKENS else divisor
    step_and_compare(subject, qwen, draw, lambda x: direct(x, denominator).loss)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_kl_when_wanted_pulls_to_the_model_that_the_run_started_from(
    qwen, tokenizer, draw, estimator, tmp_path
) -> None:
    loss = LossConfig(name="dapo", kl_coefficient=0.5, kl_estimator=estimator)
    first = trainer(qwen, tokenizer, loss, tokens_per_microbatch=60)
    for _ in range(2):
        first.step(draw)
    first.save(tmp_path)
    resumed = trainer(qwen, tokenizer, loss, tokens_per_microbatch=60)
    resumed.load(tmp_path)

    def whole(x):
        tokens = float(x.mask.sum())
        kl = losses.kl_penalty(
            x.logprobs, x.ref, x.mask, behavior_logprobs_BL=x.behavior, estimator=estimator, weights_B=x.weights
        )
        assert kl.metrics["kl_ref_sum"] / tokens != 0
        return plain(PRESETS["dapo"])(x, tokens).loss + 0.5 * kl.loss

    # After the resume the reference still is the start, not the weights that were loaded.
    step_and_compare(resumed, qwen, draw, whole)
    first.step(draw)
    for name, value in first.weights().items():
        assert torch.equal(value, resumed.weights()[name])


def test_reference_when_unused_is_not_kept(qwen, tokenizer) -> None:
    assert trainer(qwen, tokenizer, LossConfig(name="dapo"))._objective_step._reference is None
    held = trainer(qwen, tokenizer, LossConfig(name="dapo", kl_coefficient=0.1))
    reference = held._objective_step._reference
    assert reference is not qwen and not any(p.requires_grad for p in reference.parameters())


@pytest.mark.parametrize("name", ["grpo", "m2po", "trajectory_balance"])
def test_figures_when_in_microbatches_are_in_the_order_of_the_draw(qwen, tokenizer, draw, name) -> None:
    loss = LossConfig(name=name, **DIRECT[name][0])
    subjects = [trainer(qwen, tokenizer, loss, tokens_per_microbatch=n) for n in (10**6, 40, 40)]
    for subject in subjects:
        subject.step(draw)
    expected = known(subjects[0]._model, qwen, draw)
    whole, parts, shuffled = subjects
    order = np.random.default_rng(0).permutation(ROLLOUTS)
    columns = {name: getattr(draw, name)[order] for name in ("rollout_ids", "importance_weights", "staleness", "uses")}
    mixed = replace(draw, rollouts=draw.rollouts.select(order), **columns)
    seen = [whole.step(draw), parts.step(draw), shuffled.step(mixed)]
    assert all(tuple(trained.figures) == FIGURES for trained in seen)
    for figure in FIGURES:
        values = [trained.figures[figure] for trained in seen]
        assert values[0].shape == (ROLLOUTS,) and values[0].dtype == np.float64
        assert values[1] == pytest.approx(values[0], rel=1e-3, abs=1e-5)
        assert values[2] == pytest.approx(values[0][order], rel=1e-3, abs=1e-5)
    moved = torch.where(expected.mask, expected.logprobs - expected.behavior, 0.0)
    assert seen[0].figures["log_ratio_sum"] == pytest.approx(moved.sum(1).detach().numpy(), abs=1e-4)
    assert seen[0].figures["tokens"].tolist() == draw.rollouts.completion_lengths.tolist()
    assert np.ptp(seen[0].figures["log_ratio_sum"]) > 0.01
    report = diagnose(seen[0].figures, staleness=draw.staleness, fresh=draw.uses == 0, correct=draw.rollouts.reward > 0)
    ratio = moved.exp()[expected.mask].detach().numpy()
    assert report["ratio_mean"] == pytest.approx(ratio.mean(), rel=1e-4)
    assert report["ratio_max"] == pytest.approx(ratio.max(), rel=1e-4)
    assert (seen[0].figures["clipped"] <= seen[0].figures["tokens"]).all()


def test_figures_when_a_rollout_is_empty_are_zero_there(qwen, tokenizer, draw, make_module_draw) -> None:
    rollouts = draw.rollouts
    empty = replace_completion(rollouts)
    trained = trainer(qwen, tokenizer, LossConfig(), tokens_per_microbatch=8).step(make_module_draw(empty))
    assert {float(column[3]) for column in trained.figures.values()} == {0.0}
    assert trained.figures["tokens"][2] > 0 and trained.figures["tokens"][4] > 0


def replace_completion(rollouts):
    """The rollouts, the fourth without trained tokens."""
    mask = rollouts.loss_mask.copy()
    mask[rollouts.offsets[3] : rollouts.offsets[4]] = False
    return rollouts.replace(loss_mask=mask)


def test_constant_denominator_when_not_given_is_refused_at_construction(qwen, tokenizer) -> None:
    for loss in (LossConfig(name="dr_grpo"), LossConfig(name="dapo", options={"aggregation": "constant"})):
        with pytest.raises(ConfigError, match="divides by a constant: give max_new_tokens, got None"):
            trainer(qwen, tokenizer, loss, max_new_tokens=None)


def test_step_when_the_loss_looks_at_the_batch_first_leaves_the_model_in_place(qwen, tokenizer, draw) -> None:
    subject = trainer(qwen, tokenizer, LossConfig(name="sat"), learning_rate=0.0, tokens_per_microbatch=40)
    before = subject.weights()
    subject.step(draw)
    assert all(torch.equal(before[name], value) for name, value in snapshot(subject._model).items())
