"""Two trainer processes on halves of a batch do what one does on the whole of it."""

import socket
from dataclasses import replace

import numpy as np
import pytest
import replicated
import torch

from ostinato.advantages import score_group
from ostinato.backends.hf.generator import HFGenerator
from ostinato.backends.hf.models import snapshot
from ostinato.backends.hf.replicas import Replicas
from ostinato.errors import ConfigError
from ostinato.protocols import GroupRequest, Sampling, Task
from ostinato.rollouts import concatenate
from ostinato.shares import token_shares

MODES = pytest.mark.parametrize("fsdp", [False, True], ids=["copies", "fsdp"])
EXACT = [
    (name, fsdp)
    for name, case in replicated.CASES.items()
    for fsdp in (False, True)
    if "bf16" not in case and (not fsdp or name in replicated.WITH_FSDP)
]


@pytest.fixture(scope="module")
def draws(qwen, tokenizer, make_module_draw):
    requests = [
        GroupRequest(
            Task(prompt, "", i, "t"), i, 5, (i,), Sampling(temperature=t, max_new_tokens=replicated.MAX_NEW_TOKENS)
        )
        for i, (prompt, t) in enumerate([("12+30=", 1.0), ("7=", 0.7), ("sort this 54321", 1.0)])
    ]
    rewards = [[0, 1, 0, 1, 1], [1, 0, 0, 0, 0], [0, 0, 1, 1, 0]]
    groups = HFGenerator(qwen, tokenizer).stream(requests)
    rollouts = concatenate([score_group(group, reward) for group, reward in zip(groups, rewards, strict=True)])
    draw = make_module_draw(rollouts, np.linspace(0.5, 1.5, 15))
    draw = replace(draw, staleness=np.arange(15) % 5, uses=np.arange(15) % 2)
    return [draw, replace(draw, uses=draw.uses + 1)]


@pytest.fixture(scope="module")
def alone(qwen, draws, tmp_path_factory):
    """By one process, on the whole batch; a checkpoint of it in `saved-alone`."""
    directory = tmp_path_factory.mktemp("replicas")
    results = {}
    for name, settings in replicated.CASES.items():
        subject = replicated.trainer(qwen, None, **settings)
        results[name] = replicated.steps(subject, draws, [], None)
    subject = replicated.trainer(qwen, None)
    replicated.steps(subject, draws, [], None)
    subject.save(directory / "saved-alone")
    results["saved"] = dict(subject.weights())
    results["went on"] = replicated.steps(subject, draws[:1], [], None)
    return directory, results


@pytest.fixture(scope="module")
def together(qwen, draws, alone):
    """By two processes: their results, one after the other."""
    directory, _ = alone
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = (port, snapshot(qwen), draws, directory)
    torch.multiprocessing.spawn(replicated.work, arguments, nprocs=replicated.TRAINERS)
    return [torch.load(directory / f"{rank}.pt", weights_only=False) for rank in range(replicated.TRAINERS)]


def assert_same(one, other, *, atol) -> None:
    """Metrics, figures, gradient and weights of two runs agree."""
    for ours, theirs in zip(one["metrics"], other["metrics"], strict=True):
        assert ours == pytest.approx(theirs, rel=10 * atol, abs=atol)
    for ours, theirs in zip(one["figures"], other["figures"], strict=True):
        for name, column in theirs.items():
            torch.testing.assert_close(ours[name], column, rtol=10 * atol, atol=10 * atol)
    assert one["dropped"] == other["dropped"]
    assert (one["gradient"] - other["gradient"]).norm() < atol * max(1.0, other["gradient"].norm())
    assert one["weights"].keys() == other["weights"].keys()
    for name, value in other["weights"].items():
        torch.testing.assert_close(one["weights"][name], value, rtol=0, atol=atol)


@pytest.mark.parametrize(("name", "fsdp"), EXACT)
def test_two_trainers_when_given_halves_do_what_one_does_on_the_whole(alone, together, name, fsdp) -> None:
    expected = alone[1][name]
    assert_same(together[0][f"{name} {fsdp}"], expected, atol=1e-5)
    assert expected["gradient"].norm() > 0.1
    # The other rank knows the same, but the weights, which are given out once.
    other = together[1][f"{name} {fsdp}"]
    assert other["weights"] == {}
    assert other["metrics"] == together[0][f"{name} {fsdp}"]["metrics"]
    assert all(
        torch.equal(other["figures"][0][key], value)
        for key, value in together[0][f"{name} {fsdp}"]["figures"][0].items()
    )


def test_weights_when_trained_by_copies_are_the_same_bits_on_all(together) -> None:
    one, other = (result["grpo False"]["gradient"] for result in together)
    assert torch.equal(one, other)


