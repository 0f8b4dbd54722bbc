"""An engine in its own process: the same groups, errors that arrive, a death that is noticed."""

import os
import signal
from functools import partial

import numpy as np
import pytest

from ostinato.backends.process import ProcessGenerator
from ostinato.backends.toy import ToyGenerator
from ostinato.config import ToyConfig
from ostinato.errors import DataError, RunError
from ostinato.protocols import GroupRequest, Sampling, Task
from ostinato.rollout_arrays import to_arrays

TOY = ToyConfig(prompts=4, length=2, vocabulary=3)


class Refuses(ToyGenerator):
    """An engine that cannot."""

    def stream(self, requests):
        """Raise."""
        raise DataError(f"prompt {requests[0].task.prompt!r} is too long")


def request(group: int) -> GroupRequest:
    return GroupRequest(Task(str(group), "", group, "toy"), group, 5, (7, group), Sampling())


def test_groups_when_made_in_another_process_are_the_same() -> None:
    table = np.random.default_rng(0).normal(size=(4, 2, 3))
    here, there = ToyGenerator(TOY), ProcessGenerator(partial(ToyGenerator, TOY))
    for engine in (here, there):
        engine.load({"table": table}, 3)
    pairs = zip(here.stream([request(1), request(2)]), there.stream([request(1), request(2)]), strict=True)
    for one, other in pairs:
        for name, array in to_arrays(one).items():
            assert np.array_equal(array, to_arrays(other)[name]), name
    there.close()


def test_errors_when_raised_there_arrive_here_and_the_engine_goes_on() -> None:
    engine = ProcessGenerator(partial(Refuses, TOY))
    for _ in range(2):
        with pytest.raises(DataError, match="prompt '1' is too long"):
            list(engine.stream([request(1)]))
    engine.close()


def test_death_when_it_happens_is_an_error_with_the_exit_code() -> None:
    engine = ProcessGenerator(partial(ToyGenerator, TOY))
    engine.load({"table": np.zeros((4, 2, 3))}, 1)
    os.kill(engine._process.pid, signal.SIGKILL)
    with pytest.raises(RunError, match="exit code -9"):
        list(engine.stream([request(1)]))
    engine.close()
