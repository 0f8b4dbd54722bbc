"""New weights while completions run: every token knows which weights it came from."""

from __future__ import annotations

import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import psutil
import pytest
import torch

from ostinato.backends.hf.models import snapshot
from ostinato.errors import DataError, RunError
from ostinato.protocols import Sleeper
from ostinato.rollouts import TOKEN_COLUMNS, concatenate

pytest.importorskip("ostinato.backends.vllm", exc_type=ImportError)
from tests.backends.vllm.conftest import behavior, gap, reference_logprobs, request

LONG_PROMPT = "sort " + "8315072694" * 40
LONG = [request(i, "1+2=", 8, max_new_tokens=1500) for i in range(2)]


@pytest.fixture(scope="module")
def first(make_model):
    return make_model(1, endless=True)


@pytest.fixture(scope="module")
def second(make_model):
    return make_model(2, endless=True)


def swapped(engine, weights, requests):
    """The groups of `requests`, with new weights as version 1 in the middle, and the seconds until they were held."""
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(lambda: list(engine.stream(requests)))
        wait_until(lambda: unfinished(engine) > 0)
        next(engine.stream([request(99, "4=", 1, max_new_tokens=30)]))  # a token a step: so far are the others too
        begun = time.perf_counter()
        engine.load(weights, 1)
        took = time.perf_counter() - begun
        assert not running.done() or engine._config.pause == "wait"
        return running.result(), took


def unfinished(engine) -> int:
    return engine._engine.engine.get_num_unfinished_requests()


def wait_until(ready) -> None:
    deadline = time.monotonic() + 60
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def ratio_gaps(first, second, group, sampling):
    """By version: the largest gap to its own weights, and to the other's, over the tokens stamped with it."""
    stamps = group.extras["token_versions"].values[group.loss_mask]
    here = behavior(group)
    gaps = [np.abs(np.concatenate(reference_logprobs(model, group, sampling)) - here) for model in (first, second)]
    return {v: (gaps[v][stamps == v].max(), gaps[1 - v][stamps == v].max()) for v in (0, 1)}, stamps


def test_keep_stamps_every_token_with_the_weights_it_was_drawn_from(pausing, first, second) -> None:
    engine = pausing("keep")
    groups, _ = swapped(engine, snapshot(second), LONG)
    group = concatenate(groups)
    assert (group.policy_version_min == 0).any() and (group.policy_version_max == 1).any()
    mixed = (group.policy_version_min == 0) & (group.policy_version_max == 1)
    assert mixed.any()
    gaps, stamps = ratio_gaps(first, second, group, LONG[0].sampling)
    for version in (0, 1):
        assert (stamps == version).sum() >= 20
        assert gaps[version][0] < 1e-4 and gaps[version][1] > 1
    for i in range(len(group)):
        row = group.extras["token_versions"].row(i)
        prompt = int(group.prompt_length[i])
        assert len(row) == group.lengths[i] and set(row[:prompt]) == {-1}
        assert np.all(np.diff(row[prompt:]) >= 0)
        assert (row[prompt:].min(), row[prompt:].max()) == (group.policy_version_min[i], group.policy_version_max[i])


def test_a_kept_cache_changes_what_follows_and_nothing_that_is_asked_for_later(
    pausing, first, second, record_property
) -> None:
    engine = pausing("keep", clear_cache=False)
    asked = request(9, LONG_PROMPT, 2)
    next(engine.stream([asked]))
    groups, _ = swapped(engine, snapshot(second), LONG)
    gaps, stamps = ratio_gaps(first, second, concatenate(groups), LONG[0].sampling)
    record_property("kept_cache_gap_nats", float(gaps[1][0]))
    assert (stamps == 1).sum() >= 20
    assert gaps[0][0] < 1e-4 < 1e-2 < gaps[1][0] < gaps[1][1]
    # The prompt, several blocks of the cache, was read under the old weights; it is read again.
    assert gap(second, next(engine.stream([asked])), asked.sampling) < 1e-4


