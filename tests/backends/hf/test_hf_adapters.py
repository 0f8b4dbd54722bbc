"""Low-rank adapters: the base at the start, the only thing trained, and the same model merged or apart."""

import copy

import numpy as np
import peft
import pytest
import torch
import transformers

from ostinato.advantages import score_group
from ostinato.backends.hf.adapters import add_adapters, merged_weights
from ostinato.backends.hf.backend import HFBackend
from ostinato.backends.hf.generator import HFGenerator
from ostinato.backends.hf.models import restore, snapshot
from ostinato.backends.hf.policy import completion_logprobs
from ostinato.backends.hf.trainer import HFTrainer
from ostinato.batching import padded_batch
from ostinato.config import LoraConfig, LossConfig, OptimizerConfig
from ostinato.errors import CheckpointError, ConfigError, DataError
from ostinato.protocols import GroupRequest, Sampling, Task
from ostinato.recipe import config_from_dict
from ostinato.rollouts import concatenate

LORA = LoraConfig(rank=3, alpha=6)


def requests(seed=0):
    return [
        GroupRequest(Task(prompt, "", i, "t"), i, 4, (seed, i), Sampling(max_new_tokens=7))
        for i, prompt in enumerate(["12+30=", "7=", "sort this 54321"])
    ]


@pytest.fixture(scope="module")
def draw(qwen, tokenizer, make_module_draw):
    rewards = [[0, 1, 0, 1], [1, 0, 0, 0], [0, 0, 1, 1]]
    groups = HFGenerator(qwen, tokenizer).stream(requests())
    return make_module_draw(concatenate([score_group(g, r) for g, r in zip(groups, rewards, strict=True)]))


def trainer(model, tokenizer, lora=LORA, loss="grpo", *, bf16=False, seed=0, **settings):
    loss_settings = {name: settings.pop(name) for name in ("kl_coefficient",) if name in settings}
    return HFTrainer(
        model,
        tokenizer,
        loss=LossConfig(name=loss, **loss_settings),
        optimizer=OptimizerConfig(**{"learning_rate": 1e-2, "tokens_per_microbatch": 60, **settings}),
        bf16=bf16,
        max_new_tokens=7,
        lora=lora,
        seed=seed,
    )


def logprobs(model, rollouts, *, bf16=False):
    batch = padded_batch(rollouts, np.arange(len(rollouts)), pad_token_id=0)
    with torch.no_grad():
        found, _, first = completion_logprobs(model, batch, rollouts.temperature, bf16=bf16)
    return found[batch.loss_mask[:, first:]]


def assert_same_to_rounding(ours, theirs):
    """W x + 0 is W x; kernels round by where in memory their operands lie."""
    torch.testing.assert_close(ours, theirs, atol=2e-6, rtol=1e-6)


def plain_model(model, weights):
    plain = copy.deepcopy(model)
    restore(plain, weights)
    return plain


