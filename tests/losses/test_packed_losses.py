"""Packed and padded batches through a model: the same losses and gradients, and no way from one rollout to the next."""

import copy
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from cases import CASES, Inputs
from torch import Tensor

from ostinato.backends.hf.models import build_model
from ostinato.backends.hf.tokenizer import character_tokenizer
from ostinato.batching import padded_batch
from ostinato.config import ModelConfig
from ostinato.packing import PackedBatch, packed_batch, unpacked
from ostinato.rollouts import Rollouts

torch.set_num_threads(1)

LENGTHS = ((2, 4), (5, 7), (1, 1), (3, 0), (4, 6), (2, 3), (1, 5), (6, 2))
"""(prompt, completion) of each rollout; the fourth is empty."""


@pytest.fixture(scope="module")
def model() -> Any:
    sizes = ModelConfig(hidden_size=16, layers=2, heads=2, kv_heads=1, intermediate_size=32)
    model = build_model(sizes, character_tokenizer(), seed=1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(6.0)  # predictions that differ clearly from uniform
    return model


@pytest.fixture(scope="module")
def rollouts() -> Rollouts:
    rng = np.random.default_rng(0)
    prompts = [rng.integers(3, 90, before).tolist() for before, _ in LENGTHS]
    completions = [rng.integers(3, 90, after).tolist() for _, after in LENGTHS]
    rollouts = Rollouts.from_completions(prompts, completions, [rng.uniform(-6, -3, after) for _, after in LENGTHS])
    mask = rollouts.loss_mask.copy()
    mask[rollouts.offsets[4] + 6 : rollouts.offsets[4] + 8] = False  # tokens that a tool wrote
    return rollouts.replace(loss_mask=mask)


def selected(model: Any, tokens: Tensor, **more: Tensor) -> Tensor:
    logits = model(input_ids=tokens, use_cache=False, **more).logits[:, :-1]
    return logits.log_softmax(-1).gather(-1, tokens[:, 1:, None]).squeeze(-1)


def packed_logprobs(model: Any, batch: PackedBatch) -> Tensor:
    return unpacked(selected(model, batch.tokens, position_ids=batch.position_ids), batch)


@dataclass(frozen=True)
class Both:
    """The inputs of every loss, from a packed and from a padded batch, their log-probs joined to the model."""

    model: Any
    packed: Inputs
    padded: Inputs


@pytest.fixture(scope="module", params=[torch.float32, torch.float64], ids=str)
def both(request: pytest.FixtureRequest, model: Any, rollouts: Rollouts) -> Both:
    rows = np.arange(len(rollouts))
    model = copy.deepcopy(model).to(request.param)
    packed, padded = packed_batch(rollouts, rows), padded_batch(rollouts, rows, pad_token_id=0)
    packed_BL, padded_BL = packed_logprobs(model, packed), selected(model, padded.tokens)
    rng = torch.Generator().manual_seed(2)

    def near(values: Tensor) -> Tensor:
        return (values + torch.rand(values.shape, generator=rng) - 0.5).detach().to(request.param)

    near_BL = near(padded_BL)
    shared = {
        "proximal": near(padded_BL),
        "ref": near(padded_BL),
        "advantages": torch.randn(len(rows), generator=rng, dtype=request.param),
        "weights": torch.rand(len(rows), generator=rng, dtype=request.param) + 0.5,
        "group": torch.arange(len(rows)) // 4,
    }

    def inputs(logprobs: Tensor, mask: Tensor) -> Inputs:
        return Inputs(logprobs=logprobs, behavior=near_BL, mask=mask, **shared)

    return Both(model, inputs(packed_BL, unpacked(packed.loss_mask, packed)), inputs(padded_BL, padded.loss_mask))


def outcome(name: str, x: Inputs, model: Any) -> tuple[Tensor, tuple[Tensor, ...]]:
    loss = CASES[name].loss(x, None, None).loss
    return loss, torch.autograd.grad(loss, tuple(model.parameters()), retain_graph=True)


@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradient_when_packed_are_those_of_the_padded_batch(both: Both, name: str) -> None:
    tolerance = 1e-6 if both.padded.logprobs.dtype == torch.float32 else 1e-13
    loss, slopes = outcome(name, both.padded, both.model)
    packed_loss, packed_slopes = outcome(name, both.packed, both.model)
    largest = max(slope.abs().max().item() for slope in slopes)
    assert largest > 1e-4
    scale = max(1.0, largest, abs(loss.item()))  # sums over rollouts are far above 1
    torch.testing.assert_close(packed_loss, loss, rtol=0, atol=tolerance * scale)
    for packed_slope, slope in zip(packed_slopes, slopes, strict=True):
        torch.testing.assert_close(packed_slope, slope, rtol=0, atol=tolerance * scale)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_log_probs_when_packed_do_not_see_their_neighbors(model: Any, rollouts: Rollouts, attention: str) -> None:
    model = copy.deepcopy(model).double()
    model.set_attn_implementation(attention)
    batch = packed_batch(rollouts, np.arange(len(rollouts)))
    embedded = model.get_input_embeddings()(batch.tokens).detach().requires_grad_()
    states = model.model(inputs_embeds=embedded, position_ids=batch.position_ids, use_cache=False).last_hidden_state
    for start, stop in pairwise(batch.cu_seqlens.tolist()):
        (slopes,) = torch.autograd.grad(states[:, start:stop].square().sum(), embedded, retain_graph=True)
        assert slopes[:, start:stop].any(-1).all()
        assert not slopes[:, :start].any() and not slopes[:, stop:].any()


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_log_probs_when_packed_are_those_of_each_rollout_alone(model: Any, rollouts: Rollouts, attention: str) -> None:
    model = copy.deepcopy(model).double()
    model.set_attn_implementation(attention)
    together = packed_logprobs(model, packed_batch(rollouts, np.arange(len(rollouts))))
    for row, length in enumerate(rollouts.lengths):
        alone = packed_batch(rollouts, np.array([row]))
        expected = selected(model, alone.tokens)[0]
        # Eager attention takes its softmax in float32 whatever the model's type.
        tolerance = 1e-12 if attention == "sdpa" else 1e-6
        torch.testing.assert_close(together[row, : length - 1], expected, rtol=0, atol=tolerance)
        assert not together[row, length - 1 :].any()