def test_wait_lets_running_completions_finish_under_the_weights_they_began_with(pausing, first, second) -> None:
    engine = pausing("wait")
    groups, _ = swapped(engine, snapshot(second), LONG)
    for group, item in zip(groups, LONG, strict=True):
        assert set(group.policy_version_max) == {0} and group.extras == {}
        assert gap(first, group, item.sampling) < 1e-4
    after = next(engine.stream([request(0)]))
    assert set(after.policy_version_min) == {1} and gap(second, after, request(0).sampling) < 1e-4


def test_abort_generates_running_groups_again_under_the_new_weights(pausing, second) -> None:
    engine = pausing("abort")
    groups, took = swapped(engine, snapshot(second), LONG)
    assert took < 30
    for ours, again in zip(groups, engine.stream(LONG), strict=True):
        assert set(ours.policy_version_min) == set(ours.policy_version_max) == {1}
        assert np.array_equal(ours.tokens, again.tokens)
    assert gap(second, concatenate(groups), LONG[0].sampling) < 1e-4


def test_a_long_completion_holds_nobody_back(engine) -> None:
    order, lock = [], threading.Lock()

    def ask(name, item):
        for group in engine.stream([item]):
            with lock:
                order.append((name, int(group.completion_lengths.max())))

    with ThreadPoolExecutor(5) as pool:
        slow = pool.submit(ask, "long", LONG[0])
        wait_until(lambda: unfinished(engine) >= 8)
        quick = [pool.submit(ask, "short", request(i, "4=", max_new_tokens=8)) for i in range(4)]
        for future in [*quick, slow]:
            future.result()
    assert [name for name, _ in order] == ["short"] * 4 + ["long"]
    assert order[-1][1] > 100


def test_threads_that_want_the_same_version_load_it_once(engine, second, monkeypatch) -> None:
    loads, finish = [], engine.client.finish_weight_update
    monkeypatch.setattr(type(engine.client), "finish_weight_update", lambda self: loads.append(1) or finish())
    weights = snapshot(second)
    with ThreadPoolExecutor(4) as pool:
        with engine._lock:
            waiting = [pool.submit(engine.load, weights, 5) for _ in range(4)]
            time.sleep(0.2)
        for future in waiting:
            future.result()
    assert len(loads) == 1
    engine.load(weights, 5)  # nobody waited for it: other weights may come under an old number, after a resume
    assert len(loads) == 2


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda w: w.pop("model.norm.weight"), r"weights and model differ in \['model.norm.weight'\]"),
        (lambda w: w.update(extra=torch.zeros(1)), r"weights and model differ in \['extra'\]"),
        (
            lambda w: w.update({"model.norm.weight": torch.zeros(3)}),
            r"model.norm.weight has shape \(64,\), got \(3,\)",
        ),
    ],
)
def test_weights_of_another_model_are_refused_and_the_engine_goes_on(engine, second, spoil, message) -> None:
    before = next(engine.stream([request(0)]))
    weights = snapshot(second)
    spoil(weights)
    with pytest.raises(DataError, match=message):
        engine.load(weights, 1)
    after = next(engine.stream([request(0)]))
    assert all(np.array_equal(getattr(before, name), getattr(after, name)) for name in TOKEN_COLUMNS)


def test_broken_weights_are_an_error_and_good_ones_mend_it(engine, first) -> None:
    weights = snapshot(first)
    engine.load({**weights, "model.norm.weight": torch.full((64,), torch.nan)}, 1)
    with pytest.raises(RunError, match="log-probs that are not finite: the weights of the generator are broken"):
        list(engine.stream([request(0)]))
    engine.load(weights, 2)
    assert gap(first, next(engine.stream([request(0)])), request(0).sampling) < 1e-4


def test_confirmation_when_the_workers_hold_something_else_is_refused(engine, first) -> None:
    from ostinato.backends.vllm.update import confirm

    thread, weights = engine._engine, snapshot(first)
    thread.call(confirm(thread.engine, 0, weights))
    name = "model.layers.1.input_layernorm.weight"
    other = {**weights, name: weights[name] * (1 + 1e-6)}
    with pytest.raises(RunError, match=f"worker 0 does not hold version 0 of {name}, which was sent"):
        thread.call(confirm(thread.engine, 0, other))
    with pytest.raises(RunError, match="says it holds the weights 0, expected version 3"):
        thread.call(confirm(thread.engine, 3, weights))


