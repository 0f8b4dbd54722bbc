"""The section `loss` of a recipe: what is unknown, impossible or without effect is refused in one line."""

import pytest

from ostinato.config import LossConfig
from ostinato.errors import ConfigError
from ostinato.recipe import config_from_dict, load_recipe


def build(**loss) -> LossConfig:
    return config_from_dict({"loss": loss, "loop": {"train_steps": 1}}).loss


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        ({"name": "dapo", "options": {"dual_clp": 3.0}}, "unknown option 'dual_clp' of loss 'dapo', which takes"),
        ({"name": "grpo", "options": {"level": "token"}}, "'level' of loss 'grpo', which takes clip_low, clip_high$"),
        ({"name": "asymre", "options": {"shift": 0.1}}, "'shift' of loss 'asymre', which takes no options"),
        ({"name": "asymre", "clip_high": 1.3}, "loss.clip_high: unknown option 'clip_high' of loss 'asymre'"),
        ({"name": "m2po", "clip_low": 0.7}, "loss.clip_low: unknown option 'clip_low' of loss 'm2po', which"),
        ({"name": "dapo", "options": {"clip_high": 1.3}}, "set loss.clip_high instead of loss.options.clip_high"),
        ({"name": "dapo", "shift": -0.1}, "loss.shift is for advantage shifted, loss 'dapo' uses group_std"),
        ({"name": "dapo", "baseline": 0.5}, "loss.baseline is for advantage fixed_baseline, loss 'dapo'"),
        ({"name": "asymre", "advantage": "group_mean", "shift": 0.0}, "loss 'asymre' uses group_mean"),
        ({"name": "dapo", "advantage": "best"}, "loss.advantage must be one of default, group_std, .*, got 'best'"),
        ({"name": "grpo", "kl_coefficient": -0.1}, "loss.kl_coefficient must be at least 0"),
        ({"name": "grpo", "kl_estimator": "k1"}, "kl_estimator k1 needs loss.kl_coefficient above 0"),
        ({"name": "grpo", "kl_coefficient": 0.1, "kl_estimator": "k4"}, "must be one of k1, k2, k3, got 'k4'"),
        ({"name": "gipo"}, "loss.options.sigma must be set: loss 'gipo' has no value of its own"),
        ({"name": "cispo"}, "loss.clip_high must be set"),
        ({"name": "gipo", "options": {"sigma": 0}}, "loss.options.sigma of loss 'gipo' must be between 1e-06 and"),
        ({"name": "gipo", "options": {"sigma": "wide"}}, "must be a number, got 'wide'"),
        ({"name": "gipo", "options": {"sigma": True}}, "must be a number, got True"),
        ({"name": "gipo", "options": {"sigma": float("inf")}}, "between 1e-06 and 1e.12, got inf"),
        ({"name": "sat", "options": {"kernel": "box"}}, "must be one of hill, continuous_hill, .*, got 'box'"),
        ({"name": "sat", "options": {"quantile": 1.1}}, "must be between 0 and 1, got 1.1"),
        ({"name": "vespo", "options": {"positive": [2.0]}}, "must be a list of 2 numbers, got .2.0."),
        ({"name": "grpo", "clip_high": 0.9}, "loss.clip_high of loss 'grpo' must be between 1 and 1e.12, got 0.9"),
        ({"name": "dapo", "options": {"dual_clip": 1.28}}, "dual_clip must be above clip_high 1.28, got 1.28"),
        ({"name": "centered_clip", "clip_high": 11.0}, "dual_clip must be above clip_high 11, got 10"),
        ({"name": "dapo", "clip_high": 3.5, "options": {"dual_clip": 3}}, "must be above clip_high 3.5, got 3"),
        ({"name": "truncated_importance", "options": {"low": 3, "high": 2}}, "high must be at least low 3, got 2"),
    ],
)  # fmt: skip
def test_loss_when_impossible_is_refused_with_one_line(loss, message) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        build(**loss)
    assert "\n" not in str(caught.value)


def test_loss_when_built_without_a_recipe_is_checked_too() -> None:
    for wrong in ({"name": "ppo"}, {"name": "dapo", "clip_low": "x"}, {"kl_coefficient": float("nan")}):
        with pytest.raises(ConfigError):
            LossConfig(**wrong)


def test_arguments_when_set_are_those_of_the_loss() -> None:
    assert build().arguments() == {}
    loss = build(name="centered_clip", clip_low=0.7, options={"dual_clip": "none", "aggregation": "sequence_mean"})
    assert loss.arguments() == {"clip_low": 0.7, "dual_clip": None, "aggregation": "sequence_mean"}
    assert build(name="vespo", options={"positive": [2, 3.5]}).arguments() == {"positive": (2.0, 3.5)}
    assert build(name="cispo", clip_high=0.2).arguments() == {"clip_high": 0.2}


def test_advantage_when_not_chosen_is_the_losss_own() -> None:
    kinds = {name: build(name=name).advantage_kind for name in ("grpo", "dr_grpo", "asymre", "kimi")}
    assert kinds == {"grpo": "group_std", "dr_grpo": "group_mean", "asymre": "shifted", "kimi": "group_mean"}
    assert build(name="asymre").advantage_options == {"shift": -0.05, "baseline": 0.0}
    chosen = build(name="topr", advantage="fixed_baseline", baseline=0.5)
    assert (chosen.advantage_kind, chosen.advantage_options["baseline"]) == ("fixed_baseline", 0.5)


def test_options_when_given_on_the_command_line_reach_the_loss(tmp_path) -> None:
    path = tmp_path / "r.toml"
    path.write_text(
        '[loop]\ntrain_steps = 5\n[loss]\nname = "dapo"\nclip_high = 1.3\n[loss.options]\ndual_clip = 3.0\n'
    )
    words = ["--loss.options.level", "geometric", "--loss.clip_high", "none"]
    assert load_recipe(path, words).loss.arguments() == {"dual_clip": 3.0, "level": "geometric"}
