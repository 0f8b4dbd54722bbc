import numpy as np
import pytest
import torch
from scipy import stats

from ostinato.backends.hf.decode import decode
from ostinato.backends.hf.draw import draw_tokens, sampling_logprobs
from ostinato.errors import RunError
from ostinato.protocols import Sampling

PROMPTS = [[5, 6, 7], [8, 9, 10, 11, 12, 13], [14]]
REPEATS = [3, 1, 2]
NO_EOS = 10**6


def run(model, sampling, *, prompts=PROMPTS, repeats=REPEATS, eos=1, seed=0):
    uniforms = np.random.default_rng(seed).random((sum(repeats), sampling.max_new_tokens))
    return decode(model, prompts, repeats, uniforms, sampling, eos_token_id=eos, pad_token_id=0)


def reference_logprobs(model, prompt, completion, temperature):
    """One unpadded forward pass over the whole sequence, no cache."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([prompt + completion]), use_cache=False).logits[0]
    logprobs = (logits[len(prompt) - 1 : -1].double() / temperature).log_softmax(-1)
    return logprobs[torch.arange(len(completion)), completion].numpy()


@pytest.mark.parametrize("name", ["qwen", "llama"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("eos", [1, NO_EOS])
def test_logprobs_equal_a_plain_forward_pass(request, name, temperature, eos):
    model = request.getfixturevalue(name)
    out = run(model, Sampling(temperature=temperature, max_new_tokens=20), eos=eos)
    rows = [prompt for prompt, n in zip(PROMPTS, REPEATS, strict=True) for _ in range(n)]
    for prompt, completion, logprobs in zip(rows, out.tokens, out.logprobs, strict=True):
        expected = reference_logprobs(model, prompt, completion, temperature)
        np.testing.assert_allclose(logprobs, expected, atol=1e-4)
        assert np.abs(expected).mean() > 0.1  # the model is not so sure of itself that nothing is tested


@pytest.mark.parametrize("name", ["qwen", "llama"])
@pytest.mark.parametrize("prompts", [PROMPTS, [[5, 6, 7], [9, 8, 4]]])
def test_greedy_equals_generate_of_transformers(request, name, prompts):
    model = request.getfixturevalue(name)
    out = run(model, Sampling(temperature=0, max_new_tokens=12), prompts=prompts, repeats=[1] * len(prompts))
    for prompt, completion in zip(prompts, out.tokens, strict=True):
        expected = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            do_sample=False,
            max_new_tokens=12,
            eos_token_id=1,
            pad_token_id=0,
        )[0, len(prompt) :]
        assert completion == expected.tolist()
    assert all(value == 0 for row in out.logprobs for value in row)


def test_first_token_follows_the_exact_softmax(llama):
    n, temperature = 20_000, 1.3
    out = run(llama, Sampling(temperature=temperature, max_new_tokens=1), prompts=[[5, 6]], repeats=[n])
    counts = np.bincount([row[0] for row in out.tokens], minlength=23)
    with torch.no_grad():
        logits = llama(input_ids=torch.tensor([[5, 6]])).logits[0, -1]
    expected = n * (logits.double() / temperature).softmax(-1).numpy()
    order = np.argsort(-expected)
    cells = np.split(order, range(1, int((expected >= 10).sum())))  # the rare tokens share the last cell
    assert len(cells) >= 8
    observed, predicted = ([values[cell].sum() for cell in cells] for values in (counts, expected))
    assert stats.chisquare(observed, predicted).pvalue > 1e-3


def test_draw_inverts_the_cumulative_distribution():
    logits = torch.tensor([[0.5, 0.0, 0.25, 0.25]]).log().expand(6, 4)
    uniforms = torch.tensor([0.0, 0.499, 0.501, 0.749, 0.751, 1 - 2**-53], dtype=torch.float64)
    tokens, logprobs = draw_tokens(logits, uniforms, Sampling())
    assert tokens.tolist() == [0, 0, 2, 2, 3, 3]
    np.testing.assert_allclose(logprobs.exp(), [0.5, 0.5, 0.25, 0.25, 0.25, 0.25], rtol=1e-6)


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (Sampling(top_k=2), [0, 4 / 7, 3 / 7, 0]),
        (Sampling(top_p=0.7), [0, 4 / 7, 3 / 7, 0]),
        (Sampling(top_p=0.71), [0.2 / 0.9, 4 / 9, 3 / 9, 0]),
        (Sampling(top_k=3, top_p=0.5), [0, 4 / 7, 3 / 7, 0]),
        (Sampling(top_p=0.01), [0, 1, 0, 0]),
        (Sampling(temperature=0.5), [4 / 30, 16 / 30, 9 / 30, 1 / 30]),
        (Sampling(temperature=0.5, top_k=2), [0, 16 / 25, 9 / 25, 0]),
        (Sampling(top_k=9), [0.2, 0.4, 0.3, 0.1]),
    ],
)
def test_sampling_logprobs_cut_and_renormalize(sampling, expected):
    logits = torch.tensor([[0.2, 0.4, 0.3, 0.1]], dtype=torch.float64).log()
    np.testing.assert_allclose(sampling_logprobs(logits, sampling).exp()[0], expected, atol=1e-6)


@pytest.mark.parametrize("name", ["qwen", "llama"])
def test_rows_do_not_depend_on_their_companions(request, name):
    model = request.getfixturevalue(name)
    sampling = Sampling(max_new_tokens=16)
    uniforms = np.random.default_rng(3).random((sum(REPEATS), 16))
    together = decode(model, PROMPTS, REPEATS, uniforms, sampling, eos_token_id=1, pad_token_id=0)
    start = 0
    for prompt, n in zip(PROMPTS, REPEATS, strict=True):
        rows = slice(start, start + n)
        alone = decode(model, [prompt], [n], uniforms[rows], sampling, eos_token_id=1, pad_token_id=0)
        assert alone.tokens == together.tokens[rows]
        for a, b in zip(alone.logprobs, together.logprobs[rows], strict=True):
            np.testing.assert_allclose(a, b, atol=1e-5)
        start += n


def test_completions_end_with_eos_or_are_truncated(llama):
    eos, limit = 7, 9
    out = run(llama, Sampling(temperature=2.0, max_new_tokens=limit), prompts=[[5], [6, 8]], repeats=[40, 40], eos=eos)
    ended = [eos in row for row in out.tokens]
    assert 10 < sum(ended) < 70
    for row, logprobs, end, truncated in zip(out.tokens, out.logprobs, ended, out.truncated, strict=True):
        assert truncated == (not end)
        assert len(row) == len(logprobs) == (row.index(eos) + 1 if end else limit)


def test_completion_is_eos_alone_when_eos_comes_first(llama):
    only = run(llama, Sampling(temperature=0, max_new_tokens=1), prompts=[[5]], repeats=[1]).tokens[0][0]
    out = run(llama, Sampling(temperature=0, max_new_tokens=5), prompts=[[5]], repeats=[2], eos=only)
    assert out.tokens == [[only], [only]]
    assert out.truncated.tolist() == [False, False]


def test_eos_at_the_limit_is_not_truncated(llama):
    tokens = run(llama, Sampling(temperature=0, max_new_tokens=3), prompts=[[5]], repeats=[1], eos=NO_EOS).tokens[0]
    last = tokens.index(tokens[-1])
    out = run(llama, Sampling(temperature=0, max_new_tokens=last + 1), prompts=[[5]], repeats=[1], eos=tokens[-1])
    assert out.tokens == [tokens[: last + 1]]
    assert not out.truncated[0]


def test_broken_weights_are_refused(llama):
    weight = llama.model.norm.weight
    kept = weight.detach().clone()
    with torch.no_grad():
        weight.fill_(torch.nan)
        try:
            with pytest.raises(RunError, match="not finite"):
                run(llama, Sampling(max_new_tokens=2))
        finally:
            weight.copy_(kept)
