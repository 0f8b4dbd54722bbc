"""The catalog: its table is that of the functions, its objectives call them as they are meant to be called."""

import inspect
import types
import typing
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from gradients import gradient
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from ostinato.config.losses import LOSSES, Option
from ostinato.errors import ConfigError
from ostinato.losses import PRESETS, clipped_surrogate, kl_penalty, log_partition
from ostinato.losses.catalog import CATALOG, objective
from ostinato.losses.inputs import LossInputs
from ostinato.rollouts import Rollouts

REQUIRED = {
    "gipo": {"sigma": 0.3},
    "truncated_importance": {"high": 1.5},
    "cispo": {"clip_high": 1.3},
    "trajectory_balance": {"beta": 0.5},
}
NOT_OPTIONS = {
    # Tensors and counts of a batch.
    *("weights_B", "denominator", "behavior_logprobs_BL", "baselines_B", "replayed_B", "ref_logprobs_BL"),
    *("log_ratio_bound", "scale", "log_partition_B"),
    # Settings of the section `loss`, for every loss.
    *("kl_coefficient", "kl_estimator", "kl_ratio"),
}
every_loss = pytest.mark.parametrize("name", LOSSES)


def keywords(name: str) -> dict[str, inspect.Parameter]:
    parameters = inspect.signature(CATALOG[name].function).parameters
    return {n: p for n, p in parameters.items() if p.kind is p.KEYWORD_ONLY and n not in NOT_OPTIONS}


def annotations(name: str) -> dict[str, object]:
    function = CATALOG[name].function
    return typing.get_type_hints(getattr(function, "func", function))


def inputs(rows: int = 12, length: int = 5, *, seed: int = 1) -> LossInputs:
    rng = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=rng, dtype=torch.float64)

    behavior = -2 - normal(rows, length).abs()
    return LossInputs(
        logprobs=(behavior + 0.3 * normal(rows, length)).requires_grad_(),
        behavior_logprobs=behavior,
        mask=torch.rand(rows, length, generator=rng) < 0.8,
        advantages=normal(rows),
        weights=normal(rows).abs() + 0.5,
        group_id=torch.arange(rows) % 3,
        staleness=torch.arange(rows) % 4,
        replayed=torch.arange(rows) % 2 == 1,
        ref_logprobs=behavior + 0.3 * normal(rows, length),
    )


def part(x: LossInputs, rows: slice) -> LossInputs:
    return LossInputs(**{item.name: getattr(x, item.name)[rows] for item in fields(x)})


def test_catalog_when_listed_has_the_losses_that_a_recipe_can_name() -> None:
    assert list(CATALOG) != [] and set(CATALOG) == set(LOSSES)
    assert {"grpo_paper", *PRESETS} <= set(CATALOG)
    assert CATALOG["grpo_paper"].function is PRESETS["grpo"]


@every_loss
def test_options_when_listed_are_the_keywords_of_the_function(name) -> None:
    row, parameters, hints = LOSSES[name], keywords(name), annotations(name)
    assert set(row.options) == set(parameters)
    for option_name, option in row.options.items():
        parameter, hint = parameters[option_name], hints[option_name]
        assert option.required == (parameter.default is parameter.empty)
        if option.choices and option_name != "kernel":
            assert option.choices == typing.get_args(hint)
        assert option.none == (isinstance(hint, types.UnionType) and type(None) in typing.get_args(hint))
        assert (option.count == 2) == (hint == tuple[float, float])
    for option_name, value in row.own.items():
        assert parameters[option_name].default == value


def value_of(option: Option) -> st.SearchStrategy:
    if option.choices:
        return st.sampled_from(option.choices)
    number = st.floats(option.low, min(option.high, 50.0))
    if option.count == 2:
        return st.lists(number, min_size=2, max_size=2)
    return number | st.just("none") if option.none else number


@every_loss
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_options_when_accepted_are_accepted_by_the_function(name, data) -> None:
    options = {
        key: data.draw(value_of(option), label=key)
        for key, option in LOSSES[name].options.items()
        if option.required or data.draw(st.booleans())
    }
    try:
        chosen = objective(name, options)
    except ConfigError:  # two options out of order
        reject()
    assert torch.isfinite(chosen(inputs(), 60.0).loss)


