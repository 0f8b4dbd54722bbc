"""Numbers and verdicts of log-prob parity, by hand, and generators that are wrong by a known amount."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from ostinato.backends.toy import ToyGenerator, ToyTasks, ToyTrainer
from ostinato.cli.doctor_parity import EXACT, ROUNDED, Parity, Transfer, cause_of
from ostinato.cli.doctor_probe import examine, probed, requests_of
from ostinato.config import BufferConfig, LoopConfig, ModelConfig, RunConfig, SamplingConfig, TaskConfig, ToyConfig
from ostinato.errors import DataError

TOY = ToyConfig(prompts=8, length=3, vocabulary=2, learning_rate=2.0)
LN3 = math.log(3)


def parity(*pairs: tuple[float, float]) -> Parity:
    behavior, recomputed = (np.array(column, np.float32) for column in zip(*pairs, strict=True))
    return Parity.of(behavior, recomputed)


def test_numbers_are_those_worked_by_hand() -> None:
    # x = ln 2 and -ln 2: ratios 2 and 1/2; k3: 1 - ln 2 and -1/2 + ln 2.
    found = parity((-1 - math.log(2), -1.0), (-1.0, -1 - math.log(2)))
    assert (found.tokens, found.not_finite) == (2, 0)
    assert found.max_abs == pytest.approx(math.log(2)) and found.mean_abs == pytest.approx(math.log(2))
    assert (found.ratio_mean, found.ratio_max, found.kl) == pytest.approx((1.25, 2.0, 0.25))


@pytest.mark.parametrize(
    ("tolerance", "gap", "level"),
    [
        (EXACT, 0.9e-4, "OK"),
        (EXACT, 1.2e-4, "WARNING"),
        (EXACT, 0.9e-2, "WARNING"),
        (EXACT, 1.1e-2, "FAULT"),
        (ROUNDED, 0.029 * 4, "OK"),
        (ROUNDED, 0.031 * 4, "WARNING"),
        (ROUNDED, 0.11 * 4, "FAULT"),
    ],
)
def test_float32_is_judged_by_the_worst_of_four_tokens_and_bf16_by_their_mean(tolerance, gap, level) -> None:
    assert parity((-1.0, -1.0 - gap), *[(-1.0, -1.0)] * 3).level(tolerance) == level


@pytest.mark.parametrize("lost", [-math.inf, math.nan])
def test_a_token_without_a_number_is_a_fault_whatever_the_others_say(lost) -> None:
    found = parity((-1.0, lost), (-1.0, -1.0))
    assert (found.not_finite, found.max_abs, found.level(EXACT), found.level(ROUNDED)) == (1, 0.0, "FAULT", "FAULT")
    assert parity((lost, lost)).level(EXACT) == "FAULT"
    assert "overflow" in cause_of(found, found, 1.0, EXACT)


def test_a_distant_token_keeps_the_figures_finite() -> None:
    assert parity((-1.0, 999.0)).ratio_max == pytest.approx(math.exp(40))


@pytest.mark.parametrize(("a", "b"), [([], []), ([-1.0], [-1.0, -2.0])])
def test_log_probs_of_other_tokens_are_refused(a, b) -> None:
    with pytest.raises(DataError, match="expected two log-probs of each token"):
        Parity.of(np.array(a, np.float32), np.array(b, np.float32))


def test_a_policy_that_would_not_move_leaves_the_transfer_open() -> None:
    same = parity((-1.0, -1.0))
    assert Transfer(same, same, (3,), 3).verdict(same, EXACT)[0] == "WARNING"
    assert Transfer(parity((-1.0, -2.0)), same, (3,), 3).verdict(same, EXACT)[0] == "OK"
    assert Transfer(parity((-1.0, -2.0)), same, (2, 3), 3).verdict(same, EXACT)[0] == "FAULT"


@pytest.mark.parametrize(
    ("moved", "after", "level"),
    [
        (900.0, 0.5, "OK"),  # a thousand times the rounding, under a temperature of 0.001
        (900.0, 1.0, "FAULT"),
        (1.0, 0.5, "FAULT"),
        (1.0, 0.002, "WARNING"),
        (900.0, math.inf, "FAULT"),
        (math.inf, math.inf, "FAULT"),
    ],
)
def test_what_has_arrived_is_told_by_how_far_the_policy_moved(moved, after, level) -> None:
    transfer = Transfer(parity((-1.0, -1.0 - moved)), parity((-1.0, -1.0 - after)), (1,), 1)
    assert transfer.verdict(parity((-1.0, -1.0)), EXACT)[0] == level


class Raw(ToyGenerator):
    """Draws at the temperature and reports log-probs of temperature 1."""

    def stream(self, requests):
        for request, group in zip(requests, super().stream(requests), strict=True):
            table = self._table[request.task.prompt_id]
            raw = table - np.log(np.exp(table).sum(-1, keepdims=True))
            said = group.behavior_logprobs.copy()
            said[group.loss_mask] = raw[np.tile(np.arange(3), len(group)), group.tokens[group.loss_mask]]
            yield group.replace(behavior_logprobs=said)


class Loading(ToyGenerator):
    """Does what `change` makes of later weights, and of their version."""

    def __init__(self, change) -> None:
        super().__init__(TOY)
        self._change = change

    def load(self, weights, version) -> None:
        if version == 0:
            super().load(weights, 0)
        else:
            super().load(*self._change(weights["table"], self._table, version))


def found(generator: ToyGenerator, *, temperature: float = 1.0, table=(0.0, LN3)) -> dict:
    """Findings by topic, for a trainer whose every row of logits is `table`."""
    config = RunConfig(
        model=ModelConfig(backend="toy"),
        task=TaskConfig(name="toy"),
        toy=TOY,
        sampling=SamplingConfig(temperature=temperature),
        loop=LoopConfig(batch_size=8, group_size=4, train_steps=1),
        buffer=BufferConfig(capacity=8),
    )
    config = probed(config, None)
    trainer = ToyTrainer(TOY, config.loss)
    trainer.table = trainer.table + np.array(table)

    class Tasks:
        tasks = ToyTasks(TOY, 0)

    return {finding.topic: finding for finding in examine(config, trainer, generator, requests_of(config, Tasks()))}


def test_a_right_pair_is_ok_and_its_weights_arrive() -> None:
    findings = found(ToyGenerator(TOY), temperature=0.5)
    assert [findings[topic].level for topic in ("parity", "weights")] == ["OK", "OK"]
    assert findings["parity"].figures["tokens"] == 4 * 4 * 3
    assert findings["parity"].figures["max_abs"] < 1e-6
    figures = findings["weights"].figures
    assert figures["versions"] == [figures["version"]] and figures["weights_bytes"] == 8 * 3 * 2 * 8
    assert figures["moved"]["max_abs"] > 0.05 > 1e-6 > figures["after"]["max_abs"]


def test_log_probs_without_the_temperature_are_a_fault_with_the_right_numbers() -> None:
    findings = found(Raw(TOY), temperature=0.5)
    # Drawn from (1, 9) / 10, reported as (1, 3) / 4: the rarer token is off by ln 0.4, the other by ln 1.2.
    figures = findings["parity"].figures
    assert findings["parity"].level == "FAULT"
    assert figures["max_abs"] == pytest.approx(-math.log(0.4), abs=1e-5)
    assert figures["ratio_max"] == pytest.approx(1.2, abs=1e-5)
    rare = (figures["mean_abs"] - math.log(1.2)) / (-math.log(0.4) - math.log(1.2))
    assert rare * 48 == pytest.approx(round(rare * 48), abs=1e-3) and 0 < rare < 0.3
    kl = rare * (0.4 - 1 - math.log(0.4)) + (1 - rare) * (1.2 - 1 - math.log(1.2))
    assert figures["kl"] == pytest.approx(kl, abs=1e-5)
    assert "those of temperature 1, not of sampling.temperature 0.5" in findings["parity"].change
    assert findings["weights"].level == "WARNING" and "did not agree before" in findings["weights"].text


def test_other_weights_from_the_start_are_a_fault_with_the_right_numbers() -> None:
    class Other(ToyGenerator):
        def load(self, weights, version) -> None:
            super().load({"table": np.zeros_like(weights["table"])}, version)

    finding = found(Other(TOY))["parity"]
    # Even odds in the generator, (1, 3) / 4 in the trainer.
    assert finding.level == "FAULT" and finding.figures["max_abs"] == pytest.approx(math.log(2), abs=1e-6)
    assert finding.figures["ratio_max"] == pytest.approx(1.5, abs=1e-6)
    assert "do not compute the same policy" in finding.change


@pytest.mark.parametrize(
    ("change", "level", "text"),
    [
        (lambda new, old, version: ({"table": old}, version), "FAULT", "still has the old weights"),
        (lambda new, old, version: ({"table": new}, 0), "FAULT", "rollouts carry the policy versions [0]"),
        (lambda new, old, version: ({"table": old + 3.0 * (new - old)}, version), "FAULT", "the generator"),
        (
            lambda new, old, version: ({"table": old + 0.99 * (new - old)}, version),
            "WARNING",
            "agree less than before",
        ),
    ],
    ids=["stale", "unconfirmed", "overshot", "nearly"],
)
def test_weights_that_do_not_arrive_are_told(change, level, text) -> None:
    findings = found(Loading(change))
    assert findings["parity"].level == "OK"
    assert findings["weights"].level == level and text in findings["weights"].text


def test_a_stale_generator_is_as_far_away_as_the_policy_moved() -> None:
    figures = found(Loading(lambda new, old, version: ({"table": old}, version)))["weights"].figures
    assert figures["after"] == pytest.approx(figures["moved"])


def test_a_trainer_that_cannot_recompute_is_refused() -> None:
    with pytest.raises(DataError, match="has no `logprobs`"):
        list(examine(RunConfig(loop=LoopConfig(train_steps=1)), object(), ToyGenerator(TOY), []))


def test_replaced_settings_leave_what_generates_as_it_is() -> None:
    config = RunConfig(loop=LoopConfig(train_steps=1), sampling=SamplingConfig(temperature=0.3))
    again = probed(config, None)
    assert (again.sampling, again.model, again.vllm, again.lora) == (
        config.sampling,
        config.model,
        config.vllm,
        config.lora,
    )
    assert replace(again, loss=config.loss, governors=config.governors).loop == config.loop
