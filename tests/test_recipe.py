"""Settings: one validator for file and command line."""

from pathlib import Path

import pytest

from ostinato.config import RunConfig, config_to_dict
from ostinato.errors import ConfigError
from ostinato.recipe import config_from_dict, load_recipe, settings_help

RECIPES = sorted((Path(__file__).parent.parent / "recipes").glob("**/*.toml"))

QUEUE = {"buffer": {"kind": "queue"}}


def build(**sections) -> RunConfig:
    loop = sections.setdefault("loop", {})
    if isinstance(loop, dict):
        loop.setdefault("train_steps", 10)
    return config_from_dict(sections)


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.name)
def test_recipe_when_shipped_is_valid(path) -> None:
    assert config_from_dict(config_to_dict(load_recipe(path))) == load_recipe(path)


def test_override_when_given_wins_over_the_file(tmp_path) -> None:
    path = tmp_path / "r.toml"
    path.write_text("[loop]\ntrain_steps = 5\nmu = 4.0\n[task.options]\ndigits = 3\n")
    words = ["--loop.mu", "5", "--loop.max-staleness=none", "--task.options.digits", "7", "--loss.name", "asymre"]
    config = load_recipe(path, words)
    assert (config.loop.mu, config.loop.max_staleness, config.loss.name) == (5.0, None, "asymre")
    assert config.task.options == {"digits": 7}
    assert load_recipe(path, ["--task.options", "{terms = 2}"]).task.options == {"terms": 2}


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"loop": {"genrators": 3}}, "unknown setting 'loop.genrators'; did you mean 'loop.generators'"),
        ({"optimiser": {}}, "unknown setting 'optimiser'"),
        ({"lr": 1}, "unknown setting 'lr'"),
        ({"modle": {"path": ""}}, "unknown setting 'modle'; did you mean 'model'?"),
        ({"optimizer": {"beta1": 1.0}}, "optimizer.beta1 must be between 0 and 0.99"),
        ({"optimizer": {"eps": 0.0}}, "optimizer.eps must be at least"),
        ({"evaluation": {"every_units": 1e-9}}, "must be 0 .never. or at least 0.001"),
        ({"arms": {"baseline": 3}}, "arms: each must be a table"),
        ({"task": {"options": {"a": [{"b": None}]}}}, "task.options.a.0.b must be a number, text or true/false"),
        ({"loop": {"generators": 2.5}}, "loop.generators expects int, got float 2.5"),
        ({"loop": {"generators": True}}, "loop.generators expects int, got bool True"),
        ({"loop": {"mu": "big"}}, "loop.mu expects float, got str 'big'"),
        ({"loop": {"mu": -1.0}}, "loop.mu must be at least"),
        ({"loop": {"mu": float("nan")}}, "loop.mu must be a finite number"),
        ({"loop": {"batch_size": 10**30}}, "loop.batch_size must be a finite number of at most"),
        ({"loop": {"mu": 10**400}}, "loop.mu must be a finite number of at most .*, got an integer of 1329 bits"),
        ({"governors": {"gate_z": -(10**9999)}}, "governors.gate_z must be a finite .*, got an integer of 33216 bits"),
        ({"buffer": {"sampler": 10**9999}}, "buffer.sampler expects str, got int an integer of 33216 bits"),
        ({"loss": {"options": {"x": [[10**9999]]}}}, "loss.options.x: unknown option 'x'"),
        ({"loss": {"name": "vespo", "options": {"positive": [1, 10**9999]}}}, "1e.12, got an integer of 33216 bits"),
        ({"buffer": {"beta": "y" * 10**5}}, "buffer.beta expects float, got str 'y{79}[.]{3}$"),
        ({"governors": {"ess_bnd": 1}}, "unknown setting 'governors.ess_bnd'; did you mean 'governors.ess_bound'"),
        ({"Governors": {"ess_bound": 1}}, "unknown setting 'Governors'; did you mean 'governors'"),
        ({"loss": {"clip_low": 1.2}}, "loss.clip_low must be between 0 and 1, got 1.2"),
        ({"loss": {"name": "ppo"}}, "loss.name must be one of grpo, asymre, .*kimi.*, got 'ppo'"),
        ({"loop": 3}, "loop is a section, got the value 3"),
        ({"buffer": {"capacity": 59}}, "batch_size 60 > buffer.capacity 59"),
        ({"loop": {"group_size": 61}}, "group_size 61 > loop.batch_size 60"),
        ({"buffer": {"min_size": 2000}}, "min_size 2000 > buffer.capacity 1020"),
        ({"buffer": {"positive_bias": 1.5}}, "buffer.positive_bias must be between 0 and 1, got 1.5"),
        ({"buffer": {"capacity": 100, "positive_bias": 0.5}}, "keeps fewer of the newest of 100 than loop.batch_size"),
        ({"buffer": {"sampler": "lifo"}}, "buffer.sampler must be one of uniform, never.*, got 'lifo'"),
        ({"buffer": {"beta": 0.4}}, "buffer.beta is for a prioritized sampler, got buffer.sampler = uniform"),
        ({"buffer": {"sampler": "per", "beta": 1.5}}, "buffer.beta must be between 0 and 1, got 1.5"),
        ({"buffer": {"sampler": "prioritized", "priority": "loss"}}, "buffer.priority must be one of reward, adv"),
        ({"buffer": {"sampler": "prioritized", "normalize": "batch"}}, "normalize batch needs buffer.beta above 0"),
        ({"buffer": {"sampler": "per", "beta": 0, "normalize": "off"}}, "normalize off needs buffer.beta above 0"),
        ({"buffer": {"sampler": "advantage_prioritized", "beta": 0.4}}, "buffer.beta: .* has its own, which is fixed"),
        ({"buffer": {"capacity_bytes": 15359}}, "15359 < 15360: the tokens of a batch of 60 completions of 32 never"),
        ({"governors": {"ratio_bound": 1.0}}, "governors.ratio_bound must be at least 1.0"),
        ({"governors": {"ess_bound": 0.99}}, "ess_bound 0.99 plus ess_hysteresis 0.05 is above 1"),
        ({"governors": {"min_samples": 600}}, "min_samples 600 > governors.window 512: no age is ever judged"),
        ({"governors": {"learning_rate": "cubic"}}, "governors.learning_rate must be one of off, sqrt, linear"),
        ({"governors": {"gate_z": -1.0}}, "governors.gate_z must be at least 0, got -1.0"),
        ({"diagnostics": {"gradient_split_every": -1}}, "gradient_split_every must be at least 0"),
        ({"loop": {"shards": True, "trainers": 7}}, "trainers 7 must divide batch_size 60"),
        ({"loop": {"publish_every": 4, "max_staleness": 2}}, "max_staleness 2 < publish_every - 1 = 3"),
        (QUEUE | {"loop": {"max_staleness": 0, "group_size": 16}}, "batch_size 60 must be a multiple of .* = 16"),
        (QUEUE | {"loop": {"max_staleness": 1, "groups_per_request": 6}}, "72 > batch_size 60: nobody could start"),
        ({"buffer": {"kind": "queue", "capacity": 64}}, "the queue could fill below a batch"),
        ({"loop": {"epochs": 3}}, "belongs to buffer.kind = queue"),
        ({"loop": {"train_steps": 0}}, "the run would not end"),
        ({"model": {"backend": "toy"}}, "go together"),
        ({"task": {"name": "jsonl"}}, "needs task.file"),
        ({"model": {"heads": 3, "kv_heads": 1}}, "heads 3 must divide model.hidden_size 64"),
        ({"model": {"heads": 4, "kv_heads": 3}}, "kv_heads 3 must divide model.heads 4"),
    ],
)  # fmt: skip
def test_settings_when_wrong_are_refused_with_one_line(sections, message) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        build(**sections)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["loop.mu", "3"], "expected --section.key value, got 'loop.mu'"),
        (["--loop.mu"], "--loop.mu needs a value"),
        (["--loop.mu", "x"], "loop.mu expects float, got str 'x'"),
        (["--loop.mu.x", "3"], "unknown setting|expects float"),
        (["--loop.mu", "1" + "0" * 5000], "loop.mu expects float, got str '10*[.]{3}$"),
        (["--loop.mu", "0x" + "f" * 5000], "loop.mu must be a finite number .*, got an integer of 20000 bits"),
        (["--loop.mu", "[" * 5000], "loop.mu expects float, got str"),
        (["--loop.mu", "3\nx = 1"], "loop.mu expects float, got str '3"),
        (["--seed", "1", "--seed.x", "3"], "seed is a value, not a section"),
    ],
)
def test_override_when_malformed_is_refused(tmp_path, words, message) -> None:
    path = tmp_path / "r.toml"
    path.write_text("[loop]\ntrain_steps = 5\n")
    with pytest.raises(ConfigError, match=message):
        load_recipe(path, words)


def test_recipe_when_missing_or_broken_names_the_file(tmp_path) -> None:
    with pytest.raises(ConfigError, match=r"none.toml does not exist"):
        load_recipe(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("[loop\n")
    with pytest.raises(ConfigError, match=r"bad.toml cannot be read"):
        load_recipe(tmp_path / "bad.toml")
    (tmp_path / "digits.toml").write_text(f"[loop]\nmu = {'1' * 5000}\n")
    with pytest.raises(ConfigError, match=r"digits.toml cannot be read: .* 5000 digits"):
        load_recipe(tmp_path / "digits.toml")


def test_help_when_listed_covers_every_field_and_stays_small() -> None:
    names = [name for name, _, text in settings_help() if text]
    sections = {name: value if isinstance(value, dict) else {} for name, value in config_to_dict(build()).items()}
    leaves = [f"{name}.{key}" for name, section in sections.items() for key in section]
    leaves += [name for name, section in sections.items() if not section]
    assert sorted(names) == sorted(set(leaves) - {"arms"})
    assert len(names) <= 150