@MODES
@pytest.mark.parametrize("lora", [False, True])
def test_bf16_when_by_two_trainers_is_near_that_of_one(qwen, draws, alone, together, fsdp, lora) -> None:
    name = "bf16 lora" if lora else "bf16"
    expected, found = alone[1][name], together[0][f"{name} {fsdp}"]
    exact = replicated.steps(
        replicated.trainer(qwen, None, **(replicated.CASES[name] | {"bf16": False})), draws, [], None
    )
    off, gap = (exact["gradient"] - expected["gradient"]).norm(), (exact["gradient"] - found["gradient"]).norm()
    assert 0 < gap < 3 * off < 0.3 * exact["gradient"].norm()
    assert all(value.dtype == torch.float32 for key, value in found["weights"].items() if "norm" not in key)
    for figure in ("log_ratio_abs_sum", "entropy_sum"):
        # The first step rounds nearly as one trainer does (0.1: kernels differ with shapes); apart it would be 1.4.
        ours, theirs, plain = (result["figures"][0][figure] for result in (found, expected, exact))
        assert (ours - theirs).abs().mean() < 0.5 * (theirs - plain).abs().mean()


@MODES
def test_checkpoint_when_loaded_by_another_mode_has_the_same_weights(alone, together, fsdp) -> None:
    results = together[0]
    for source in ("False", "True", "alone"):
        saved = alone[1]["saved"] if source == "alone" else results[f"saved {source}"]
        loaded = results[f"loaded {source} {fsdp}"]
        assert loaded.keys() == saved.keys()
        assert all(torch.equal(loaded[name], value) for name, value in saved.items())
        went_on = alone[1]["went on"] if source == "alone" else results[f"went on {source}"]
        assert_same(results[f"resumed {source} {fsdp}"], went_on, atol=1e-5)


@MODES
def test_checkpoint_when_loaded_by_its_own_mode_goes_on_bit_for_bit(together, fsdp) -> None:
    resumed, went_on = together[0][f"resumed {fsdp} {fsdp}"], together[0][f"went on {fsdp}"]
    assert resumed["metrics"] == went_on["metrics"]
    assert all(torch.equal(resumed["weights"][name], value) for name, value in went_on["weights"].items())


@pytest.mark.parametrize("mode", ["False", "True"])
def test_checkpoint_of_two_trainers_when_loaded_by_one_goes_on(qwen, draws, alone, together, mode) -> None:
    subject = replicated.trainer(qwen, None)
    subject.load(alone[0] / f"saved-{mode}")
    saved = together[0][f"saved {mode}"]
    assert all(torch.equal(value, saved[name]) for name, value in subject.weights().items())
    assert_same(replicated.steps(subject, draws[:1], [], None), together[0][f"went on {mode}"], atol=1e-5)


def test_error_of_one_trainer_is_raised_on_all_and_they_go_on(together) -> None:
    first, second = together
    assert second["unusable"].startswith("DataError: rollout")
    assert first["unusable"] == f"RunError: trainer 1 of 2: {second['unusable'].partition(': ')[2]}"
    assert first["infinite"] == second["infinite"] and "loss nan" in first["infinite"]
    assert first["no checkpoint"].startswith("CheckpointError: checkpoint")
    assert second["no checkpoint"].startswith("RunError: trainer 0 of 2: checkpoint")
    assert "Error: [Errno" in first["no directory"] and second["no directory"].startswith("RunError: trainer 0 of 2")


@MODES
def test_trainer_when_its_share_is_empty_still_takes_part(alone, together, fsdp) -> None:
    assert_same(together[0][f"all on one {fsdp}"], alone[1]["grpo"], atol=1e-5)
    assert together[1][f"nothing {fsdp}"] == {"loss": 0.0, "tokens": 0.0, "grad_norm": 0.0}


def test_trainers_when_they_start_apart_take_the_weights_of_the_first(alone, together) -> None:
    started = together[0]["moved"]
    assert all(torch.equal(started[0][name], value) for name, value in started[1].items())


def test_replicas_when_there_is_no_group_say_what_to_call(qwen) -> None:
    with pytest.raises(ConfigError, match=r"call torch\.distributed\.init_process_group first"):
        Replicas.of_group()
    with pytest.raises(ConfigError, match=r"optimizer\.fsdp spreads a model over several .* this is the only one"):
        replicated.trainer(qwen, None, fsdp=True)


def test_shares_when_split_for_this_test_are_of_different_numbers_of_rollouts(draws) -> None:
    lengths = draws[0].rollouts.lengths
    one, other = token_shares(lengths, 2)
    assert len(one) != len(other)
    assert abs(int(lengths[one].sum()) - int(lengths[other].sum())) <= lengths.max()