@pytest.fixture(params=["qwen", "llama", "gpt2"])
def model(request, tokenizer):
    if request.param != "gpt2":
        return request.getfixturevalue(request.param)
    config = transformers.GPT2Config(
        vocab_size=len(tokenizer), n_positions=64, n_embd=16, n_layer=2, n_head=2, bos_token_id=1, eos_token_id=1
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return transformers.GPT2LMHeadModel(config).eval()


def test_adapters_when_untouched_change_nothing(model, tokenizer, draw) -> None:
    rollouts = draw.rollouts.replace(tokens=draw.rollouts.tokens % model.config.vocab_size)
    subject = trainer(model, tokenizer)
    assert_same_to_rounding(logprobs(subject._model, rollouts), logprobs(model, rollouts))
    weights = subject.weights()
    assert weights.keys() == snapshot(model).keys()
    assert all(torch.equal(weights[name], value) for name, value in snapshot(model).items())


def test_merged_weights_when_trained_predict_what_the_adapters_do(model, tokenizer, draw) -> None:
    rollouts = draw.rollouts.replace(tokens=draw.rollouts.tokens % model.config.vocab_size)
    subject = copy.deepcopy(model)
    add_adapters(subject, LORA, seed=0)
    noise = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in subject.named_parameters():
            if "lora_B" in name:
                parameter.copy_(0.1 * torch.randn(parameter.shape, generator=noise))
    merged = plain_model(model, dict(merged_weights(subject)))
    assert (logprobs(subject, rollouts) - logprobs(model, rollouts)).abs().max() > 0.01
    torch.testing.assert_close(logprobs(merged, rollouts), logprobs(subject, rollouts), atol=1e-5, rtol=1e-5)
    # peft's own merge is the peer.
    layers = [module for module in subject.modules() if isinstance(module, peft.tuners.lora.LoraLayer)]
    for layer in layers:
        layer.merge()
    theirs = {name.replace(".base_layer", ""): p for name, p in subject.named_parameters() if "lora" not in name}
    for name, value in snapshot(merged).items():
        torch.testing.assert_close(value, theirs[name].detach(), atol=1e-6, rtol=0)


def test_step_when_with_adapters_trains_them_alone_and_helps(qwen, tokenizer, draw) -> None:
    subject = trainer(qwen, tokenizer)
    names = [name for name, p in subject._model.named_parameters() if p.requires_grad]
    assert len(names) == 2 * 7 * 2 and all("lora" in name for name in names)  # A and B, 7 layers, 2 blocks
    before = {name: p.detach().clone() for name, p in subject._model.named_parameters()}
    losses = [subject.step(draw).metrics["loss"] for _ in range(8)]
    assert losses[-1] < losses[0] - 0.01
    for name, parameter in subject._model.named_parameters():
        assert torch.equal(parameter, before[name]) != ("lora" in name), name


def test_reference_when_with_adapters_is_the_base(qwen, tokenizer, draw) -> None:
    subject = trainer(qwen, tokenizer, kl_coefficient=0.1)
    told = [subject.step(draw) for _ in range(3)]
    assert told[0].metrics["kl_reference"] == pytest.approx(0, abs=1e-6)
    reference, policy = subject._policy.reference, subject._model
    assert_same_to_rounding(logprobs(reference, draw.rollouts), logprobs(qwen, draw.rollouts))
    assert (logprobs(policy, draw.rollouts) - logprobs(qwen, draw.rollouts)).abs().max() > 1e-3
    # The KL of the last step is that of the weights before it, against the base: estimator k3, weighed by the ratio.
    earlier = trainer(qwen, tokenizer, kl_coefficient=0.1)
    for _ in range(2):
        earlier.step(draw)
    now, base = logprobs(earlier._model, draw.rollouts), logprobs(qwen, draw.rollouts)
    behavior = torch.from_numpy(draw.rollouts.behavior_logprobs[draw.rollouts.loss_mask])
    k3 = torch.expm1(base - now) - (base - now)
    expected = float(((now - behavior).exp() * k3).mean())
    assert told[2].metrics["kl_reference"] == pytest.approx(expected, rel=1e-3) and expected > 1e-5


@pytest.mark.parametrize("bf16", [False, True])
def test_generator_when_given_adapters_draws_what_the_merged_one_draws(qwen, tokenizer, draw, bf16) -> None:
    adapter = trainer(qwen, tokenizer, LoraConfig(rank=3, alpha=6, sync="adapter"), bf16=bf16)
    merged = trainer(qwen, tokenizer, bf16=bf16)
    for subject in (adapter, merged):
        for _ in range(3):
            subject.step(draw)
    small, large = adapter.weights(), merged.weights()
    assert all(name.startswith("base_model.model.model.layers.") for name in small)
    assert sum(v.numel() for v in small.values()) < sum(v.numel() for v in large.values()) / 2
    one = HFGenerator(qwen, tokenizer, bf16=bf16, lora=LORA)
    other = HFGenerator(qwen, tokenizer, bf16=bf16)
    one.load(small, 3)
    other.load(large, 3)
    ours, theirs = (concatenate(list(generator.stream(requests(1)))) for generator in (one, other))
    if bf16:  # roundings differ: the log-probs of the same completions stay near
        assert np.mean(ours.tokens[: len(theirs.tokens)] == theirs.tokens[: len(ours.tokens)]) > 0.5
        trained = logprobs(adapter._model, ours, bf16=True).numpy()
        assert np.abs(trained - ours.behavior_logprobs[ours.loss_mask]).mean() < 0.05
    else:
        assert np.array_equal(ours.tokens, theirs.tokens)
        assert ours.behavior_logprobs == pytest.approx(theirs.behavior_logprobs, abs=1e-5)
        trained = logprobs(adapter._model, ours).numpy()
        assert ours.behavior_logprobs[ours.loss_mask] == pytest.approx(trained, abs=1e-4)
    with pytest.raises(DataError, match="weights and model differ"):
        other.load(small, 4)


def test_frozen_base_when_in_bf16_is_held_in_bf16_and_adapters_are_not(qwen, tokenizer, draw) -> None:
    subject = trainer(qwen, tokenizer, bf16=True)
    kinds = {("lora" in name, p.dtype) for name, p in subject._model.named_parameters() if p.ndim == 2}
    assert (True, torch.float32) in kinds and (True, torch.bfloat16) not in kinds and (False, torch.bfloat16) in kinds
    before = logprobs(subject._model, draw.rollouts, bf16=True)
    assert_same_to_rounding(before, logprobs(qwen, draw.rollouts, bf16=True))


def test_checkpoint_when_of_adapters_goes_on_bit_for_bit_and_loads_in_peft(qwen, tokenizer, draw, tmp_path) -> None:
    first = trainer(qwen, tokenizer)
    first.step(draw)
    first.save(tmp_path)
    second = trainer(qwen, tokenizer, seed=5)
    second.load(tmp_path)
    assert first.step(draw).metrics == second.step(draw).metrics
    assert all(torch.equal(value, second.weights()[name]) for name, value in first.weights().items())
    first.save(tmp_path)
    size = (tmp_path / "model" / "adapter_model.safetensors").stat().st_size
    assert size < 4 * sum(p.numel() for p in qwen.parameters()) / 2
    theirs = peft.PeftModel.from_pretrained(copy.deepcopy(qwen), tmp_path / "model").eval()
    assert_same_to_rounding(logprobs(theirs, draw.rollouts), logprobs(first._model, draw.rollouts))


def test_checkpoint_when_of_another_base_or_kind_is_refused(qwen, tokenizer, tmp_path) -> None:
    trainer(qwen, tokenizer).save(tmp_path / "adapter")
    trainer(qwen, tokenizer, None).save(tmp_path / "whole")
    moved = copy.deepcopy(qwen)
    with torch.no_grad():
        moved.model.norm.weight.add_(0.5)
    cases = [
        (trainer(moved, tokenizer), "adapter", r"the adapter belongs to another base model: \w+, this one is \w+"),
        (trainer(qwen, tokenizer), "whole", "holds no adapter: it was saved with lora.rank 0"),
        (trainer(qwen, tokenizer, LoraConfig(rank=2)), "adapter", r"has shape \(2, 16\), got \(3, 16\)"),
        (trainer(qwen, tokenizer, None), "adapter", "cannot be read"),
        (trainer(qwen, tokenizer, LoraConfig(rank=3, target_modules="q_proj")), "adapter", "differ in"),
    ]
    for subject, source, message in cases:
        before = subject.weights()
        with pytest.raises(CheckpointError, match=message):
            subject.load(tmp_path / source)
        assert all(torch.equal(value, before[name]) for name, value in subject.weights().items())


def test_random_half_when_seeded_alike_is_alike(qwen, tokenizer) -> None:
    one, same, other = (
        trainer(qwen, tokenizer, LoraConfig(rank=2, sync="adapter"), seed=s).weights() for s in (1, 1, 2)
    )
    assert all(torch.equal(value, same[name]) for name, value in one.items())
    assert any(not torch.equal(value, other[name]) for name, value in one.items())


def test_target_modules_when_unknown_are_refused(qwen, tokenizer) -> None:
    with pytest.raises(ConfigError, match=r"lora\.target_modules 'w1, w2': .*") as caught:
        trainer(qwen, tokenizer, LoraConfig(rank=2, target_modules="w1, w2"))
    assert "\n" not in str(caught.value)
    named = trainer(qwen, tokenizer, LoraConfig(rank=2, target_modules="q_proj,v_proj"))
    assert len(named._policy.trained) == 2 * 2 * 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lora": {"alpha": 8}}, r"lora needs lora\.rank above 0"),
        ({"lora": {"rank": 4, "target_modules": " , "}}, "names no layer"),
        ({"lora": {"rank": 4, "dropout": 0.1}}, r"unknown setting 'lora\.dropout'"),
        ({"lora": {"rank": 4}, "governors": {"gate_z": 1.0}}, r"governors\.gate_z looks at the gradient of the output"),
        (
            {"lora": {"rank": 4}, "model": {"backend": "toy"}, "task": {"name": "toy"}},
            r"lora\.rank: model\.backend = toy",
        ),
        ({"optimizer": {"fsdp": True}}, r"set runtime = ray and loop\.trainers above 1, got local and 3"),
    ],
)
def test_settings_when_they_contradict_are_refused(settings, message) -> None:
    with pytest.raises(ConfigError, match=message):
        config_from_dict({"loop": {"train_steps": 1}, **settings})


@pytest.mark.parametrize("sync", ["merged", "adapter"])
def test_backend_when_with_adapters_makes_parts_that_fit(tmp_path, sync) -> None:
    config = config_from_dict(
        {
            "loop": {"train_steps": 1},
            "lora": {"rank": 2, "sync": sync},
            "warm_start": {"target_accuracy": 0.0},
            "model": {"hidden_size": 16, "layers": 1, "heads": 2, "kv_heads": 1, "intermediate_size": 16},
        }
    )
    backend = HFBackend(config, tmp_path)
    one, other = backend.trainer(), backend.generator()
    other.load(one.weights(), 1)
    group = next(iter(other.stream(requests())))
    assert group.policy_version_min.tolist() == [1] * 4
