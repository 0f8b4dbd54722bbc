"""The clock of turns: one thing at a time, the same every time, engines that sleep while the trainer works."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import pytest
from tests.loop.test_resume import outcome

from ostinato.backends.toy import ToyBackend, ToyGenerator, ToyTrainer
from ostinato.errors import RunError
from ostinato.loop import Session, TurnClock
from ostinato.loop.clock import Event, InFlight, Until, Work
from ostinato.protocols import Draw, GroupRequest, Sleeper, Trained, Weights
from ostinato.rollouts import Rollouts
from ostinato.telemetry import read_jsonl

TURNS = {"clock": "turns", "generators": 1, "group_size": 12}
REPLAY = {"capacity": 252, "samples_per_insert": 3.0}


def untimed(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Records without what was measured with a clock."""
    timed = ("_s", "_busy_share", "mu_measured")
    return [{name: value for name, value in record.items() if not name.endswith(timed)} for record in records]


class SleepyEngine(ToyGenerator):
    """Loses its weights while it sleeps, and says so when it is used without."""

    def __init__(self, config, log: list[str]) -> None:
        super().__init__(config)
        self.log, self.awake, self.loaded = log, True, False

    def sleep(self) -> None:
        assert self.awake
        self.awake = self.loaded = False
        self.log.append("sleep")

    def wake(self) -> None:
        assert not self.awake
        self.awake = True
        self.log.append("wake")

    def load(self, weights: Weights, version: int) -> None:
        assert self.awake
        self.loaded = True
        super().load(weights, version)

    def stream(self, requests: Sequence[GroupRequest]) -> Iterator[Rollouts]:
        assert self.awake and self.loaded
        self.log.append("generate" if requests[0].group_size > 1 else "evaluate")
        yield from super().stream(requests)


class SleepyBackend(ToyBackend):
    """One engine; its trainer refuses to work while that is awake."""

    def __init__(self, config) -> None:
        super().__init__(config)
        self.log: list[str] = []
        self.engine = SleepyEngine(config.toy, self.log)

    def generator(self) -> ToyGenerator:
        return self.engine

    def trainer(self) -> ToyTrainer:
        trainer = super().trainer()
        step = trainer.step

        def watched(draw: Draw) -> Trained:
            assert not self.engine.awake
            self.log.append("train")
            return step(draw)

        trainer.step = watched  # type: ignore[method-assign]
        return trainer


@pytest.mark.parametrize(
    "sections",
    [
        {"buffer": REPLAY},
        {"buffer": REPLAY | {"sampler": "per", "priority": "kl"}, "loop": {"publish_every": 3}},
        {"buffer": REPLAY | {"min_size": 100}, "loop": {"shards": True, "trainers": 3, "groups_per_request": 2}},
        {"buffer": {"kind": "queue", "capacity": 96}},
        {"buffer": {"kind": "queue", "capacity": 120, "order": "oldest"}, "loop": {"max_staleness": 0, "epochs": 1}},
    ],
)  # fmt: skip
def test_run_in_turns_when_repeated_or_stopped_twice_is_the_same(toy, run_toy, sections) -> None:
    """Bit for bit: metrics (measured times apart), weights, statistics."""
    loop = TURNS | {"train_steps": 40} | sections.get("loop", {})
    config = toy(**sections | {"loop": loop, "evaluation": {"every_units": 4.0, "samples": 4}})

    def told(directory) -> tuple:
        records, table, statistics = outcome(directory)
        return untimed(records), table, statistics

    whole = told(run_toy(config))
    assert told(run_toy(config)) == whole
    directory = run_toy(config, stop_at=11)
    state = json.loads((directory / "checkpoints" / "step-00000011" / "loop.json").read_text())
    assert state["flights"] == {} and state["reissue"] == []  # nothing is in flight
    run_toy(config, directory=directory, resume=True, stop_at=25)
    run_toy(config, directory=directory, resume=True)
    assert told(directory) == whole


def test_staleness_when_in_turns_is_residence(toy, run_toy) -> None:
    """Every group is begun with the newest weights and admitted before the next step: no step lies in between."""
    directory = run_toy(toy(loop=TURNS | {"train_steps": 30}, buffer=REPLAY))
    steps = read_jsonl(directory / "metrics.jsonl")
    assert [r["staleness"] for r in steps] == [r["residence"] for r in steps]
    assert steps[0]["staleness"] == 0 and max(r["staleness"] for r in steps) > 0


@pytest.mark.parametrize("buffer", [REPLAY, {"kind": "queue", "capacity": 96}])
def test_engine_that_sleeps_when_in_turns_does_so_while_training_and_changes_nothing(toy, tmp_path, buffer) -> None:
    config = toy(
        loop=TURNS | {"train_steps": 20}, buffer=buffer, evaluation={"every_units": 4.0, "samples": 1, "greedy": False}
    )
    backend = SleepyBackend(config)
    Session(config, backend, tmp_path / "sleepy").run()
    Session(config, ToyBackend(config), tmp_path / "plain").run()
    ours, plain = (read_jsonl(tmp_path / name / "metrics.jsonl") for name in ("sleepy", "plain"))
    assert untimed(ours) == untimed(plain)
    log, last = backend.log, ours[-1]
    assert log.count("train") == 20 and log.count("evaluate") >= 3
    works = [word for word in log if word in ("generate", "train")]
    assert last["switches"] == sum(a != b for a, b in pairwise(works))
    assert 0 < last["switch_s"] < last["time_s"]
    # Between a training and the generating after it the engine is woken once, never in between two trainings alone.
    for word, after in pairwise(log):
        assert (word, after) not in {("train", "generate"), ("generate", "train"), ("sleep", "wake"), ("wake", "sleep")}


def test_sleeper_when_asked_is_what_has_both_methods() -> None:
    class Half:
        def sleep(self) -> None:
            """Only this."""

    assert isinstance(SleepyEngine.__new__(SleepyEngine), Sleeper)
    assert not isinstance(Half(), Sleeper)


def test_clock_of_turns_when_several_could_work_lets_the_lowest_rank_go_first() -> None:
    """After each work and each event: rank 0 if it can, else the lowest that can. g2 moves only while g1 waits."""
    done: list[str] = []

    def work(name):
        return Work(lambda items: [done.append(name)], name, name, lambda _: 0.0)

    def learner():
        for needed in (1, 3):
            yield Until(lambda n=needed: sum(name != "t" for name in done) >= n, "groups")
            yield work("t")

    def generator(name, most):
        while True:
            yield Until(lambda: done.count(name) < most, "leave")
            yield work(name)
            yield Event()

    turns: list[bool] = []
    clock = TurnClock(5.0, enter=turns.append)
    events = list(clock.drive([learner(), generator("g1", 2), generator("g2", 9)]))
    assert done == ["g1", "t", "g1", "g2", "t"]
    assert turns == [False, True, False, False, True]
    assert len(events) == 2  # that of g2 would come after the learner has ended
    assert clock.now >= 5.0 and clock.in_flight() == {}


def test_clock_of_turns_when_nobody_can_move_says_who_waits() -> None:
    def waits():
        yield Until(lambda: False, "the moon")

    with pytest.raises(RunError, match="nobody can move: process 0 waits for the moon"):
        list(TurnClock().drive([waits()]))

    def resumed():
        yield InFlight(1.0, None)

    with pytest.raises(RunError, match="cannot resume work in flight"):
        list(TurnClock().drive([resumed()]))
