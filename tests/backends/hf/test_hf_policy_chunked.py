"""Through the chunked output layer, log-probs and the gradient of every parameter are those through logits."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from ostinato.backends.hf.models import let_hidden_states_be_seen
from ostinato.backends.hf.output_layer import output_layer
from ostinato.backends.hf.policy import completion_logprobs
from ostinato.batching import Batch, padded_batch
from ostinato.rollouts import Rollouts

SIZES = {
    "vocab_size": 61,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "max_position_embeddings": 64,
    "bos_token_id": None,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
MODELS = {
    "qwen3 tied": ("Qwen3", {"tie_word_embeddings": True}),
    "llama untied": ("Llama", {"tie_word_embeddings": False}),
    "llama tied": ("Llama", {"tie_word_embeddings": True}),  # as SmolLM2
    "gemma2 softcap": ("Gemma2", {"final_logit_softcapping": 3.0, "sliding_window": 64}),
    "cohere scale": ("Cohere", {"logit_scale": 0.25}),
    "granite divisor": ("Granite", {"logits_scaling": 4.0}),
    "phi bias": ("Phi", {}),
}
SHARED = [[5, 6, 7, 8]] * 6, [[3], [3, 4], [12, 13, 14], [9, 9], [8], [4, 1]]
APART = [[5, 6], [6, 7, 7], [7]], [[3, 4, 4], [2], [9, 8, 8, 8]]
ALL_AT_ONCE = 1 << 60


def model_of(name: str, **changes: Any) -> Any:
    family, extra = MODELS[name]
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(3)
        architecture = getattr(transformers, f"{family}Config")(**SIZES | extra | changes)
        model = getattr(transformers, f"{family}ForCausalLM")(architecture).eval()
        for parameter in model.parameters():  # predictions that differ clearly from uniform, biases that are not 0
            parameter.mul_(3.0).add_(0.1 * torch.randn(parameter.shape) * (parameter.ndim == 1))
    return model


@pytest.fixture(params=MODELS)
def model(request) -> Any:
    return model_of(request.param)


def batch_of(prompts: list[list[int]], completions: list[list[int]]) -> tuple[Batch, np.ndarray]:
    logprobs = [[-1.0] * len(completion) for completion in completions]
    batch = padded_batch(
        Rollouts.from_completions(prompts, completions, logprobs), np.arange(len(prompts)), pad_token_id=0
    )
    return batch, np.linspace(0.5, 1.5, len(prompts), dtype=np.float32)


def outcome(model: Any, batch: Batch, temperature_B: np.ndarray, chunked_from: int, *, bf16: bool = False) -> Any:
    """(log-probs and entropies of trained tokens, gradients by parameter, where the log-probs are not 0)."""
    logprobs, entropy, first = completion_logprobs(model, batch, temperature_B, bf16=bf16, chunked_from=chunked_from)
    mask = batch.loss_mask[:, first:]
    chosen = logprobs[mask]
    parameters = dict(model.named_parameters())
    loss = chosen @ torch.linspace(-1, 2, len(chosen), dtype=chosen.dtype)
    gradients = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    return (chosen.detach(), entropy[mask]), dict(zip(parameters, gradients, strict=True)), logprobs.detach() != 0


@pytest.mark.parametrize("rollouts", [SHARED, APART], ids=["shared beginnings", "apart"])
def test_chunked_logprobs_and_gradients_of_every_parameter_equal_those_from_logits(model, rollouts) -> None:
    batch, temperature_B = batch_of(*rollouts)
    found, gradients, nonzero = outcome(model, batch, temperature_B, 0)
    expected, references, _ = outcome(model, batch, temperature_B, ALL_AT_ONCE)
    assert torch.equal(nonzero, batch.loss_mask[:, -nonzero.shape[1] :])  # the chunked way, and nothing outside
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert all(gradient is not None for gradient in references.values())
    for name, gradient in gradients.items():
        largest = references[name].abs().max().item()
        torch.testing.assert_close(gradient, references[name], atol=1e-5 * max(largest, 1.0), rtol=1e-5, msg=name)


def test_chunked_logprobs_in_bf16_equal_those_from_logits(model) -> None:
    batch, temperature_B = batch_of(*APART)
    found, gradients, nonzero = outcome(model, batch, temperature_B, 0, bf16=True)
    expected, references, _ = outcome(model, batch, temperature_B, ALL_AT_ONCE, bf16=True)
    assert torch.equal(nonzero, batch.loss_mask[:, -nonzero.shape[1] :])
    torch.testing.assert_close(found, expected, atol=0.05, rtol=0.01)
    for name, gradient in gradients.items():
        assert torch.cosine_similarity(gradient.flatten(), references[name].flatten(), dim=0) > 0.99, name


@pytest.mark.parametrize(("chunked_from", "chunked"), [(61 * 12, True), (61 * 12 + 1, False)])
def test_logits_are_chunked_from_a_number_of_positions_times_vocabulary_on(chunked_from, chunked) -> None:
    batch, temperature_B = batch_of(*APART)
    positions = batch.loss_mask[:, int(batch.loss_mask.any(0).nonzero()[0]) :].numel()
    assert positions == 12
    _, _, nonzero = outcome(model_of("qwen3 tied"), batch, temperature_B, chunked_from)
    assert torch.equal(nonzero, batch.loss_mask[:, -nonzero.shape[1] :]) is chunked


class Wrapped(torch.nn.Linear):
    """An output layer with an adapter: its own weight is not all of it."""

    def __init__(self, inner: torch.nn.Linear) -> None:
        super().__init__(inner.in_features, inner.out_features, bias=False)
        self.weight = inner.weight
        self.adapter = torch.nn.Parameter(torch.zeros(inner.out_features, inner.in_features))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return super().forward(hidden) + hidden @ self.adapter.T


def with_adapter(model: Any) -> Any:
    model.set_output_embeddings(Wrapped(model.get_output_embeddings()))
    return model


def with_hook(model: Any) -> Any:
    model.get_output_embeddings().register_forward_hook(lambda _, __, output: output * 2)
    return model


def doubled(model: Any) -> Any:
    """As an architecture would whose forward pass does what no setting tells."""
    forward = model.forward

    def changed(**inputs: Any) -> Any:
        output = forward(**inputs)
        output.logits = output.logits * 2
        return output

    model.forward = changed
    return model


@pytest.mark.parametrize("change", [with_adapter, with_hook, doubled])
def test_logits_are_not_chunked_when_the_output_layer_is_not_understood(change) -> None:
    model = change(copy.deepcopy(model_of("llama untied")))
    batch, temperature_B = batch_of(*SHARED)
    found, gradients, nonzero = outcome(model, batch, temperature_B, 0)
    expected, references, _ = outcome(model, batch, temperature_B, ALL_AT_ONCE)
    assert nonzero.all()
    assert torch.equal(found[0], expected[0]) and torch.equal(found[1], expected[1])
    for name, gradient in gradients.items():
        assert torch.equal(gradient, references[name]), name


def test_output_layer_when_read_from_a_configuration_has_its_scale_and_softcap() -> None:
    found = {name: output_layer(model_of(name)) for name in MODELS}
    assert {name: (layer.scale, layer.softcap) for name, layer in found.items()} == {
        "qwen3 tied": (1.0, None),
        "llama untied": (1.0, None),
        "llama tied": (1.0, None),
        "gemma2 softcap": (1.0, 3.0),
        "cohere scale": (0.25, None),
        "granite divisor": (0.25, None),
        "phi bias": (1.0, None),
    }


@pytest.mark.parametrize("rollouts", [SHARED, APART], ids=["shared beginnings", "apart"])
def test_chunked_logprobs_never_hold_the_logits_of_all_positions(rollouts, monkeypatch) -> None:
    monkeypatch.setattr("ostinato.logprobs.BLOCK_ELEMENTS", 256)
    vocabulary = 3001
    model = model_of("qwen3 tied", vocab_size=vocabulary)
    batch, temperature_B = batch_of(*rollouts)
    rows, weight = len(rollouts[0]), model.get_output_embeddings().weight
    sizes: dict[int, int] = {}
    for chunked_from in (0, ALL_AT_ONCE):
        largest = 0

        def saving(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal largest
            if vocabulary in tensor.shape and tensor.numel() != weight.numel():
                largest = max(largest, tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(saving, lambda tensor: tensor):
            completion_logprobs(model, batch, temperature_B, bf16=False, chunked_from=chunked_from)
        sizes[chunked_from] = largest
    assert sizes[0] <= rows * vocabulary  # at most the last position, which the model is asked for
    assert sizes[ALL_AT_ONCE] >= 3 * rows * vocabulary


@pytest.fixture
def unpickled(monkeypatch) -> Any:
    """A model as a fresh process has it that unpickled it: transformers knows nothing of its classes there."""
    from transformers.utils import output_capturing

    model = model_of("qwen3 tied")
    known = dict(output_capturing._CAN_RECORD_REGISTRY)
    output_capturing._CAN_RECORD_REGISTRY.clear()
    assert model(input_ids=torch.tensor([[1, 2]]), output_hidden_states=True).hidden_states is None
    yield model
    output_capturing._CAN_RECORD_REGISTRY.update(known)


def test_unpickled_model_when_it_hides_its_states_has_the_numbers_of_logits(unpickled) -> None:
    batch, temperature = batch_of(*APART)
    expected = completion_logprobs(unpickled, batch, temperature, bf16=False, chunked_from=ALL_AT_ONCE)
    found = completion_logprobs(unpickled, batch, temperature, bf16=False, chunked_from=0)
    assert found[2] == expected[2]
    for one, other in zip(found[:2], expected[:2], strict=True):
        torch.testing.assert_close(one, other)


def test_unpickled_model_when_it_is_trained_does_without_logits(unpickled) -> None:
    let_hidden_states_be_seen(unpickled)
    tokens = torch.tensor([[1, 2, 3]])
    hidden = unpickled(input_ids=tokens, output_hidden_states=True).hidden_states
    assert len(hidden) == 3  # the embedding's and of each of two blocks
    torch.testing.assert_close(hidden[-1], unpickled.model(input_ids=tokens).last_hidden_state)