def test_loaded_weights_are_a_copy(engine, first) -> None:
    weights = {name: value.numpy().copy() for name, value in snapshot(first).items()}
    engine.load(weights, 1)
    for value in weights.values():
        value.fill(np.nan)
    engine._sender.write(weights)
    assert gap(first, next(engine.stream([request(0)])), request(0).sampling) < 1e-4


def test_an_iterator_that_is_closed_takes_its_requests_back(engine) -> None:
    iterator = engine.stream([request(0, max_new_tokens=1), *LONG])
    next(iterator)
    assert unfinished(engine) > 0
    iterator.close()
    wait_until(lambda: unfinished(engine) == 0)
    assert len(next(engine.stream([request(1)]))) == 4


def test_asleep_it_refuses_and_awake_it_goes_on(pausing, first) -> None:
    engine = pausing("wait")
    assert isinstance(engine, Sleeper)
    before = next(engine.stream([request(0)]))
    for _ in range(2):
        engine.sleep()
    with pytest.raises(RunError, match="the engine sleeps: wake it first"):
        next(engine.stream([request(0)]))
    with pytest.raises(RunError, match="the engine sleeps: wake it before new weights are loaded"):
        engine.load(snapshot(first), 1)
    for _ in range(2):
        engine.wake()
    assert np.array_equal(before.tokens, next(engine.stream([request(0)])).tokens)


def test_sleep_that_drops_the_weights_asks_for_new_ones(pausing, second) -> None:
    engine = pausing("wait", sleep_level=2)
    engine.sleep()
    engine.wake()
    with pytest.raises(RunError, match="the engine woke without weights: load them first"):
        next(engine.stream([request(0)]))
    engine.load(snapshot(second), 0)
    assert gap(second, next(engine.stream([request(0)])), request(0).sampling) < 1e-4


def test_ctrl_c_of_a_terminal_does_not_end_the_engine(engine) -> None:
    children = [one for one in psutil.Process().children() if "EngineCore" in one.name()]
    assert children
    for child in children:
        child.send_signal(signal.SIGINT)
    time.sleep(0.2)
    assert len(next(engine.stream([replace(request(0), group_size=2)]))) == 2


@pytest.mark.parametrize("pause", ["wait", "keep"])
def test_completions_that_take_too_long_are_cut_and_keep_what_they_have(pausing, first, pause) -> None:
    engine = pausing(pause, completion_timeout_s=0.4)
    short, long = engine.stream([request(0, "4=", 4, max_new_tokens=2), LONG[0]])
    lengths = long.completion_lengths
    assert long.truncated.all() and (lengths < 1500).all() and lengths.max() > 0
    assert short.completion_lengths.max() <= 2
    assert gap(first, long, LONG[0].sampling) < 1e-4
    assert (long.policy_version_min == 0).all()
    whole = next(pausing(pause, completion_timeout_s=None).stream([request(0, "4=", 4, max_new_tokens=2)]))
    assert (whole.tokens == short.tokens).all()
    wait_until(lambda: unfinished(engine) == 0)


def test_completions_that_are_cut_before_their_first_token_are_empty(pausing, first) -> None:
    engine = pausing("keep", completion_timeout_s=1e-3)
    (group,) = engine.stream([LONG[0]])
    assert group.truncated.all()
    assert len(group) == 8 and group.completion_lengths.max() < 20
    assert (group.policy_version_min == 0).all() and (group.policy_version_max == 0).all()


def test_time_for_completions_grows_with_those_that_wait_their_turn(pausing) -> None:
    engine = pausing("wait", completion_timeout_s=2.0, max_num_seqs=8)
    with ExitStack() as stack:
        assert [stack.enter_context(engine._asked_for(n)) for n in (1, 7, 1, 16)] == [2.0, 2.0, 4.0, 8.0]
    with engine._asked_for(8) as alone, pausing("wait", completion_timeout_s=None)._asked_for(99) as unbounded:
        assert (alone, unbounded) == (2.0, None)  # those before have ended
