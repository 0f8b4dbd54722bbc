"""Value and gradient of our losses against those of TRL's trainer, setting by setting."""

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
import torch
from cases import MEANS, SUMS, TOKENS, Inputs, Loss, plain, with_proximal, with_ref
from torch import Tensor
from trl_peer import HALVES, LONGEST, Outcome, Peer, make_peer

from ostinato.losses import (
    PRESETS,
    LossOutput,
    cispo,
    clipped_surrogate,
    decoupled_ppo,
    kl_penalty,
    masked_log_ratio,
    sapo,
    sequence_mask,
    vespo,
)
from ostinato.losses.ratios import at_level, bounded_weights

CONSTANT = "rollouts times the longest completion allowed"
BETA = 0.3


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Peer:
    return make_peer(tmp_path_factory.mktemp("model"))


def denominator(averages: str, x: Inputs) -> float:
    """What ours divides by: counts over the rollouts of the optimizer step, 8 here."""
    rollouts = float(len(x.mask))
    return {TOKENS: float(x.mask.sum()), MEANS: rollouts, SUMS: rollouts, CONSTANT: rollouts * LONGEST}[averages]


def assert_same(one: Outcome, other: Outcome) -> None:
    torch.testing.assert_close(one[0], other[0], rtol=0, atol=1e-5)
    assert one[1].keys() == other[1].keys()
    assert max(slope.abs().max() for slope in one[1].values()) > 0.05  # 5,000 times the tolerance
    for name, slope in one[1].items():
        torch.testing.assert_close(slope, other[1][name], rtol=0, atol=1e-5)


def same_policy(loss: Loss) -> Loss:
    """Without a second engine TRL's old policy is the one that generated."""

    def call(x: Inputs, count: float | None, statistic: Tensor | None) -> LossOutput:
        old = replace(x, behavior=x.proximal)
        return loss(old, count, statistic)

    return call


def with_kl(loss: Loss, *, ratio: bool = True, **options: Any) -> Loss:
    """Plus BETA times the divergence from the reference; its ratio is to TRL's old policy."""

    def call(x: Inputs, count: float | None, statistic: Tensor | None) -> LossOutput:
        policy, old = loss(x, count, statistic), x.proximal if ratio else None
        penalty = kl_penalty(x.logprobs, x.ref, x.mask, behavior_logprobs_BL=old, denominator=count, **options)
        return LossOutput(policy.loss + BETA * penalty.loss, policy.metrics)

    return call


@dataclass(frozen=True)
class Shared:
    """Settings of TRL, our arguments of the same meaning, and what ours divides by."""

    settings: dict[str, Any]
    loss: Loss
    averages: str = TOKENS
    clipped: str = "some"


kl = {"kl_coefficient": BETA}
published_grpo = PRESETS["grpo"]
grpo, dapo = {"loss_type": "grpo"}, {"loss_type": "dapo", "epsilon_high": 0.28}
sequence = {"importance_sampling_level": "sequence", "epsilon": 0.03, "epsilon_high": 0.04}
geometric = partial(clipped_surrogate, level="geometric", clip_low=0.97, clip_high=1.04)

SHARED = {
    "grpo": Shared(grpo, plain(published_grpo), MEANS),
    "dapo": Shared(dapo, plain(PRESETS["dapo"])),
    "dr_grpo": Shared({"loss_type": "dr_grpo"}, plain(PRESETS["dr_grpo"]), CONSTANT),
    "gspo": Shared(grpo | sequence | {"epsilon": 3e-4, "epsilon_high": 4e-4}, plain(PRESETS["gspo"]), MEANS),
    "gspo, mean over tokens": Shared(dapo | sequence, plain(geometric)),
    "luspo": Shared({"loss_type": "luspo"} | sequence, plain(partial(geometric, aggregation="sequence_sum")), SUMS),
    "cispo, MiniMax": Shared({"loss_type": "cispo", "epsilon_high": 1.2}, plain(PRESETS["cispo_minimax"])),
    "cispo, ScaleRL": Shared(
        {"loss_type": "cispo", "epsilon_high": 5.0}, plain(PRESETS["cispo_scalerl"]), clipped="none"
    ),
    "cispo, epsilon alone": Shared(
        {"loss_type": "cispo", "epsilon": 0.2}, plain(partial(cispo, clip_high=0.2)), clipped="all"
    ),
    "sapo": Shared({"loss_type": "sapo"}, plain(sapo), MEANS, clipped="none"),
    "vespo": Shared({"loss_type": "vespo"}, plain(vespo), clipped="none"),
    "vespo, other gammas": Shared(
        {
            "loss_type": "vespo",
            "vespo_k_pos": 1.5,
            "vespo_lambda_pos": 2.0,
            "vespo_k_neg": 2.5,
            "vespo_lambda_neg": 1.0,
        },
        plain(partial(vespo, positive=(1.5, 2.0), negative=(2.5, 1.0))),
        clipped="none",
    ),
    "delta": Shared(dapo | {"delta": 1.4}, plain(partial(PRESETS["dapo"], dual_clip=1.4))),
    "off-policy mask": Shared(
        grpo | {"off_policy_mask_threshold": 0.05},
        plain(partial(PRESETS["deepseek_v32"], sequence_mask_delta=0.05)),
        MEANS,
    ),
    "kl with the ratio": Shared(dapo | {"beta": BETA}, with_ref(partial(PRESETS["dapo"], **kl))),
    "kl alone": Shared(
        grpo | {"beta": BETA, "use_bias_correction_kl": False},
        with_ref(partial(published_grpo, kl_ratio=False, **kl)),
        MEANS,
    ),
    "kl with the sequence ratio": Shared(
        grpo | sequence | {"beta": BETA}, with_ref(partial(geometric, aggregation="sequence_mean", **kl)), MEANS
    ),
    "kl beside mask and delta": Shared(
        dapo | {"beta": BETA, "off_policy_mask_threshold": 0.05, "delta": 1.4},
        with_ref(partial(PRESETS["dapo"], dual_clip=1.4, sequence_mask_delta=0.05, **kl)),
    ),
    "kl added to cispo": Shared(
        {"loss_type": "cispo", "epsilon_high": 1.2, "beta": BETA}, with_kl(plain(PRESETS["cispo_minimax"]))
    ),
    "kl added to sapo": Shared(
        {"loss_type": "sapo", "beta": BETA, "use_bias_correction_kl": False},
        with_kl(plain(sapo), ratio=False, aggregation="sequence_mean"),
        MEANS,
        clipped="none",
    ),
}


