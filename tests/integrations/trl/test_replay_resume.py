"""A run that was stopped and resumed, against one that was not."""

import json

import numpy as np
import pytest
import torch
import transformers

pytest.importorskip("trl")

from replaying import Rewards, log_of, run, trainer, weights

from ostinato.buffer import Prioritized
from ostinato.errors import CheckpointError
from ostinato.integrations.trl import ReplayConfig

SHAPE = {"steps_per_generation": 2, "max_steps": 12, "save_strategy": "steps", "save_steps": 1}
REPLAY = {"capacity": 24, "uses": 3, "sampler": Prioritized(exponent=0.7), "priority": "kl"}
BY_CONTENT = {"rewards": Rewards(lambda number, ids: float(sum(ids) % 16))}  # the same in a run that begins later
# One epoch is 8 prompts in chunks of 2, each used 3 times: 12 steps.


@pytest.fixture(scope="module")
def whole(model_directory, tmp_path_factory):
    """An uninterrupted run with a checkpoint of every step, and where they are."""
    directory = tmp_path_factory.mktemp("whole")
    return run(model_directory, directory, ReplayConfig(**REPLAY), **SHAPE, **BY_CONTENT), directory


@pytest.mark.parametrize("step", [3, 4, 8])
def test_losses_when_resumed_go_on_as_if_nothing_had_happened(model_directory, tmp_path, whole, step) -> None:
    """At a generation boundary (3), and inside a generation's uses (4, 8), where TRL's own loop is not exact."""
    uninterrupted, directory = whole
    shape = SHAPE | BY_CONTENT | {"save_strategy": "no"}
    resumed = trainer(model_directory, tmp_path, ReplayConfig(**REPLAY), **shape)
    resumed.train(resume_from_checkpoint=str(directory / f"checkpoint-{step}"))
    assert resumed.losses == uninterrupted.losses[2 * step :]
    assert torch.equal(weights(resumed), weights(uninterrupted))
    assert len(resumed.generated) == 4 - -(-step // 3)
    for name in ("replay/policy/kl_k3", "replay/batch_staleness_mean", "replay/generations", "replay/drawn"):
        assert log_of(resumed, name)[-1] == log_of(uninterrupted, name)[-1]


@pytest.mark.parametrize(("step", "exact"), [(3, True), (4, False)])
def test_trl_alone_with_num_iterations_is_exact_at_a_generation_boundary_only(
    model_directory, tmp_path, step, exact
) -> None:
    """What the claim above is measured against: TRL forgets its generation, and generates anew on the next prompts."""

    def plain(output, **given):
        return trainer(model_directory, output, None, num_iterations=3, **SHAPE | BY_CONTENT | given)

    uninterrupted = plain(tmp_path / "whole")
    uninterrupted.train()
    resumed = plain(tmp_path / "resumed", save_strategy="no")
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / f"checkpoint-{step}"))
    assert (resumed.losses == uninterrupted.losses[2 * step :]) is exact


def test_checkpoint_when_its_buffer_is_missing_damaged_or_of_others_is_refused(
    model_directory, tmp_path, whole
) -> None:
    _, directory = whole
    plain = tmp_path / "plain"
    run(model_directory, plain, None, **SHAPE | {"max_steps": 1})
    replaying = trainer(model_directory, tmp_path, ReplayConfig(**REPLAY), **SHAPE | {"save_strategy": "no"})
    with pytest.raises(CheckpointError, match=r"rank0.json is missing: the checkpoint was written without replay"):
        replaying.train(resume_from_checkpoint=str(plain / "checkpoint-1"))

    files = directory / "checkpoint-2" / "replay"
    kept = {path: path.read_bytes() for path in files.iterdir()}
    state, buffer = files / "rank0.json", files / "rank0.buffer"
    assert set(kept) == {state, buffer}
    other = (directory / "checkpoint-1" / "replay" / "rank0.buffer").read_bytes()
    damages = [
        (buffer, kept[buffer][:-200], "rank0.buffer"),
        (state, b"{}", "no state of a replaying trainer"),
        (state, json.dumps(json.loads(kept[state]) | {"processes": 2}).encode(), "resume with as many as wrote it"),
        (state, json.dumps(json.loads(kept[state]) | {"counters": {"generations": 1e400}}).encode(), "no state of a"),
        (buffer, other, "are not of one checkpoint"),
    ]
    for path, content, message in damages:
        path.write_bytes(content)
        replaying = trainer(model_directory, tmp_path, ReplayConfig(**REPLAY), **SHAPE | {"save_strategy": "no"})
        with pytest.raises(CheckpointError, match=message):
            replaying.train(resume_from_checkpoint=str(directory / "checkpoint-2"))
        path.write_bytes(kept[path])


def test_checkpoint_without_optimizer_holds_no_buffer(model_directory, tmp_path) -> None:
    run(model_directory, tmp_path, ReplayConfig(**REPLAY), **SHAPE | {"max_steps": 1, "save_only_model": True})
    assert (tmp_path / "checkpoint-1").exists() and not (tmp_path / "checkpoint-1" / "replay").exists()


def test_checkpoint_of_rollouts_without_what_the_loss_needs_now_is_refused(model_directory, tmp_path, whole) -> None:
    """A reference that came later is in no stored rollout: TRL's loss would find none in the first batch."""
    _, directory = whole
    resumed = trainer(model_directory, tmp_path, ReplayConfig(**REPLAY), **SHAPE | {"save_strategy": "no", "beta": 0.1})
    with pytest.raises(CheckpointError, match=r"recorded without a reference \(beta above 0\), this trainer trains"):
        resumed.train(resume_from_checkpoint=str(directory / "checkpoint-2"))


def test_groups_when_resumed_with_larger_ones_are_numbered_on(model_directory, tmp_path) -> None:
    """Groups of 2, four a generation, then groups of 4, two a generation: no two groups share a number."""
    replay, pairs = ReplayConfig(capacity=64, uses=2), SHAPE | {"max_steps": 4, "save_steps": 4, "num_generations": 2}
    run(model_directory, tmp_path, replay, **pairs)
    resumed = trainer(model_directory, tmp_path, replay, **SHAPE | {"max_steps": 6, "save_strategy": "no"})
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    groups, members = np.unique(resumed.replay_store.buffer.columns["group_id"], return_counts=True)
    assert groups.tolist() == list(range(10)) and members.tolist() == [2] * 8 + [4] * 2


class _Interrupt(transformers.TrainerCallback):
    def on_train_begin(self, args, state, control, **_):
        raise KeyboardInterrupt


def test_training_anew_when_a_resume_did_not_begin_has_an_empty_buffer(model_directory, tmp_path, whole) -> None:
    _, directory = whole
    given = SHAPE | {"save_strategy": "no", "max_steps": 2}
    again = trainer(model_directory, tmp_path, ReplayConfig(**REPLAY), **given)
    interrupt = _Interrupt()
    again.add_callback(interrupt)
    with pytest.raises(KeyboardInterrupt):
        again.train(resume_from_checkpoint=str(directory / "checkpoint-8"))
    again.remove_callback(interrupt)
    again.train()
    assert again.replay_store.counters["generations"] == 1 and len(again.replay_store.buffer) == 8
