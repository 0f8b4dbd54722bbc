"""What vLLM draws is what the trainer computes: log-probs, distribution, order, random streams."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ostinato.backends.hf.draw import sampling_logprobs
from ostinato.backends.hf.generator import HFGenerator
from ostinato.backends.hf.models import snapshot
from ostinato.backends.hf.tokenizer import encode_prompt
from ostinato.backends.hf.trainer import HFTrainer
from ostinato.config import LossConfig, OptimizerConfig
from ostinato.errors import ConfigError, DataError
from ostinato.protocols import Draw, Sampling
from ostinato.rollouts import TOKEN_COLUMNS, concatenate

pytest.importorskip("ostinato.backends.vllm", exc_type=ImportError)
from tests.backends.vllm.conftest import behavior, gap, request

REQUESTS = [request(0), request(1, "4="), request(2, "sort 312", 2), request(3, "9" * 12, 5)]
CUTS = [{"temperature": 0.5}, {"temperature": 1.6}, {"top_k": 5}, {"top_p": 0.7}, {"top_k": 9, "top_p": 0.6}]


def test_groups_come_in_order_with_the_columns_of_every_generator(engine, tokenizer) -> None:
    groups = list(engine.stream(REQUESTS))
    assert [len(group) for group in groups] == [4, 4, 2, 5]
    for item, group in zip(REQUESTS, groups, strict=True):
        assert set(group.group_id) == {item.group_id}
        assert set(group.prompt_id) == {item.task.prompt_id}
        assert set(group.policy_version_min) == set(group.policy_version_max) == {0}
        assert set(group.birth_step) == {4}
        assert set(group.source) == {"words"}
        assert set(group.temperature) == {np.float32(0.9)}
        assert group.extras == {}
        for i in range(len(group)):
            assert group.prompt(i).tolist() == encode_prompt(tokenizer, item.task.prompt)
            completion = group.completion(i).tolist()
            assert 1 <= len(completion) <= 12
            assert tokenizer.eos_token_id not in completion[:-1]
            assert group.truncated[i] == (completion[-1] != tokenizer.eos_token_id)
            assert group.truncated[i] <= (len(completion) == 12)


@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_logprobs_are_those_of_the_distribution_drawn_from(engine, first, cut) -> None:
    item = request(5, size=16, **cut)
    group = next(engine.stream([item]))
    assert gap(first, group, item.sampling) < 1e-4
    assert behavior(group).std() > 0.1


def test_first_tokens_are_as_frequent_as_the_model_says(engine, first, tokenizer) -> None:
    item = request(6, size=3000, max_new_tokens=1)
    group = next(engine.stream([item]))
    prompt = torch.tensor([encode_prompt(tokenizer, "12+3=")])
    with torch.no_grad():
        expected = sampling_logprobs(first(input_ids=prompt).logits[0, -1:], item.sampling).exp()[0].double().numpy()
    counts = np.bincount(group.tokens[group.loss_mask], minlength=len(expected))
    # Each count is binomial: five deviations are met by chance once in ten thousand such tests.
    deviation = np.sqrt(3000 * expected * (1 - expected))
    assert np.all(np.abs(counts - 3000 * expected) < 5 * deviation + 1)
    assert (expected > 0.02).sum() >= 5
    assert group.truncated.sum() == 3000 - counts[tokenizer.eos_token_id]


def test_logprobs_agree_before_and_after_twenty_weight_updates(engine, first, tokenizer) -> None:
    trainer = HFTrainer(first, tokenizer, loss=LossConfig(), optimizer=OptimizerConfig(learning_rate=3e-3))
    items = [request(i, f"{i}+3=", 8, temperature=0.8) for i in range(4)]
    gaps, before = [], snapshot(first)
    for version in range(1, 22):
        rollouts = concatenate(list(engine.stream(items)))
        gaps.append(gap(trainer._model, rollouts, items[0].sampling))
        advantage = rollouts.tokens[rollouts.offsets[1:] - 1] % 2 - 0.5
        trainer.step(draw_of(rollouts.replace(advantage=advantage.astype(np.float64))))
        engine.load(trainer.weights(), version)
    assert len(gaps) == 21 and max(gaps) < 1e-4, gaps
    moved = max(float((trainer.weights()[name] - before[name]).abs().max()) for name in before)
    assert moved > 0.01
    assert set(next(engine.stream(items)).policy_version_min) == {21}


def test_greedy_completions_are_those_of_transformers_and_certain(engine, first, tokenizer) -> None:
    items = [request(i, f"{i}*7=", 3, temperature=0.0) for i in range(6)]
    for ours, theirs in zip(engine.stream(items), HFGenerator(first, tokenizer).stream(items), strict=True):
        for name in TOKEN_COLUMNS:
            assert np.array_equal(getattr(ours, name), getattr(theirs, name)), name
        assert np.array_equal(ours.truncated, theirs.truncated)
        assert set(behavior(ours)) == {0.0}


def test_completions_depend_on_the_seed_and_not_on_companions(engine) -> None:
    alone = next(engine.stream([request(1, seed=1)]))
    among = list(engine.stream([request(i, seed=i) for i in range(8)]))
    assert np.array_equal(alone.tokens, among[1].tokens)
    assert len({tuple(group.tokens) for group in among}) == 8
    assert len({tuple(alone.completion(i)) for i in range(4)}) == 4


def test_prompts_of_more_tokens_than_a_step_reads_are_all_served(engine, first) -> None:
    items = [request(i, f"{i} " + "8315072694" * 40, 2, max_new_tokens=3) for i in range(12)]
    groups = list(engine.stream(items))
    assert sum(int(group.prompt_length.sum()) for group in groups) > 2 * 4096
    assert max(gap(first, group, items[0].sampling) for group in groups) < 1e-4


def test_requests_that_cannot_be_served_are_refused_before_anything_is_decoded(engine, monkeypatch) -> None:
    monkeypatch.setattr(engine._engine, "submit", None)
    with pytest.raises(DataError, match=r"2040 tokens and max_new_tokens 12 exceed the model's context of 2048"):
        list(engine.stream([request(0), request(1, "1" * 2040)]))
    with pytest.raises(DataError, match="has no tokens"):
        list(engine.stream([request(0), request(1, "")]))
    with pytest.raises(ConfigError, match=r"temperature 0\.005: vLLM draws at 0\.01 or above; 0 is greedy"):
        list(engine.stream([request(0), request(1, temperature=0.005)]))


def test_stream_of_nothing_yields_nothing(engine) -> None:
    assert list(engine.stream([])) == []


def draw_of(rollouts) -> Draw:
    n = len(rollouts)
    zeros = np.zeros(n, np.int64)
    return Draw(rollouts, np.arange(n), np.ones(n), zeros, zeros, zeros, zeros - 1)


def test_sampling_of_a_recipe_is_what_vllm_is_asked_for() -> None:
    from ostinato.backends.vllm.completions import sampling_params

    asked = sampling_params(request(3, size=6, top_p=0.5, top_k=7), eos_token_id=1)
    assert (asked.n, asked.temperature, asked.top_p, asked.top_k, asked.max_tokens) == (6, 0.9, 0.5, 7, 12)
    assert (asked.stop_token_ids, asked.ignore_eos, asked.logprobs) == ([1], True, 0)
    assert sampling_params(request(3, size=6, temperature=0.0), 1).n == 1
    assert isinstance(request(3).sampling, Sampling)
