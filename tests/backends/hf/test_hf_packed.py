"""Packed rollouts have the log-probs and gradients that padded ones have, and never see each other."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers
from torch.utils._python_dispatch import TorchDispatchMode

from ostinato.backends.hf.microbatches import check_keeps_apart
from ostinato.backends.hf.policy import Passes, packed_logprobs, padded_logprobs
from ostinato.backends.hf.trainer import HFTrainer
from ostinato.batching import padded_batch
from ostinato.config import LossConfig, OptimizerConfig
from ostinato.errors import ConfigError
from ostinato.packing import packed_batch, unpacked
from ostinato.rollouts import Rollouts

PASSES = [Passes(False), Passes(False, chunked_from=0), Passes(False, 0, share_prefixes=False, check_layer=False)]
SIZES = {
    "vocab_size": 23,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 8192,
    "bos_token_id": None,
    "eos_token_id": 1,
    "pad_token_id": 0,
}


def built(family: str, **settings):
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(4)
        config = getattr(transformers, f"{family}Config")(**(SIZES | settings))
        model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(8.0)
    return model


@pytest.fixture(scope="module")
def rollouts():
    rng = np.random.default_rng(0)
    prompts = [rng.integers(2, 23, size).tolist() for size in (3, 3, 5, 1, 4)]
    completions = [rng.integers(2, 23, size).tolist() for size in (4, 1, 6, 3, 0)]
    logprobs = [(-rng.random(len(completion))).tolist() for completion in completions]
    return Rollouts.from_completions(
        prompts, completions, logprobs, advantage=rng.normal(size=5), temperature=[1.0, 0.7, 1.0, 1.3, 1.0], source="t"
    )


@pytest.fixture(params=["Qwen3", "Llama", "Qwen3 eager", "Phi"], scope="module")
def model(request):
    family, *attention = request.param.split()
    return built(family, attn_implementation=attention[0] if attention else "sdpa")


@pytest.mark.parametrize("passes", PASSES, ids=["logits", "chunked", "unchecked"])
def test_packed_log_probs_and_gradients_are_those_of_padded(model, rollouts, passes) -> None:
    rows = np.array([2, 0, 3, 4, 1])
    temperature = rollouts.temperature[rows]
    grads, found = [], []
    for packed in (True, False):
        subject = copy.deepcopy(model)
        if packed:
            batch = packed_batch(rollouts, rows)
            logprobs, entropy = packed_logprobs(subject, batch, temperature, passes)
            mask = unpacked(batch.loss_mask, batch)
        else:
            batch = padded_batch(rollouts, rows, pad_token_id=0)
            logprobs, entropy, first = padded_logprobs(subject, batch, temperature, passes)
            mask = batch.loss_mask[:, first:]
        scale = torch.arange(1.0, 1 + mask.sum())  # every token with a weight of its own
        (logprobs[mask] * scale).sum().backward()
        grads.append(torch.cat([p.grad.flatten() for p in subject.parameters()]))
        found.append((logprobs[mask].detach(), entropy[mask]))
    torch.testing.assert_close(found[0], found[1], atol=1e-5, rtol=1e-5)
    assert (grads[0] - grads[1]).norm() < 1e-5 * grads[1].norm()
    assert found[0][0].std() > 0.3


def test_log_probs_when_a_neighbor_changes_are_the_same_bits(model, rollouts) -> None:
    rows = np.array([0, 2, 3])
    changed = rollouts.replace(tokens=rollouts.tokens.copy())
    changed.tokens[changed.offsets[0] : changed.offsets[1]] = 7
    before, after = (
        packed_logprobs(model, packed_batch(one, rows), rollouts.temperature[rows], PASSES[0])[0].detach()
        for one in (rollouts, changed)
    )
    assert not torch.equal(before[0], after[0])
    assert torch.equal(before[1:], after[1:])


def test_model_when_it_carries_a_state_along_the_row_is_refused(model) -> None:
    leaky = built("Lfm2", layer_types=["conv", "full_attention"])
    with pytest.raises(
        ConfigError, match=r"optimizer\.packing: Lfm2ForCausalLM lets a packed rollout see its neighbor"
    ):
        check_keeps_apart(leaky, PASSES[0])
    check_keeps_apart(model, PASSES[0])
    check_keeps_apart(model, Passes(bf16=True))


@pytest.mark.parametrize("tokens_per_microbatch", [8, 20, 10**6])
@pytest.mark.parametrize("loss", ["grpo", "grpo_paper", "m2po"])
def test_step_when_packed_is_the_step_when_padded(
    model, tokenizer, rollouts, make_module_draw, loss, tokens_per_microbatch
) -> None:
    draw = make_module_draw(rollouts, np.linspace(0.5, 1.5, 5))
    optimizer = OptimizerConfig(learning_rate=0.05, eps=1.0, tokens_per_microbatch=tokens_per_microbatch)
    settings = LossConfig(name=loss, kl_coefficient=0.1 if loss == "grpo_paper" else 0.0)
    told = []
    for packing in (False, True):
        subject = HFTrainer(
            model, tokenizer, loss=settings, optimizer=replace(optimizer, packing=packing), max_new_tokens=7
        )
        told.append([subject.step(draw) for _ in range(2)])
    for padded, packed in zip(*told, strict=True):
        assert packed.metrics == pytest.approx(padded.metrics, rel=1e-4, abs=1e-5)
        for name, column in padded.figures.items():
            assert packed.figures[name] == pytest.approx(column, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("packing", [False, True])
def test_step_when_blocks_are_computed_again_is_the_same_and_keeps_less(qwen, tokenizer, make_draw, packing) -> None:
    rng = np.random.default_rng(1)
    rollouts = Rollouts.from_completions(
        [[3, 4]] * 4, rng.integers(3, 90, (4, 60)).tolist(), [[-1.0] * 60] * 4, advantage=[1.0, -1.0, 0.5, 0.0]
    )
    kept, told = [], []
    for again in (False, True):
        settings = OptimizerConfig(activation_checkpointing=again, packing=packing, tokens_per_microbatch=10**6)
        subject = HFTrainer(qwen, tokenizer, loss=LossConfig(), optimizer=settings)
        sizes = {}

        def note(tensor, sizes=sizes):
            sizes[tensor.data_ptr()] = tensor.nbytes
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            told.append(subject.step(make_draw(rollouts)))
        kept.append(sum(sizes.values()))
    assert told[0].metrics == pytest.approx(told[1].metrics, rel=1e-6)
    gradients = told[0].metrics["grad_norm"]
    assert gradients > 0.01 and kept[1] < 0.8 * kept[0]


class Largest(TorchDispatchMode):
    """Elements of the largest tensor that any operation makes."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for one in result if isinstance(result, tuple | list) else [result]:
            if isinstance(one, torch.Tensor):
                self.elements = max(self.elements, one.untyped_storage().nbytes() // one.element_size())
        return result


@pytest.mark.parametrize("packing", [False, True])
def test_completions_when_long_never_have_all_their_logits(tokenizer, make_draw, packing) -> None:
    vocabulary, length = 16384, 1536
    model = built("Llama", vocab_size=vocabulary, hidden_size=8, num_hidden_layers=1, num_attention_heads=2)
    rng = np.random.default_rng(2)
    completions = rng.integers(2, vocabulary, (2, length)).tolist()
    rollouts = Rollouts.from_completions([[5]] * 2, completions, [[-9.0] * length] * 2, advantage=[1.0, -1.0])
    optimizer = OptimizerConfig(packing=packing)
    subject = HFTrainer(model, tokenizer, loss=LossConfig(name="asymre"), optimizer=optimizer)
    with Largest() as largest:
        trained = subject.step(make_draw(rollouts))
    assert trained.metrics["tokens"] == 2 * length
    assert largest.elements <= 2**24 == 2 * length * vocabulary / 3
