"""Settings under which replay would be wrong or impossible: refused at construction, with the fix."""

import json
import shutil

import pytest

pytest.importorskip("trl")

from replaying import settings, trainer

from ostinato.buffer import (
    FreshAnchored,
    Groups,
    Informative,
    MaxStaleness,
    MinSize,
    SamplesPerInsert,
    Uniform,
    advantage_prioritized,
    freshness_per,
    paper_positive_bias,
)
from ostinato.errors import ConfigError
from ostinato.integrations.trl import ReplayConfig
from ostinato.integrations.trl.checks import check_training


def check(tmp_path, replay=None, processes=1, **given):
    """The checks alone: they come before a model is loaded, so none is needed."""
    args = settings(tmp_path, **given)
    if processes > 1:
        args = _Many(args, processes)
    check_training(args, ReplayConfig(**{"capacity": 64, "uses": 3} | (replay or {})))


class _Many:
    """Settings as they are under a launcher of several processes."""

    def __init__(self, args, processes):
        self._args, self.world_size = args, processes

    def __getattr__(self, name):
        return getattr(self._args, name)


VLLM = {"use_vllm": True, "vllm_mode": "server"}


@pytest.mark.parametrize(
    ("replay", "given", "message"),
    [
        (
            {},
            {"num_iterations": 3},
            r"num_iterations is 3: .* which is not replay; leave it at 1 .*ReplayConfig\(uses=3\)",
        ),
        ({"capacity": 0}, {"num_iterations": 2}, r"num_iterations is 2"),
        (
            {},
            {"gradient_accumulation_steps": 4, "steps_per_generation": 2},
            "steps_per_generation 2 times 3 uses is 6 .* 4 does not divide: .* set steps_per_generation=4",
        ),
        ({"capacity": 7}, {}, r"capacity 7 is below 8: .* \(8 rollouts\) and one generation \(8\); set capacity >= 8"),
        ({"capacity": 15}, {"steps_per_generation": 4}, "capacity 15 is below 16"),
        ({"sampler": Groups()}, {"num_generations": 8}, None),
        (
            {"sampler": Groups()},
            {"num_generations": 8, "gradient_accumulation_steps": 3, "steps_per_generation": 6},
            "whole groups of num_generations 8 do not fill the 12 rollouts .* times gradient_accumulation_steps 3",
        ),
        (
            {"sampler": FreshAnchored(replay=Groups())},
            {"num_generations": 8, "gradient_accumulation_steps": 3, "steps_per_generation": 6},
            "whole groups",
        ),
        ({}, VLLM | {"vllm_importance_sampling_correction": False}, "set vllm_importance_sampling_correction=True"),
        ({}, {"top_p": 0.9}, "top_p=0.9: log-probs recomputed by the model are not those of truncated sampling"),
        ({}, {"top_k": 50, "min_p": 0.1}, "top_k=50, min_p=0.1: "),
        ({}, {"repetition_penalty": 1.1}, "repetition_penalty=1.1: "),
        ({}, {"generation_kwargs": {"top_p": 0.5}}, "top_p=0.5: "),
        ({}, {"generation_kwargs": {"num_beams": 2}}, "num_beams=2: .* beams"),
        ({}, {"generation_kwargs": {"min_new_tokens": 3, "num_beams": 1}}, "^min_new_tokens=3: "),
        (
            {"limiter": SamplesPerInsert(3.0, batch_size=8)},
            {"steps_per_generation": 4},
            r"batch_size=8, group_size=1\) while a process draws 8 .* adds 16 .* set batch_size=8, group_size=16",
        ),
        ({"limiter": SamplesPerInsert(3.0, batch_size=8, group_size=8)}, {}, None),
        ({"loss": "trajectory_balance"}, {"beta": 0.1}, r"compares the members of a group.*sampler=Groups\(\)"),
        ({"loss": "trajectory_balance", "sampler": Groups()}, {"beta": 0.1}, None),
        ({"loss": "trajectory_balance", "uses": 1}, {"beta": 0.1}, None),  # a generation at a time: groups are whole
        ({}, {"generation_kwargs": {"do_sample": False}}, "a greedy choice has no log-probs"),
        ({}, {"generation_kwargs": {"temperature": 0.5}}, r"temperature 0.5, log-probs are taken at 1.0"),
        ({"loss": "m2po", "loss_options": {"threshold": 0.1}}, {}, None),
        ({}, VLLM | {"top_p": 0.9}, None),  # the engine's log-probs are of what it sampled from
        ({"capacity": 8, "uses": 2}, {"steps_per_generation": 1}, None),
        ({"uses": 1}, {"top_p": 0.9}, None),  # nothing is stale: TRL's own business
        ({"capacity": 0}, {"top_k": 5}, None),
    ],
)
def test_settings_that_cannot_work_are_refused_with_the_fix(tmp_path, replay, given, message) -> None:
    if message is None:
        check(tmp_path, replay, **given)
        return
    with pytest.raises(ConfigError, match=message):
        check(tmp_path, replay, **given)