@every_loss
@pytest.mark.parametrize("kl", [0.0, 0.3])
def test_microbatches_when_given_their_statistic_add_up_to_the_batch(name, kl) -> None:
    x = inputs()
    chosen = objective(name, REQUIRED.get(name, {}), kl_coefficient=kl)
    denominator = 12.0 if chosen.aggregation != "token_mean" else float(x.mask.sum())
    whole = gradient(chosen(x, denominator).loss, x.logprobs)
    assert whole.abs().max() > 1e-4
    slices = [slice(0, 2), slice(2, 7), slice(7, 12)]
    parts = [part(x, rows) for rows in slices]
    total = torch.zeros_like(whole)
    for rows, one, statistic in zip(slices, parts, chosen.statistics(parts), strict=True):
        leaf = one.logprobs.detach().clone().requires_grad_()
        total[rows] += gradient(chosen(replace(one, logprobs=leaf), denominator, statistic).loss, leaf)
    torch.testing.assert_close(total, whole, rtol=1e-12, atol=1e-14)
    assert chosen.needs_statistics == (name in ("m2po", "sat", "trajectory_balance"))
    assert chosen.needs_reference == (kl > 0 or name == "trajectory_balance")


@every_loss
def test_metrics_when_called_always_tell_of_the_ratio(name) -> None:
    x = inputs()
    metrics = objective(name, REQUIRED.get(name, {}), kl_coefficient=0.1)(x, 12.0).metrics
    assert {"tokens", "ratio_sum", "ratio_max", "clipped", "clipped_B", "kl_sum", "kl_ref_sum"} <= set(metrics)
    ratio = (x.logprobs - x.behavior_logprobs)[x.mask].exp()
    assert metrics["ratio_sum"].item() == pytest.approx(ratio.sum().item())


def test_statistics_when_groups_are_split_over_microbatches_are_of_whole_groups() -> None:
    x, parts = inputs(), []
    narrow = replace(part(x, slice(5, 12)), mask=x.mask[5:12] & (torch.arange(5) < 4))
    for one, columns in ((part(x, slice(0, 5)), 5), (narrow, 4)):
        cut = {f.name: getattr(one, f.name) for f in fields(one)}
        parts.append(LossInputs(**{k: v[:, :columns] if v.ndim == 2 else v for k, v in cut.items()}))
    statistics = objective("trajectory_balance", {"beta": 0.5}).statistics(parts)
    mask = x.mask.clone()
    mask[5:, 4] = False
    expected = log_partition(x.logprobs, x.ref_logprobs, x.advantages, x.group_id, mask, beta=0.5)
    torch.testing.assert_close(torch.cat(statistics), expected)
    assert objective("grpo").statistics(parts) == [None, None]
    assert objective("m2po").statistics([]) == []


def test_kl_when_wanted_is_added_in_the_losss_own_aggregation() -> None:
    x = inputs()
    plain, held = objective("sapo"), objective("sapo", kl_coefficient=0.3, kl_estimator="k1")
    penalty = kl_penalty(
        x.logprobs,
        x.ref_logprobs,
        x.mask,
        behavior_logprobs_BL=x.behavior_logprobs,
        estimator="k1",
        weights_B=x.weights,
        aggregation="sequence_mean",
        denominator=12.0,
    )
    assert held(x, 12.0).loss.item() == pytest.approx((plain(x, 12.0).loss + 0.3 * penalty.loss).item(), rel=1e-12)
    with pytest.raises(ConfigError, match="needs ref_logprobs"):
        held(replace(x, ref_logprobs=None), 12.0)


