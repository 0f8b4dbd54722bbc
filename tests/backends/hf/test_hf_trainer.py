import copy
import errno
import resource
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from ostinato.advantages import score_group
from ostinato.backends.hf.generator import HFGenerator
from ostinato.backends.hf.models import build_model, snapshot
from ostinato.backends.hf.policy import completion_logprobs
from ostinato.backends.hf.saving import saving
from ostinato.backends.hf.trainer import HFTrainer
from ostinato.batching import padded_batch
from ostinato.config import LossConfig, ModelConfig, OptimizerConfig
from ostinato.errors import CheckpointError, DataError, RunError
from ostinato.protocols import GroupRequest, Sampling, Task
from ostinato.rollouts import Rollouts, concatenate
from ostinato.stats import diagnose

OPTIMIZER = OptimizerConfig(learning_rate=1e-3, weight_decay=0.1, grad_clip=0.5)


@pytest.fixture(scope="module")
def rollouts(qwen, tokenizer):
    requests = [
        GroupRequest(Task(prompt, "", i, "t"), i, 4, (i,), Sampling(temperature=t, max_new_tokens=7))
        for i, (prompt, t) in enumerate([("12+30=", 1.0), ("7=", 0.7), ("sort this 54321", 1.0)])
    ]
    rewards = [[0, 1, 0, 1], [1, 0, 0, 0], [0, 0, 1, 1]]
    groups = HFGenerator(qwen, tokenizer).stream(requests)
    return concatenate([score_group(group, reward) for group, reward in zip(groups, rewards, strict=True)])


def trainer(model, tokenizer, *, loss="grpo", **settings):
    return HFTrainer(model, tokenizer, loss=LossConfig(name=loss), optimizer=replace(OPTIMIZER, **settings))


def assert_equal(a, b, atol=0.0):
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name], b[name], atol=atol, rtol=0, msg=name)


def reference_gradient(model, rollouts, loss, weights):
    """Rollout by rollout, unpadded, in double precision where it matters."""
    model.zero_grad()
    total = torch.zeros((), dtype=torch.float64)
    for i in range(len(rollouts)):
        tokens = torch.from_numpy(rollouts.tokens[rollouts.offsets[i] : rollouts.offsets[i + 1]]).long()
        start = int(rollouts.prompt_length[i])
        logits = model(input_ids=tokens[None]).logits[0, start - 1 : -1] / float(rollouts.temperature[i])
        logprobs = logits.log_softmax(-1)[torch.arange(len(tokens) - start), tokens[start:]]
        if loss == "grpo":
            behavior = torch.from_numpy(
                rollouts.behavior_logprobs[rollouts.offsets[i] + start : rollouts.offsets[i + 1]]
            )
            ratio, advantage = (logprobs - behavior).exp(), float(rollouts.advantage[i])
            term = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).sum() / int(
                rollouts.loss_mask.sum()
            )
        else:
            advantage = float(rollouts.reward[i] - (rollouts.group_reward_mean[i] - 0.05))
            term = advantage * logprobs.sum() / len(rollouts)
        total = total - weights[i] * term
    total.backward()
    return total.item()


@pytest.mark.parametrize("loss", ["grpo", "asymre"])
def test_step_equals_a_plain_torch_step(qwen, tokenizer, rollouts, make_draw, loss):
    weights = np.linspace(0.5, 1.5, len(rollouts))
    subject = trainer(qwen, tokenizer, loss=loss)
    metrics = subject.step(make_draw(rollouts, weights)).metrics

    reference = copy.deepcopy(qwen)
    value = reference_gradient(reference, rollouts, loss, weights)
    norm = torch.nn.utils.clip_grad_norm_(reference.parameters(), 0.5)
    torch.optim.AdamW(reference.parameters(), lr=1e-3, eps=1e-8, weight_decay=0.1).step()

    assert metrics["loss"] == pytest.approx(value, abs=1e-5)
    assert metrics["grad_norm"] == pytest.approx(float(norm), rel=1e-4)
    assert metrics["tokens"] == rollouts.loss_mask.sum()
    # Adam's first step is about lr * sign(gradient): compare where the gradient is clear of rounding.
    for name, parameter in reference.named_parameters():
        clear = parameter.grad.abs() > 1e-5
        torch.testing.assert_close(subject.weights()[name][clear], parameter.detach()[clear], atol=1e-5, rtol=0)


@pytest.mark.parametrize("loss", ["grpo", "asymre"])
def test_weights_do_not_depend_on_the_microbatch_budget(qwen, tokenizer, rollouts, make_draw, loss):
    whole, parts = (trainer(qwen, tokenizer, loss=loss, tokens_per_microbatch=n, eps=1e-3) for n in (10**6, 40))
    for _ in range(2):
        a, b = whole.step(make_draw(rollouts)).metrics, parts.step(make_draw(rollouts)).metrics
        assert a.keys() == b.keys()
        assert a == pytest.approx(b, rel=1e-4, abs=1e-6)
    assert_equal(whole.weights(), parts.weights(), atol=1e-6)


