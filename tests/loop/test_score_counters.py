"""What could not be scored is counted: in every step, in evaluations, across a resume."""

import json

import numpy as np
import pytest

from ostinato.backends.toy import ToyBackend
from ostinato.loop import Session
from ostinato.protocols import Scores
from ostinato.telemetry import read_jsonl


class Forgetful:
    """Gives up every rollout whose group number is a multiple of 5 (slow) or of 7 (dead)."""

    def __init__(self, scorer) -> None:
        self.scorer = scorer

    def score(self, rollouts, tasks):
        return self.score_counted(rollouts, tasks).rewards

    def score_counted(self, rollouts, tasks) -> Scores:
        slow, dead = rollouts.group_id % 5 == 0, rollouts.group_id % 7 == 0
        dead &= ~slow
        rewards = np.where(slow | dead, 0.0, self.scorer.score(rollouts, tasks))
        return Scores(rewards, int(slow.sum()), int(dead.sum()))


def session_of(config, directory, *, resume: bool = False) -> Session:
    backend = ToyBackend(config)
    backend.scorer = Forgetful(backend.scorer)
    return Session(config, backend, directory, resume=resume)


def expected(groups: int, size: int) -> tuple[int, int]:
    slow = sum(group % 5 == 0 for group in range(groups))
    return slow * size, sum(group % 7 == 0 and group % 5 > 0 for group in range(groups)) * size


@pytest.mark.parametrize("clock", ["virtual", "wall"])
def test_counts_are_those_of_the_groups_that_entered(toy, tmp_path, clock: str) -> None:
    # One generator: on the wall clock, too, groups enter in order.
    config = toy(loop={"train_steps": 12, "clock": clock, "generators": 1})
    session_of(config, tmp_path / "run").run()
    steps = [line for line in read_jsonl(tmp_path / "run" / "metrics.jsonl") if line["event"] == "step"]
    for line in steps:
        groups = int(line["generated"]) // 12
        assert (line["score_timeouts"], line["score_crashes"]) == expected(groups, 12)
    assert steps[-1]["score_crashes"] > 0
    finished = json.loads((tmp_path / "run" / "finished.json").read_text())
    assert finished["score_timeouts"] == steps[-1]["score_timeouts"]


def test_counts_of_an_interrupted_run_are_those_of_an_uninterrupted_one(toy, tmp_path) -> None:
    config = toy(loop={"train_steps": 20, "generators": 5})
    session_of(config, tmp_path / "whole").run()
    part = session_of(config, tmp_path / "part")
    assert not part.run(lambda: part._loop.ledger.train_step >= 7)
    assert session_of(config, tmp_path / "part", resume=True).run()
    whole, resumed = (
        [(line["score_timeouts"], line["score_crashes"]) for line in read_jsonl(tmp_path / name / "metrics.jsonl")]
        for name in ("whole", "part")
    )
    assert whole == resumed
    assert min(whole[-1]) > 0


def test_an_evaluation_tells_how_many_completions_it_could_not_score(toy, tmp_path) -> None:
    # Test prompts are groups 0 .. 7; sampled and greedy: 0 and 5 are slow, 7 is dead.
    config = toy(loop={"train_steps": 1}, evaluation={"every_units": 5.0, "samples": 4, "greedy": True})
    session_of(config, tmp_path / "run").run()
    first = read_jsonl(tmp_path / "run" / "metrics.jsonl")[0]
    assert first["prompts"] == 8
    assert first["unscored"] == 3 * (4 + 1)