@pytest.mark.parametrize(
    ("replay", "message"),
    [
        ({"capacity": 15}, "capacity 15 is below 16"),
        ({"loss": "m2po", "loss_options": {"threshold": 0.1}}, "of which each of 2 processes sees a part"),
        ({"capacity": 16}, None),
    ],
)
def test_settings_for_two_processes_are_checked_for_both(tmp_path, replay, message) -> None:
    if message is None:
        check(tmp_path, replay, processes=2)
        return
    with pytest.raises(ConfigError, match=message):
        check(tmp_path, replay, processes=2)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"capacity": -1}, "capacity must be at least 0, got -1"),
        ({"capacity": 8.5}, "capacity must be an integer, got 8.5"),
        ({"capacity": 8, "uses": 0}, "uses must be at least 1, got 0"),
        ({"capacity": 8, "uses": 10**18}, "uses must be at most 1000000"),
        ({"capacity": 8, "retention": MaxStaleness(3)}, r"retention is MaxStaleness\(n=3\), expected a list of rules"),
        ({"capacity": 8, "admission": Informative()}, r"admission is Informative\(.*, expected a list of rules"),
        ({"capacity": 8, "retention": None}, "retention is None, expected a list"),
        ({"capacity": 8, "loss": "nope"}, "loss must be one of None, 'grpo', .* got 'nope'"),
        ({"capacity": 8, "loss": ["grpo"]}, r"loss must be one of .* got \['grpo'\]"),
        (
            {"capacity": 8, "loss": "grpo", "loss_options": [("a", 1)]},
            r"loss_options is \[\('a', 1\)\], expected a dict",
        ),
        ({"capacity": 8, "loss_options": 3}, "loss_options is 3, expected a dict"),
        (
            {"capacity": 8, "loss": "grpo", "loss_options": {"advantage": "x"}},
            "loss_options: advantage must be one of 'default', 'group_std', .* got 'x'",
        ),
        (
            {"capacity": 8, "loss": "asymre", "loss_options": {"shift": "x"}},
            "loss_options: shift must be a finite number, got 'x'",
        ),
        (
            {"capacity": 8, "priority": "kl"},
            r"priority 'kl' would be written and never read: .*sampler=Prioritized\(\)",
        ),
        ({"capacity": 8, "uses": 1.5}, "uses must be an integer, got 1.5"),
        ({"capacity": 8, "capacity_bytes": 0}, "capacity_bytes must be at least 1"),
        ({"capacity": 8, "priority": "td_error"}, "priority must be one of None, 'reward'"),
        ({"capacity": 8, "sampler": Uniform}, r"sampler is the class Uniform, expected an instance"),
        ({"capacity": 8, "sampler": "uniform"}, "sampler must be a sampler such as"),
        ({"capacity": 8, "limiter": MinSize(9)}, "min_size 9 is never reached"),
        ({"capacity": 8, "buffer": lambda capacity, **_: None}, "buffer gave None, expected a ReplayBuffer"),
        ({"capacity": 8, "buffer": 3}, "expected a function of the capacity"),
        ({"capacity": 8, "buffer": advantage_prioritized, "sampler": Uniform()}, "buffer: .*sampler"),
    ],
)
def test_replay_that_no_trainer_could_use_is_refused(given, message) -> None:
    with pytest.raises(ConfigError, match=message):
        ReplayConfig(**given)


def test_model_whose_own_generation_config_truncates_is_refused(model_directory, tmp_path) -> None:
    """transformers takes from it what TRL leaves open (min_p), and every key that TRL does not know."""
    model = shutil.copytree(model_directory, tmp_path / "model")
    path = model / "generation_config.json"
    own = json.loads(path.read_text()) | {"top_p": 0.8, "min_p": 0.05, "no_repeat_ngram_size": 2}
    path.write_text(json.dumps(own))
    with pytest.raises(
        ConfigError, match=r"generation_config has min_p=0.05, no_repeat_ngram_size=2: .* set it to None"
    ):
        trainer(str(model), tmp_path, ReplayConfig(capacity=8))
    # A rollout function generates, not transformers.
    trainer(str(model), tmp_path, ReplayConfig(capacity=8), rollouts=lambda prompts, of: {})
    trainer(str(model), tmp_path, ReplayConfig(capacity=0))
    path.write_text(json.dumps(own | {"min_p": None, "no_repeat_ngram_size": 0}))
    trainer(str(model), tmp_path, ReplayConfig(capacity=8))  # top_p is TRL's own, which wins


def test_presets_when_given_as_buffers_are_made_with_the_share_of_a_process() -> None:
    config = ReplayConfig(capacity=301, buffer=freshness_per, capacity_bytes=1001)
    buffers = [config.make_buffer(processes=2, rank=rank) for rank in (0, 1)]
    assert [buffer.capacity for buffer in buffers] == [150, 150] and buffers[0].capacity_bytes == 500
    assert buffers[0].sampler is not buffers[1].sampler
    ReplayConfig(capacity=8, buffer=lambda capacity, **more: paper_positive_bias(capacity, threshold=0.5, **more))


def test_trainer_without_a_replay_config_or_with_another_kind_of_settings_says_so(model_directory, tmp_path) -> None:
    import transformers

    with pytest.raises(ConfigError, match=r"replay is dict, expected ReplayConfig\(capacity"):
        trainer(model_directory, tmp_path, {"capacity": 8})
    from ostinato.integrations.trl import ReplayGRPOTrainer

    with pytest.raises(ConfigError, match="args is TrainingArguments, expected a GRPOConfig"):
        ReplayGRPOTrainer(
            model_directory,
            [],
            transformers.TrainingArguments(str(tmp_path), use_cpu=True),
            replay=ReplayConfig(capacity=8),
        )


def test_settings_of_the_user_are_left_as_they_were(model_directory, tmp_path) -> None:
    import datasets
    from replaying import PROMPTS, Rewards

    from ostinato.integrations.trl import ReplayGRPOTrainer

    args = settings(tmp_path)
    replay, data = ReplayConfig(capacity=16, uses=3), datasets.Dataset.from_list(PROMPTS)
    made = ReplayGRPOTrainer(model_directory, Rewards(), args, data, replay=replay)
    assert (args.num_iterations, made.args.num_iterations, made.num_iterations) == (1, 3, 3)
    named = ReplayGRPOTrainer(
        model=model_directory, reward_funcs=Rewards(), args=args, train_dataset=data, replay=replay
    )
    assert named.num_iterations == 3 and args.num_iterations == 1