def test_first_step_on_fresh_rollouts_has_ratio_one(qwen, tokenizer, rollouts, make_draw):
    subject, draw = trainer(qwen, tokenizer), make_draw(rollouts)
    about = {"staleness": draw.staleness, "fresh": draw.uses == 0, "correct": rollouts.reward > 0}
    first, second = (diagnose(subject.step(draw).figures, **about) for _ in range(2))
    assert first["ratio_mean"] == pytest.approx(1, abs=1e-4)
    assert first["ratio_max"] == pytest.approx(1, abs=1e-3)
    assert first["clip_fraction"] == 0
    assert first["kl_k3"] == pytest.approx(0, abs=1e-6)
    assert 0 < first["entropy"] < np.log(len(tokenizer))
    assert second["kl_k3"] > 1e-6


def test_step_raises_the_probability_of_rewarded_completions(qwen, tokenizer, rollouts, make_draw):
    subject = trainer(qwen, tokenizer, weight_decay=0.0)
    before = -subject.step(make_draw(rollouts)).metrics["loss"]
    for _ in range(5):
        after = -subject.step(make_draw(rollouts)).metrics["loss"]
    assert after > before + 0.01


def test_trainer_logprobs_equal_generator_logprobs(qwen, tokenizer, rollouts):
    batch = padded_batch(rollouts, np.arange(len(rollouts)), pad_token_id=0)
    with torch.no_grad():
        logprobs, _, first = completion_logprobs(qwen, batch, rollouts.temperature, bf16=False)
    mask = batch.loss_mask[:, first:]
    torch.testing.assert_close(logprobs[mask], batch.behavior_logprobs[:, first:][mask], atol=1e-4, rtol=0)


def test_bf16_changes_logprobs_little(qwen, tokenizer, rollouts):
    batch = padded_batch(rollouts, np.arange(len(rollouts)), pad_token_id=0)
    with torch.no_grad():
        exact, _, first = completion_logprobs(qwen, batch, rollouts.temperature, bf16=False)
        rounded, _, _ = completion_logprobs(qwen, batch, rollouts.temperature, bf16=True)
    gap = (exact - rounded)[batch.loss_mask[:, first:]].abs()
    assert 1e-4 < gap.mean() < 0.1