@pytest.mark.parametrize("name", SHARED)
def test_loss_and_gradient_when_a_setting_is_shared_are_those_of_trl(peer: Peer, name: str) -> None:
    case, counts = SHARED[name], []

    def objective(x: Inputs) -> Tensor:
        output = same_policy(case.loss)(x, denominator(case.averages, x), None)
        counts.append(output.metrics["clipped"].item())
        return output.loss

    assert_same(peer.ours(objective), peer.theirs(peer.trainer(**case.settings)))
    tokens = int(peer.given.mask.sum())
    assert case.clipped == {0: "none", tokens: "all"}.get(counts[0], "some")


def their_weights(x: Inputs, mode: str, low: float | None, high: float | None) -> Tensor:
    """TRL's old policy over the engine that sampled: the weights it computes right after generation."""
    log_ratio = (x.proximal - x.behavior) * x.mask
    ratio = (log_ratio.sum(1, keepdim=True) if mode.startswith("sequence") else log_ratio).exp()
    if mode.endswith("truncate"):
        return ratio.clamp(low, high)
    return ratio.masked_fill((ratio < (low or -math.inf)) | (ratio > (high or math.inf)), 0.0)


def their_correction(peer: Peer, settings: dict[str, Any], mode: str, low: float | None, high: float | None) -> Outcome:
    bounds = {"vllm_importance_sampling_clip_min": low, "vllm_importance_sampling_clip_max": high}
    trainer = peer.trainer(**settings, vllm_importance_sampling_mode=mode, **bounds)
    trainer.use_vllm = True  # at construction it would start an engine
    weights = their_weights(peer.given, mode, low, high)
    return peer.theirs(trainer, importance_sampling_ratio=weights, sampling_per_token_logps=peer.given.behavior)


MODES = [
    ("token_truncate", None, 1.1),
    ("token_truncate", 0.9, 1.1),
    ("token_mask", 0.85, 1.15),
    ("sequence_truncate", None, 1.1),
    ("sequence_mask", 0.7, 1.3),
    ("sequence_mask", None, 1.3),
]


def bounds_of(mode: str, low: float | None, high: float) -> dict[str, Any]:
    """Our arguments for TRL's mode."""
    level, bound = mode.split("_")
    return {"level": level, "bound": "cap" if bound == "truncate" else "mask", "low": low or 0.0, "high": high}


@pytest.mark.parametrize(("mode", "low", "high"), MODES)
@pytest.mark.parametrize(
    ("settings", "options", "averages"),
    [
        (dapo, {"clip_high": 1.28}, TOKENS),
        (grpo, {"aggregation": "sequence_mean"}, MEANS),
        ({"loss_type": "dr_grpo", "delta": 1.4}, {"aggregation": "constant", "dual_clip": 1.4}, CONSTANT),
    ],
)
def test_decoupled_ppo_when_the_engine_differs_is_trl_with_its_correction(
    peer: Peer, mode, low, high, settings, options, averages
) -> None:
    loss = with_proximal(partial(decoupled_ppo, **options, **bounds_of(mode, low, high)))
    ours = peer.ours(lambda x: loss(x, denominator(averages, x), None).loss)
    assert_same(ours, their_correction(peer, settings, mode, low, high))


def test_divergence_when_the_engine_differs_carries_the_ratio_to_the_old_policy(peer: Peer) -> None:
    loss = with_kl(with_proximal(partial(decoupled_ppo, clip_high=1.28, **bounds_of("token_truncate", None, 1.1))))
    ours = peer.ours(lambda x: loss(x, denominator(TOKENS, x), None).loss)
    assert_same(ours, their_correction(peer, dapo | {"beta": BETA}, "token_truncate", None, 1.1))


