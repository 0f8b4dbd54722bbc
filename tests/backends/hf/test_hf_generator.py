import numpy as np
import pytest
import torch

from ostinato.backends.hf.decode import decode
from ostinato.backends.hf.generator import HFGenerator
from ostinato.backends.hf.models import snapshot
from ostinato.backends.hf.tokenizer import encode_prompt
from ostinato.errors import DataError
from ostinato.protocols import GroupRequest, Sampling, Task
from ostinato.rollouts import TOKEN_COLUMNS

SAMPLING = Sampling(temperature=0.9, max_new_tokens=6)


def request(i, prompt, group_size=3, sampling=SAMPLING):
    return GroupRequest(Task(prompt, "", 100 + i, "words"), i, group_size, (7, i), sampling, birth_step=4)


REQUESTS = [request(0, "12+3="), request(1, "4="), request(2, "sort 312", 2), request(3, "9" * 12, 4)]


def test_stream_yields_groups_in_order_with_their_columns(qwen, tokenizer):
    generator = HFGenerator(qwen, tokenizer)
    generator.load(snapshot(qwen), 11)
    groups = list(generator.stream(REQUESTS))
    assert [len(group) for group in groups] == [3, 3, 2, 4]
    for item, group in zip(REQUESTS, groups, strict=True):
        assert set(group.group_id) == {item.group_id}
        assert set(group.prompt_id) == {item.task.prompt_id}
        assert set(group.policy_version_min) == set(group.policy_version_max) == {11}
        assert set(group.birth_step) == {4}
        assert set(group.source) == {"words"}
        assert set(group.temperature) == {np.float32(0.9)}
        for i in range(len(group)):
            assert group.prompt(i).tolist() == encode_prompt(tokenizer, item.task.prompt)
            assert 1 <= len(group.completion(i)) <= 6
            assert group.truncated[i] == (group.completion(i)[-1] != tokenizer.eos_token_id)
        assert group.loss_mask.sum() == group.completion_lengths.sum()


@pytest.mark.parametrize("max_batch_tokens", [1, 60, 100])
def test_groups_are_the_same_however_they_are_batched(qwen, tokenizer, max_batch_tokens):
    whole = list(HFGenerator(qwen, tokenizer).stream(REQUESTS))
    parts = list(HFGenerator(qwen, tokenizer, max_batch_tokens=max_batch_tokens).stream(REQUESTS))
    for a, b in zip(whole, parts, strict=True):
        assert np.array_equal(a.tokens, b.tokens)
        np.testing.assert_allclose(a.behavior_logprobs, b.behavior_logprobs, atol=1e-5)


def test_group_repeats_bit_for_bit_and_depends_on_its_seed(qwen, tokenizer):
    generator = HFGenerator(qwen, tokenizer)
    first, again = next(generator.stream([request(1, "4=")])), next(generator.stream([request(1, "4=")]))
    assert all(np.array_equal(getattr(first, name), getattr(again, name)) for name in TOKEN_COLUMNS)
    other = next(generator.stream([request(2, "4=")]))
    assert not np.array_equal(first.tokens, other.tokens)


def test_requests_of_different_sampling_are_decoded_apart(qwen, tokenizer):
    greedy = Sampling(temperature=0, max_new_tokens=3)
    groups = list(HFGenerator(qwen, tokenizer).stream([request(0, "4="), request(1, "4=", 2, greedy)]))
    assert groups[1].tokens[: groups[1].offsets[1]].tolist() == groups[1].tokens[groups[1].offsets[1] :].tolist()
    assert groups[1].completion_lengths.max() <= 3
    assert set(groups[1].temperature) == {0}
    assert np.array_equal(groups[0].tokens, next(HFGenerator(qwen, tokenizer).stream([request(0, "4=")])).tokens)


def test_bf16_generator_draws_what_autocast_of_float32_weights_draws(qwen, tokenizer):
    generator = HFGenerator(qwen, tokenizer, bf16=True)
    generator.load(snapshot(qwen), 1)
    group = next(generator.stream([request(1, "4=")]))
    uniforms = np.random.default_rng([7, 1]).random((3, SAMPLING.max_new_tokens))
    with torch.autocast("cpu", torch.bfloat16):
        plain = decode(qwen, [encode_prompt(tokenizer, "4=")], [3], uniforms, SAMPLING, eos_token_id=1, pad_token_id=0)
    assert [group.completion(i).tolist() for i in range(3)] == plain.tokens
    assert group.behavior_logprobs[group.loss_mask].tolist() == [value for row in plain.logprobs for value in row]


def test_load_copies_and_leaves_the_given_model_alone(qwen, tokenizer):
    before = snapshot(qwen)
    generator = HFGenerator(qwen, tokenizer)
    weights = {name: torch.zeros_like(value) for name, value in before.items()}
    generator.load(weights, 1)
    weights["model.norm.weight"].fill_(torch.nan)
    group = next(generator.stream([request(0, "4=", sampling=Sampling(max_new_tokens=4))]))
    np.testing.assert_allclose(group.behavior_logprobs[group.loss_mask], -np.log(len(tokenizer)), rtol=1e-6)
    assert all(torch.equal(value, before[name]) for name, value in snapshot(qwen).items())


def test_stream_of_nothing_yields_nothing(qwen, tokenizer):
    assert list(HFGenerator(qwen, tokenizer).stream([])) == []


def test_prompt_beyond_the_context_is_refused(qwen, tokenizer):
    with pytest.raises(DataError, match=r"2045 tokens and max_new_tokens 6 exceed the model's context of 2048"):
        list(HFGenerator(qwen, tokenizer).stream([request(0, "1" * 2045)]))
