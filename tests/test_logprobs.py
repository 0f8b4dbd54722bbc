"""Log-probs from logits by hand-worked numbers; those of an output layer against the ones from logits."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ostinato.logprobs import linear_logprobs, selected_logprobs

ROLLOUTS, POSITIONS, WIDTH, VOCABULARY = 3, 5, 8, 53


def test_selected_logprobs_are_those_of_a_hand_worked_softmax():
    logits = torch.tensor([[[0.0, math.log(2.0), math.log(5.0)], [7.0, 7.0, 7.0]]], dtype=torch.float64)
    logprobs, entropy = selected_logprobs(logits, torch.tensor([[1, 0]]), 1.0)
    assert logprobs.dtype == entropy.dtype == torch.float32
    assert logprobs[0].tolist() == pytest.approx([math.log(2 / 8), math.log(1 / 3)])
    first = -sum(p * math.log(p) for p in (1 / 8, 2 / 8, 5 / 8))
    assert entropy[0].tolist() == pytest.approx([first, math.log(3)])


def test_selected_logprobs_divide_logits_by_one_temperature_or_one_a_rollout():
    logits = torch.tensor([[[0.0, math.log(4.0)]], [[0.0, math.log(4.0)]]])
    tokens = torch.tensor([[1], [1]])
    both, _ = selected_logprobs(logits, tokens, 2.0)
    assert both[:, 0].tolist() == pytest.approx([math.log(2 / 3)] * 2)
    each, _ = selected_logprobs(logits, tokens, torch.tensor([2.0, 0.5]))
    assert each[:, 0].tolist() == pytest.approx([math.log(2 / 3), math.log(16 / 17)])


def test_selected_logprobs_give_the_softmax_gradient_and_none_through_the_entropy():
    logits = torch.tensor([[[0.3, -1.2, 2.0, 0.0]]], requires_grad=True)
    logprobs, entropy = selected_logprobs(logits, torch.tensor([[2]]), 0.5)
    logprobs.sum().backward()
    expected = (torch.tensor([0.0, 0.0, 1.0, 0.0]) - (logits.detach() / 0.5).softmax(-1)) / 0.5
    torch.testing.assert_close(logits.grad, expected)
    assert not entropy.requires_grad


def test_selected_logprobs_of_bf16_logits_are_normalized_in_float32():
    logits = torch.linspace(-3, 3, 1000).to(torch.bfloat16).reshape(1, 1, 1000)
    logprobs, _ = selected_logprobs(logits, torch.tensor([[999]]), 0.7)
    exact = torch.log_softmax(logits.double() / 0.7, -1)[0, 0, 999]
    assert logprobs.item() == pytest.approx(exact.item(), abs=1e-5)


def test_selected_logprobs_when_a_token_cannot_be_chosen_leave_it_out_of_the_entropy() -> None:
    logits = torch.tensor([[[0.0, -math.inf, math.log(3.0)], [-math.inf, 0.0, 0.0]]], requires_grad=True)
    logprobs, entropy = selected_logprobs(logits, torch.tensor([[2, 0]]), 1.0)
    assert logprobs[0].tolist() == pytest.approx([math.log(3 / 4), -math.inf])
    assert entropy[0].tolist() == pytest.approx([math.log(4) - 3 / 4 * math.log(3), math.log(2)])
    logprobs[0, 0].backward()
    assert logits.grad[0, 0].tolist() == pytest.approx([-1 / 4, 0, 1 / 4])


@pytest.mark.parametrize("row", [[0.0, math.nan, 1.0], [0.0, math.inf, 1.0], [-math.inf] * 3])
def test_logprobs_and_entropy_when_logits_are_no_distribution_are_nan(row) -> None:
    for token in range(3):
        tokens = torch.tensor([[token]])
        plain = selected_logprobs(torch.tensor([[row]]), tokens, 1.0)
        cut = linear_logprobs(torch.zeros(1, 1, 2), torch.zeros(3, 2), tokens, 1.0, bias=torch.tensor(row))
        assert all(value.isnan().all() for value in (*plain, *cut))


@pytest.mark.parametrize("block_rows", [1, 2, 3, 4])
@pytest.mark.parametrize("barred", [[0, 1], [2, 3], [0, 3]])
def test_linear_logprobs_when_tokens_cannot_be_chosen_are_those_without_them(barred, block_rows) -> None:
    hidden, weight, _, _ = layer_inputs(vocabulary=4)
    bias = torch.zeros(4).index_fill(0, torch.tensor(barred), -math.inf)
    kept = [token for token in range(4) if token not in barred]
    tokens = torch.ones(hidden.shape[:-1], dtype=torch.int64)
    found = linear_logprobs(hidden, weight, tokens * kept[1], 0.7, bias=bias, block_rows=block_rows)
    expected = plain_logprobs(hidden, weight[kept], tokens, 0.7)
    assert_equal_with_gradients(found, expected, (hidden, weight))
    never, _ = linear_logprobs(hidden, weight, tokens * barred[0], 0.7, bias=bias, block_rows=block_rows)
    assert (never == -math.inf).all()


def layer_inputs(dtype=torch.float32, *, spread=1.0, seed=0, vocabulary=VOCABULARY, positions=POSITIONS):
    """(hidden, weight, bias, tokens), the first three with gradient; logits have a deviation of about `spread`."""
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(ROLLOUTS, positions, WIDTH, generator=generator, dtype=dtype)
    weight = torch.randn(vocabulary, WIDTH, generator=generator, dtype=dtype) * spread / math.sqrt(WIDTH)
    bias = torch.randn(vocabulary, generator=generator, dtype=dtype)
    tokens = torch.randint(vocabulary, (ROLLOUTS, positions), generator=generator)
    return hidden.requires_grad_(), weight.requires_grad_(), bias.requires_grad_(), tokens


def plain_logprobs(hidden, weight, tokens, temperature, *, bias=None, scale=1.0, softcap=None):
    """The definition, holding all logits."""
    logits = torch.nn.functional.linear(hidden, weight, bias) * scale
    if softcap is not None:
        logits = torch.tanh(logits / softcap) * softcap
    return selected_logprobs(logits, tokens, temperature)


def assert_equal_with_gradients(found, expected, inputs, tolerance=1e-5) -> None:
    """Log-probs, entropies and the gradients of a weighted sum of the log-probs."""
    torch.testing.assert_close(found[0], expected[0], atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(found[1], expected[1], atol=tolerance, rtol=tolerance)
    coefficients = torch.linspace(-1, 2, expected[0].numel(), dtype=expected[0].dtype).view(expected[0].shape)
    both = [torch.autograd.grad((logprobs * coefficients).sum(), inputs) for logprobs, _ in (found, expected)]
    for gradient, reference in zip(*both, strict=True):
        torch.testing.assert_close(gradient, reference, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("block_rows", [None, 1, 7, 52, 53, 100])
@pytest.mark.parametrize("temperature", [1.0, 0.7, torch.tensor([0.5, 1.0, 2.0])])
def test_linear_logprobs_when_the_vocabulary_is_cut_equal_those_from_logits(temperature, block_rows) -> None:
    hidden, weight, bias, tokens = layer_inputs()
    found = linear_logprobs(hidden, weight, tokens, temperature, bias=bias, block_rows=block_rows)
    expected = plain_logprobs(hidden, weight, tokens, temperature, bias=bias)
    assert_equal_with_gradients(found, expected, (hidden, weight, bias))
    assert not found[1].requires_grad


@pytest.mark.parametrize(
    ("scale", "softcap"), [(0.25, None), (1.0, 2.0), (3.0, 5.0)], ids=["scaled", "capped", "scaled, then capped"]
)
def test_linear_logprobs_when_logits_are_scaled_or_capped_equal_those_from_logits(scale, softcap) -> None:
    hidden, weight, bias, tokens = layer_inputs(spread=3.0)
    found = linear_logprobs(hidden, weight, tokens, 0.8, bias=bias, scale=scale, softcap=softcap, block_rows=11)
    expected = plain_logprobs(hidden, weight, tokens, 0.8, bias=bias, scale=scale, softcap=softcap)
    assert_equal_with_gradients(found, expected, (hidden, weight, bias))


@given(
    positions=st.integers(1, 4),
    vocabulary=st.integers(1, 20),
    block_rows=st.integers(1, 25),
    spread=st.sampled_from([0.0, 1.0, 30.0]),
    temperature=st.floats(0.2, 5.0),
    seed=st.integers(0, 2**16),
)
def test_linear_logprobs_of_any_sizes_equal_those_from_logits(
    positions, vocabulary, block_rows, spread, temperature, seed
) -> None:
    sizes = {"positions": positions, "vocabulary": vocabulary, "spread": spread, "seed": seed}
    hidden, weight, bias, tokens = layer_inputs(**sizes)
    found = linear_logprobs(hidden, weight, tokens, temperature, bias=bias, block_rows=block_rows)
    expected = plain_logprobs(hidden, weight, tokens, temperature, bias=bias)
    # Float32 logits of a few hundred are themselves only good to 1e-4.
    assert_equal_with_gradients(found, expected, (hidden, weight, bias), 1e-5 if spread < 2 else 1e-3)


@pytest.mark.parametrize("softcap", [None, 1.5])
def test_linear_logprobs_in_float64_have_the_gradient_of_finite_differences(softcap) -> None:
    hidden, weight, bias, tokens = layer_inputs(torch.float64)
    temperature = torch.tensor([0.5, 1.0, 2.0])

    def logprobs(hidden, weight, bias):
        found = linear_logprobs(
            hidden, weight, tokens, temperature, bias=bias, scale=1.3, softcap=softcap, block_rows=9
        )
        assert found[0].dtype == found[1].dtype == torch.float64
        return found[0]

    assert torch.autograd.gradcheck(logprobs, (hidden, weight, bias), eps=1e-6, atol=1e-8, rtol=1e-7)


def test_linear_logprobs_in_float64_equal_a_softmax_in_float64_to_1e_10() -> None:
    hidden, weight, _, tokens = layer_inputs(torch.float64, spread=5.0)
    policy = (hidden @ weight.T / 0.7).log_softmax(-1)
    expected = policy.gather(-1, tokens[..., None]).squeeze(-1), -(policy.exp() * policy).sum(-1).detach()
    found = linear_logprobs(hidden, weight, tokens, 0.7, block_rows=10)
    assert_equal_with_gradients(found, expected, (hidden, weight), 1e-10)


def test_linear_logprobs_when_positions_are_masked_are_zero_there_and_without_gradient() -> None:
    hidden, weight, bias, tokens = layer_inputs()
    mask = torch.arange(ROLLOUTS * POSITIONS).view(ROLLOUTS, POSITIONS) % 3 == 0
    with torch.no_grad():
        hidden[~mask] = math.nan
    temperature = torch.tensor([0.5, 1.0, 2.0])
    logprobs, entropy = linear_logprobs(hidden, weight, tokens, temperature, bias=bias, mask=mask, block_rows=10)
    gradients = torch.autograd.grad(logprobs.sum(), (hidden, weight, bias))
    assert not logprobs[~mask].any() and not entropy[~mask].any() and not gradients[0][~mask].any()
    clean = hidden.detach().nan_to_num().requires_grad_()
    expected = plain_logprobs(clean, weight, tokens, temperature, bias=bias)
    torch.testing.assert_close(logprobs[mask], expected[0][mask])
    torch.testing.assert_close(entropy[mask], expected[1][mask])
    references = torch.autograd.grad(expected[0][mask].sum(), (clean, weight, bias))
    for gradient, reference in zip(gradients, references, strict=True):
        torch.testing.assert_close(gradient, reference, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("mask", [None, torch.zeros(ROLLOUTS, POSITIONS, dtype=torch.bool)], ids=["none", "masked"])
def test_linear_logprobs_of_no_position_are_empty_and_give_zero_gradients(mask) -> None:
    hidden, weight, bias, tokens = layer_inputs(positions=0 if mask is None else POSITIONS)
    logprobs, entropy = linear_logprobs(hidden, weight, tokens, 1.0, bias=bias, mask=mask, block_rows=10)
    assert logprobs.shape == entropy.shape == tokens.shape
    for gradient in torch.autograd.grad(logprobs.sum(), (hidden, weight, bias)):
        assert not gradient.any()


def test_linear_logprobs_of_one_position_are_those_of_a_hand_worked_softmax() -> None:
    weight = torch.tensor([[0.0], [math.log(2.0)], [math.log(5.0)]])
    logprobs, entropy = linear_logprobs(torch.ones(1, 1), weight, torch.tensor([1]), 1.0, block_rows=2)
    assert logprobs.tolist() == pytest.approx([math.log(2 / 8)])
    assert entropy.tolist() == pytest.approx([-sum(p * math.log(p) for p in (1 / 8, 2 / 8, 5 / 8))])


@pytest.mark.parametrize("block_rows", [1, 2, 3])
def test_linear_logprobs_of_extreme_logits_stay_finite(block_rows) -> None:
    weight = torch.tensor([[1e4], [0.0], [-1e4]], requires_grad=True)
    hidden = torch.tensor([[1.0], [1.0], [-1.0]], requires_grad=True)
    logprobs, entropy = linear_logprobs(hidden, weight, torch.tensor([0, 2, 0]), 1.0, block_rows=block_rows)
    assert logprobs.tolist() == [0.0, -2e4, -2e4]
    assert entropy.tolist() == [0.0, 0.0, 0.0]
    grad_hidden, grad_weight = torch.autograd.grad(logprobs.sum(), (hidden, weight))
    assert grad_hidden.flatten().tolist() == [0.0, -2e4, 2e4]
    assert grad_weight.flatten().tolist() == [-2.0, 0.0, 2.0]


def test_linear_logprobs_of_a_token_outside_the_vocabulary_are_nan() -> None:
    tokens = torch.tensor([0, 3, -1])
    logprobs, _ = linear_logprobs(torch.ones(3, 2), torch.ones(3, 2), tokens, 1.0, block_rows=2)
    assert logprobs.isnan().tolist() == [False, True, True]


def test_linear_logprobs_when_the_layer_is_the_embedding_too_add_both_gradients() -> None:
    _, weight, _, tokens = layer_inputs(vocabulary=WIDTH * 4)
    found = linear_logprobs(weight[tokens], weight, tokens.flip(0), 1.0, block_rows=5)
    expected = plain_logprobs(weight[tokens], weight, tokens.flip(0), 1.0)
    assert_equal_with_gradients(found, expected, (weight,))


def test_linear_logprobs_when_a_part_is_frozen_leave_it_out() -> None:
    hidden, weight, bias, tokens = layer_inputs()
    frozen = linear_logprobs(hidden, weight.detach(), tokens, 1.0, bias=bias.detach(), block_rows=10)
    whole = linear_logprobs(hidden, weight, tokens, 1.0, bias=bias, block_rows=10)
    references = torch.autograd.grad(whole[0].sum(), (hidden, weight))
    assert torch.equal(torch.autograd.grad(frozen[0].sum(), hidden)[0], references[0])
    layer_alone, _ = linear_logprobs(hidden.detach(), weight, tokens, 1.0, bias=bias, block_rows=10)
    assert torch.equal(torch.autograd.grad(layer_alone.sum(), weight)[0], references[1])


def test_linear_logprobs_under_autocast_have_bf16_products_and_float32_results() -> None:
    hidden, weight, bias, tokens = layer_inputs(spread=3.0)
    with torch.autocast("cpu", torch.bfloat16):
        found = linear_logprobs(hidden, weight, tokens, 0.8, bias=bias, block_rows=10)
        expected = plain_logprobs(hidden, weight, tokens, 0.8, bias=bias)
    assert found[0].dtype == torch.float32
    torch.testing.assert_close(found[0], expected[0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found[1], expected[1], atol=1e-5, rtol=1e-5)
    both = [torch.autograd.grad(logprobs.sum(), (hidden, weight, bias)) for logprobs, _ in (found, expected)]
    for gradient, reference in zip(*both, strict=True):
        assert gradient.dtype == torch.float32
        torch.testing.assert_close(gradient, reference, atol=0.05, rtol=0.02)  # bf16 has 8 bits


def test_linear_logprobs_when_saved_and_computed_hold_no_array_of_all_logits() -> None:
    positions, vocabulary = 64, 4096
    hidden, weight, _, tokens = layer_inputs(positions=positions, vocabulary=vocabulary)
    largest = Largest()
    with largest, torch.autograd.graph.saved_tensors_hooks(largest.saving, lambda tensor: tensor):
        logprobs, _ = linear_logprobs(hidden, weight, tokens, 1.0, block_rows=100)
        logprobs.sum().backward()
    assert largest.saved == weight.numel() == largest.computed < ROLLOUTS * positions * vocabulary / 20
    with largest:
        plain_logprobs(hidden, weight, tokens, 1.0)
    assert largest.computed == ROLLOUTS * positions * vocabulary  # so it is seen where there is one


class Largest(torch.utils._python_dispatch.TorchDispatchMode):
    """Elements of the largest tensor that an operation returned, and of the largest that was saved for backward."""

    def __init__(self) -> None:
        super().__init__()
        self.computed = self.saved = 0

    def saving(self, tensor):
        self.saved = max(self.saved, tensor.numel())
        return tensor

    def __torch_dispatch__(self, operation, types, arguments=(), options=None):
        results = operation(*arguments, **(options or {}))
        for result in results if isinstance(results, tuple | list) else [results]:
            if isinstance(result, torch.Tensor):
                self.computed = max(self.computed, result.numel())
        return results
