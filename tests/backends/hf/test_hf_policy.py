"""Log-probs of a batch do not depend on how many of its rows begin alike."""

import numpy as np
import pytest
import torch

from ostinato.backends.hf.policy import completion_logprobs
from ostinato.batching import padded_batch
from ostinato.rollouts import Rollouts

# Column 3 is the last one that holds a prompt token in every row.
PROMPTS = [[5, 6, 7, 8]] * 5 + [[5, 6, 7, 9, 10]] * 3 + [[11, 6, 7, 8]]
COMPLETIONS = [[3], [3, 4], [12, 13, 14], [9, 9], [8], [4, 1], [4, 4, 4], [1], [2, 1]]


def lone_rows(model, rollouts: Rollouts, coefficients: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Log-probs of all trained tokens in order, and the gradient of their weighted sum: row by row, uncut."""
    parts = []
    for row in range(len(rollouts)):
        tokens = torch.tensor(rollouts.tokens[rollouts.offsets[row] : rollouts.offsets[row + 1]]).long()[None]
        policy = model(input_ids=tokens, use_cache=False).logits[0, :-1].log_softmax(-1)
        chosen = policy.gather(-1, tokens[0, 1:, None]).squeeze(-1)
        parts.append(chosen[rollouts.prompt_length[row] - 1 :])
    logprobs = torch.cat(parts)
    return logprobs.detach(), list(torch.autograd.grad(logprobs @ coefficients, list(model.parameters())))


@pytest.mark.parametrize("name", ["qwen", "llama"])
def test_logprobs_and_gradients_when_rows_share_a_beginning_equal_those_of_lone_rows(name, request) -> None:
    model = request.getfixturevalue(name)
    logprobs = [[-1.0] * len(completion) for completion in COMPLETIONS]
    rollouts = Rollouts.from_completions(PROMPTS, COMPLETIONS, logprobs)
    coefficients = torch.linspace(-1, 1, sum(map(len, COMPLETIONS)))
    expected, gradients = lone_rows(model, rollouts, coefficients)
    lengths = []
    handle = model.register_forward_pre_hook(
        lambda _, __, kwargs: lengths.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    batch = padded_batch(rollouts, np.arange(len(rollouts)), pad_token_id=0)
    found, _, first = completion_logprobs(model, batch, rollouts.temperature, bf16=False)
    handle.remove()
    assert lengths == [(3, 4), (9, 3)]  # three beginnings of four tokens, then nine rows of the other three
    chosen = found[batch.loss_mask[:, first:]]
    torch.testing.assert_close(chosen, expected, atol=1e-5, rtol=0)
    for gradient, reference in zip(
        torch.autograd.grad(chosen @ coefficients, list(model.parameters())), gradients, strict=True
    ):
        torch.testing.assert_close(gradient, reference, atol=1e-4, rtol=1e-4)


def test_rows_that_begin_differently_are_read_in_one_pass(qwen) -> None:
    prompts = [[5, 6], [6, 7], [7, 8]]
    rollouts = Rollouts.from_completions(prompts, [[3, 4]] * 3, [[-1.0, -1.0]] * 3)
    shapes = []
    handle = qwen.register_forward_pre_hook(
        lambda _, __, kwargs: shapes.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    completion_logprobs(qwen, padded_batch(rollouts, np.arange(3), pad_token_id=0), rollouts.temperature, bf16=False)
    handle.remove()
    assert shapes == [(3, 3)]