@pytest.mark.parametrize(("mode", "low", "high"), [mode for mode in MODES if mode[0].startswith("sequence")])
@pytest.mark.parametrize(
    ("settings", "loss", "averages"),
    [
        (grpo | sequence, partial(geometric, aggregation="sequence_mean"), MEANS),
        ({"loss_type": "cispo", "epsilon_high": 1.2}, PRESETS["cispo_minimax"], TOKENS),
        ({"loss_type": "sapo"}, sapo, MEANS),
    ],
)
def test_weights_of_rollouts_when_trl_corrects_whole_sequences_are_its_correction(
    peer: Peer, mode, low, high, settings, loss, averages
) -> None:
    def objective(x: Inputs) -> Tensor:
        options = bounds_of(mode, low, high)
        engines = masked_log_ratio(x.proximal, x.behavior, x.mask)
        log_rho = at_level(engines, torch.ones_like(x.mask), options.pop("level"))[:, 0]
        weighted = replace(x, weights=bounded_weights(log_rho, **options))
        return same_policy(plain(loss))(weighted, denominator(averages, x), None).loss

    assert_same(peer.ours(objective), their_correction(peer, settings, mode, low, high))


@pytest.mark.parametrize("high", [1.1, 1e6])
def test_vespo_when_the_engine_differs_is_trl_once_the_correction_is_in_the_behavior(peer: Peer, high) -> None:
    def objective(x: Inputs) -> Tensor:
        rho = bounded_weights(masked_log_ratio(x.proximal, x.behavior, x.mask), low=0.0, high=high, bound="cap")
        corrected = replace(x, behavior=x.proximal - rho.log())
        return plain(vespo)(corrected, denominator(TOKENS, x), None).loss

    assert_same(peer.ours(objective), their_correction(peer, {"loss_type": "vespo"}, "token_truncate", None, high))
    if high == 1e6:  # nothing is truncated: the ratio to the engine itself
        direct = peer.ours(lambda x: plain(vespo)(x, denominator(TOKENS, x), None).loss)
        assert_same(direct, peer.ours(objective))


def test_off_policy_mask_when_the_engine_differs_looks_at_the_engine(peer: Peer) -> None:
    def objective(x: Inputs) -> Tensor:
        log_ratio = masked_log_ratio(x.logprobs, x.behavior, x.mask)
        kept = sequence_mask(log_ratio, x.advantages, x.mask, delta=0.05)
        assert 0 < kept.sum() < len(kept)
        masked = replace(x, advantages=x.advantages * kept)
        loss = with_proximal(partial(decoupled_ppo, clip_high=1.28, high=1.1))
        return loss(masked, denominator(TOKENS, x), None).loss

    settings = dapo | {"off_policy_mask_threshold": 0.05}
    assert_same(peer.ours(objective), their_correction(peer, settings, "token_truncate", None, 1.1))


def test_bnpo_when_accumulated_is_the_mean_of_token_means_of_its_micro_batches(peer: Peer) -> None:
    loss, theirs = same_policy(plain(clipped_surrogate)), peer.theirs(peer.trainer(loss_type="bnpo"))
    assert_same(peer.ours(lambda x: sum(loss(x.rows(half), None, None).loss for half in HALVES) / len(HALVES)), theirs)
    whole, _ = peer.ours(lambda x: loss(x, None, None).loss)
    assert abs(whole - theirs[0]) > 1e-3


@pytest.mark.parametrize("loss_type", ["grpo", "dapo", "dr_grpo"])
def test_losses_when_trl_takes_one_micro_batch_are_the_same(peer: Peer, loss_type: str) -> None:
    halves = peer.theirs(peer.trainer(loss_type=loss_type))
    whole = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 1}
    assert_same(halves, peer.theirs(peer.trainer(loss_type=loss_type, **whole), rows=(slice(8),)))


def test_dapo_when_a_generation_batch_feeds_two_steps_divides_by_half_of_its_tokens(peer: Peer) -> None:
    trainer = peer.trainer(**dapo, gradient_accumulation_steps=1, steps_per_generation=2)
    loss, tokens = same_policy(plain(PRESETS["dapo"])), float(peer.given.mask.sum())
    for half in HALVES:
        assert tokens / 2 != peer.given.mask[half].sum()  # not this step's own
        ours = peer.ours(lambda x, half=half: loss(x.rows(half), tokens / 2, None).loss)
        assert_same(ours, peer.theirs(trainer, rows=(half,)))


def test_ratio_when_trl_keeps_no_old_log_probs_is_1(peer: Peer) -> None:
    def objective(x: Inputs) -> Tensor:
        fresh = replace(x, behavior=x.logprobs.detach())
        output = plain(PRESETS["dapo"])(fresh, denominator(TOKENS, x), None)
        assert output.metrics["clipped"] == output.metrics["kl_sum"] == 0
        return output.loss

    assert_same(peer.ours(objective), peer.theirs(peer.trainer(**dapo), old_per_token_logps=None))