def test_proximal_policy_when_interpolated_is_one_step_older_than_the_trained_one() -> None:
    # Ages 0 and 1: proximal is behavior, the loss is GRPO. Age 4: log prox lies 3/4 of the way to log pi.
    x = replace(inputs(), staleness=torch.tensor([0, 1] * 6))
    expected = gradient(objective("grpo")(x, 50.0).loss, x.logprobs)
    torch.testing.assert_close(gradient(objective("decoupled_ppo")(x, 50.0).loss, x.logprobs), expected)
    one = LossInputs(
        logprobs=torch.tensor([[np.log(0.4)]], requires_grad=True),
        behavior_logprobs=torch.tensor([[np.log(0.2)]]),
        mask=torch.ones(1, 1, dtype=torch.bool),
        advantages=torch.ones(1),
        weights=torch.ones(1),
        group_id=torch.zeros(1, dtype=torch.int64),
        staleness=torch.tensor([4]),
        replayed=torch.tensor([True]),
    )
    # prox = .2 * 2^.75 = .336359; u = .4 / prox = 1.189207 is inside the clip: rho u = 2.
    assert objective("decoupled_ppo")(one, 1.0).loss.item() == pytest.approx(-2.0)
    # At clip_high 1.1: rho 1.1 = 1.681793 * 1.1.
    assert objective("decoupled_ppo", {"clip_high": 1.1})(one, 1.0).loss.item() == pytest.approx(-1.849972)
    # Centered at 1.681793 for a replayed rollout: 2 lies above 1.681793 + .28; a fresh one is clipped at 1.28.
    assert objective("centered_clip")(one, 1.0).loss.item() == pytest.approx(-1.961793)
    fresh = replace(one, replayed=torch.tensor([False]))
    assert objective("centered_clip")(fresh, 1.0).loss.item() == pytest.approx(-1.28)


def test_denominator_when_asked_counts_what_the_aggregation_divides_by() -> None:
    rollouts = Rollouts.from_completions([[1]] * 3, [[2, 3], [4], []], [[-1.0, -1.0], [-1.0], []], group_id=0)

    def count(name: str, **options: str) -> float:
        return objective(name, options).denominator(rollouts, max_new_tokens=8)

    assert (count("grpo"), count("grpo_paper"), count("asymre"), count("dr_grpo")) == (3.0, 3.0, 3.0, 24.0)
    rollouts = rollouts.select([0, 1])
    assert (count("dapo"), count("gspo"), count("topr"), count("dr_grpo")) == (3.0, 2.0, 2.0, 16.0)
    assert count("dapo", aggregation="sequence_sum") == 2.0
    with pytest.raises(ConfigError, match="loss 'dr_grpo' divides by a constant: give max_new_tokens, got None"):
        objective("dr_grpo").denominator(rollouts, max_new_tokens=None)


def test_advantages_when_named_come_from_what_is_stored() -> None:
    rollouts = Rollouts.from_completions(
        *([[[1]] * 2, [[2]] * 2, [[-1.0]] * 2]),
        group_id=0,
        reward=[1.0, 0.0],
        group_reward_mean=0.25,
        group_reward_std=0.5,
        advantage=[1.5, -0.5],
    )

    def kind(name: str, **settings: object) -> list[float]:
        return objective(name, REQUIRED.get(name, {}), **settings).advantages(rollouts).tolist()

    assert kind("dapo") == [1.5, -0.5]
    assert kind("dapo", advantage="group_mean") == kind("dr_grpo") == kind("reinforce") == [0.75, -0.25]
    assert kind("asymre") == pytest.approx([0.8, -0.2])
    assert kind("asymre", shift=-0.25) == [1.0, 0.0]
    assert kind("topr", advantage="fixed_baseline", baseline=0.5) == [0.5, -0.5]
    assert kind("trajectory_balance") == [1.0, 0.0]


def test_presets_when_named_take_the_arguments_that_are_set() -> None:
    x = inputs()
    chosen = objective("dapo", {"clip_high": 1.1, "dual_clip": 1.5})
    keywords = {"clip_low": 0.8, "clip_high": 1.1, "dual_clip": 1.5, "weights_B": x.weights, "denominator": 9.0}
    direct = clipped_surrogate(x.logprobs, x.behavior_logprobs, x.advantages, x.mask, **keywords)
    assert chosen(x, 9.0).loss == direct.loss


def test_objective_when_unknown_or_impossible_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"loss.name must be one of grpo, .*, got 'ppo'"):
        objective("ppo")
    with pytest.raises(ConfigError, match=r"loss.options.sgma: unknown option 'sgma' of loss 'gipo'"):
        objective("gipo", {"sgma": 1.0})