def test_bf16_throughout_would_be_further_from_the_generator_than_autocast(tokenizer):
    sizes = ModelConfig(hidden_size=128, layers=8, heads=4, kv_heads=4, intermediate_size=256)
    model = build_model(sizes, tokenizer, seed=1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(6.0 if parameter.ndim == 2 else 1.0)
    requests = [
        GroupRequest(Task(prompt, "", i, "t"), i, 16, (i,), Sampling(max_new_tokens=24))
        for i, prompt in enumerate(["12+30=", "7="])
    ]
    rollouts = concatenate(list(HFGenerator(model, tokenizer, bf16=True).stream(requests)))
    batch = padded_batch(rollouts, np.arange(len(rollouts)), pad_token_id=0)
    gaps = []
    for subject, autocast in ((model, True), (copy.deepcopy(model).to(torch.bfloat16), False)):
        with torch.no_grad():
            found, _, first = completion_logprobs(subject, batch, rollouts.temperature, bf16=autocast)
        mask = batch.loss_mask[:, first:]
        gaps.append(float((found - batch.behavior_logprobs[:, first:])[mask].abs().mean()))
    assert gaps[0] < 0.02 and 1.5 * gaps[0] < gaps[1]  # 0.012 and 0.028 nats where this was written


def test_save_and_load_continue_bit_for_bit(qwen, tokenizer, rollouts, make_draw, tmp_path):
    first = trainer(qwen, tokenizer)
    first.step(make_draw(rollouts))
    first.save(tmp_path)
    second = trainer(qwen, tokenizer)
    second.load(tmp_path)
    assert_equal(first.weights(), second.weights())
    assert first.step(make_draw(rollouts)).metrics == second.step(make_draw(rollouts)).metrics
    assert_equal(first.weights(), second.weights())


@pytest.mark.parametrize("file", ["model/model.safetensors", "optimizer.pt", "model/config.json"])
@pytest.mark.parametrize("damage", ["missing", "truncated", "empty"])
def test_load_refuses_a_damaged_checkpoint_and_changes_nothing(
    qwen, tokenizer, rollouts, make_draw, tmp_path, file, damage
):
    subject = trainer(qwen, tokenizer)
    subject.step(make_draw(rollouts))
    subject.save(tmp_path)
    path = tmp_path / file
    content = path.read_bytes()
    path.unlink() if damage == "missing" else path.write_bytes(
        content[: len(content) // 2 if damage == "truncated" else 0]
    )
    other = trainer(qwen, tokenizer)
    with pytest.raises(CheckpointError, match="cannot be read") as caught:
        other.load(tmp_path)
    assert "\n" not in str(caught.value)
    assert_equal(other.weights(), snapshot(qwen))


def test_load_refuses_a_model_file_without_one_of_its_tensors(qwen, tokenizer, tmp_path):
    subject = trainer(qwen, tokenizer)
    subject.save(tmp_path)
    file = tmp_path / "model" / "model.safetensors"
    tensors = load_file(file)
    tensors.pop("model.norm.weight")
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"do not fit the model.*model\.norm\.weight"):
        subject.load(tmp_path)


def test_load_refuses_the_checkpoint_of_another_model(qwen, llama, tokenizer, tmp_path):
    trainer(llama, tokenizer).save(tmp_path)
    subject = trainer(qwen, tokenizer)
    with pytest.raises(CheckpointError, match="cannot be read"):
        subject.load(tmp_path)
    assert_equal(subject.weights(), snapshot(qwen))


def test_nonfinite_gradient_stops_the_run_before_the_weights(qwen, tokenizer, rollouts, make_draw):
    subject = trainer(qwen, tokenizer)
    subject.step(make_draw(rollouts))
    before = subject.weights()
    with pytest.raises(RunError, match="train step 1: loss nan"):
        subject.step(make_draw(rollouts, np.nan))
    assert_equal(subject.weights(), before)


@pytest.mark.parametrize("column", [{"top_p": 0.9}, {"top_k": 5}, {"temperature": 0}])
def test_truncated_sampling_cannot_be_trained_on(qwen, tokenizer, make_draw, column):
    rollouts = Rollouts.from_completions([[5], [5]], [[6], [7]], [[-1.0], [-1.0]], **column)
    with pytest.raises(DataError, match=r"rollout 0 .*was sampled with "):
        trainer(qwen, tokenizer).step(make_draw(rollouts))


def test_empty_completions_weigh_nothing(qwen, tokenizer, rollouts, make_draw):
    empty = Rollouts.from_completions([[5, 6]] * 2, [[]] * 2, [[]] * 2, advantage=1.0, source="t")
    subjects = [trainer(qwen, tokenizer, tokens_per_microbatch=60) for _ in range(2)]
    results = [
        s.step(make_draw(r)).metrics for s, r in zip(subjects, (rollouts, concatenate([rollouts, empty])), strict=True)
    ]
    assert results[0] == pytest.approx(results[1], rel=1e-6, abs=1e-7)
    assert trainer(qwen, tokenizer).step(make_draw(empty)).metrics["tokens"] == 0


@pytest.mark.parametrize(
    "file", ["model/config.json", "model/model.safetensors", "model/tokenizer_config.json", "optimizer.pt"]
)
def test_save_raises_the_operating_systems_error_when_a_file_cannot_grow(
    qwen, tokenizer, rollouts, make_draw, tmp_path, file
):
    subject = trainer(qwen, tokenizer)
    subject.step(make_draw(rollouts))
    subject.save(tmp_path / "whole")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    # A limit on the size of files fails in the middle of a write as a full disk does.
    resource.setrlimit(resource.RLIMIT_FSIZE, ((tmp_path / "whole" / file).stat().st_size - 1, hard))
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            subject.save(tmp_path / "full")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.errno == errno.EFBIG and caught.value.filename == str(tmp_path / "full")


def test_saving_keeps_other_errors_and_finds_the_number_in_the_text_or_behind():
    with pytest.raises(KeyError), saving(Path("d")):
        raise KeyError("os error")
    with pytest.raises(OSError, match="No space left on device: 'd'") as caught, saving(Path("d")):
        raise SafetensorError("I/O error: No space left on device (os error 28)")
    assert caught.value.errno == errno.ENOSPC
    with pytest.raises(OSError, match="'d'") as caught, saving(Path("d")):
        _fail_as_torch_does()
    assert caught.value.errno == errno.EDQUOT


def _fail_as_torch_does():
    try:
        raise OSError(errno.EDQUOT, "quota")
    except OSError:
        raise RuntimeError("[enforce fail at inline_container.cc:672]")  # noqa: B904 - the context is the point


@pytest.mark.parametrize("state", [[], {"optimizer": {}}, {"optimizer": None, "train_steps": 1}, None])
def test_load_refuses_an_optimizer_file_of_another_shape(qwen, tokenizer, tmp_path, state):
    subject = trainer(qwen, tokenizer)
    subject.save(tmp_path)
    torch.save(state, tmp_path / "optimizer.pt")
    with pytest.raises(CheckpointError, match="cannot be read"):
        subject.load(tmp_path)


def test_weights_when_lent_are_those_of_now_and_when_taken_are_a_copy(qwen, tokenizer, rollouts, make_draw):
    subject = trainer(qwen, tokenizer)
    taken, lent = subject.weights(), subject.lent()
    assert taken.keys() == lent.keys()
    assert all(torch.equal(taken[name], value) for name, value in lent.items())
    assert not any(taken[name].data_ptr() == value.data_ptr() for name, value in lent.items())
    subject.step(make_draw(rollouts))
    changed = {name for name, value in lent.items() if not torch.equal(taken[name], value)}
    assert changed == set(lent)  # no copy was made of them
