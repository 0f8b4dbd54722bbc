import os
import threading
from pathlib import Path

import pytest

from ostinato.errors import DataError, MissingExtraError, RunError
from ostinato.tasks import math_judge, scoring

# Gold, completion, whether they agree under Math-Verify's default parsing: agreed facts of version 0.9.
MATH = [
    (r"$\frac{1}{2}$", r"$\boxed{0.5}$", 1.0),
    (r"$\frac{1}{2}$", r"\boxed{\frac{2}{4}}", 1.0),
    (r"$\frac{1}{2}$", "answer: 1/2", 1.0),
    (r"$\frac{1}{2}$", r"\boxed{3} then \boxed{\frac12}", 0.0),
    ("$x=3$", r"\boxed{3}", 1.0),
    ("$3$", r"\boxed{x=3}", 1.0),
    ("$(1,2)$", r"\boxed{(2,1)}", 0.0),
    (r"$\{1,2\}$", r"\boxed{\{2,1\}}", 1.0),
    (r"$10\%$", r"\boxed{0.1}", 1.0),
    ("$5$", r"\boxed{5 \text{ cm}}", 1.0),
    ("$1 < x < 2$", r"\boxed{(1,2)}", 1.0),
    ("$(1,2)$", r"\boxed{1<x<2}", 0.0),
    # an answer without delimiters is read as LaTeX
    (r"\frac{1}{2}", r"\boxed{0.5}", 1.0),
    ("(1,2)", r"\boxed{(1,2)}", 1.0),
    ("42", "so it is 41", 0.0),
    ("42", "", 0.0),
]


@pytest.mark.parametrize(
    ("text", "answer", "reward"),
    [("12", "12", 1), (" 12\n", "12", 1), ("012", "12", 0), ("", "12", 0), ("", "", 1), ("1 2", "12", 0)],
)
def test_exact_ignores_only_outer_white_space(text: str, answer: str, reward: int) -> None:
    assert scoring.exact(text, answer) == reward


@pytest.mark.parametrize(
    ("text", "answer", "reward"),
    [
        ("1,234", "1234", 1),
        ("1,23", "123", 0),
        ("1,2345", "12345", 0),
        ("0.5", "1/2", 1),
        (".5", "1/2", 1),
        ("3 / 6", "0.5", 1),
        ("1/0", "1", 0),
        ("2e-3", "0.002", 1),
        ("42.", "42", 1),
        ("42.0", "42", 1),
        ("\N{MINUS SIGN}7", "-7", 1),
        # integers exactly, others to a relative 1e-6
        ("123456788", "123456789", 0),
        ("0.3333334", "1/3", 1),
        ("0.33334", "1/3", 0),
        ("1000000.5", "1000000", 1),
        ("1000002.5", "1000000", 0),
        ("0.0000001", "0", 0),
        ("5 cm", "5", 0),
        ("nan", "5", 0),
        ("9" * 5000, "5", 0),
        ("", "5", 0),
    ],
)
def test_numeric_compares_values_when_written_differently(text: str, answer: str, reward: int) -> None:
    assert scoring.numeric(text, answer) == reward


@pytest.mark.parametrize(
    ("text", "answer", "reward"),
    [
        ("17 plus 25 is 42.", "42", 1),
        ("42 = 17 + 25", "42", 0),
        ("the total is 1,234 apples", "1234", 1),
        ("17-5", "5", 1),
        ("17 - 5 = -12", "-12", 1),
        ("(-12)", "-12", 1),
        ("3,7,42", "42", 1),
        ("about 0.50", "1/2", 1),
        ("x42", "42", 1),
        ("none", "42", 0),
        ("", "42", 0),
    ],
)
def test_last_number_takes_the_last_when_there_are_several(text: str, answer: str, reward: int) -> None:
    assert scoring.last_number(text, answer) == reward


@pytest.mark.parametrize("scorer", [scoring.numeric, scoring.last_number])
def test_number_scorers_refuse_when_the_answer_is_no_number(scorer) -> None:
    with pytest.raises(DataError, match="expected a number as gold answer, got 'five'"):
        scorer("5", "five")


@pytest.mark.parametrize(("gold", "text", "reward"), MATH)
def test_math_verify_agrees_with_the_table(gold: str, text: str, reward: float) -> None:
    pytest.importorskip("math_verify")
    assert scoring.math_verify(text, gold) == reward


def test_math_verify_is_the_same_in_a_worker_thread() -> None:
    pytest.importorskip("math_verify")
    rewards: dict[int, float] = {}

    def score(i: int) -> None:
        rewards[i] = scoring.math_verify(MATH[i][1], MATH[i][0])

    threads = [threading.Thread(target=score, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [rewards[i] for i in range(6)] == [1, 1, 1, 0, 1, 1]


def test_math_verify_counts_as_wrong_when_a_power_tower_outlasts_the_deadline(monkeypatch) -> None:
    pytest.importorskip("math_verify")
    assert scoring.math_verify("5", "5") == 1
    monkeypatch.setattr(math_judge, "DEADLINE_SECONDS", 0.2)
    assert scoring.math_verify("$9^{9^{9^9}}$", "5") == 0
    monkeypatch.undo()
    assert scoring.math_verify("5", "5") == 1


def test_math_verify_answers_in_step_when_the_helper_died_or_a_call_was_interrupted(monkeypatch) -> None:
    pytest.importorskip("math_verify")
    judge = math_judge._judge_of(os.getpid())
    assert scoring.math_verify("5", "5") == 1
    judge._worker.kill()
    judge._worker.wait()
    assert scoring.math_verify("5", "5") == 1

    def interrupted(worker, question, deadline_s) -> str:
        worker.stdin.write(question + "\n")
        raise KeyboardInterrupt

    monkeypatch.setattr(math_judge, "_exchange", interrupted)
    with pytest.raises(KeyboardInterrupt):
        scoring.math_verify("6", "5")
    monkeypatch.undo()
    assert scoring.math_verify("5", "5") == 1


def test_helper_that_cannot_start_is_an_error(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(math_judge, "_WORKER", tmp_path / "absent.py")
    with pytest.raises(RunError, match=r"the math-verify helper did not start \(exit code 2\)"):
        math_judge._start()


def test_math_verify_refuses_when_the_gold_answer_is_empty() -> None:
    pytest.importorskip("math_verify")
    with pytest.raises(DataError, match="no mathematics in the gold answer ''"):
        scoring.math_verify("5", "")


def test_math_verify_names_the_extra_when_not_installed(monkeypatch) -> None:
    monkeypatch.setattr(math_judge.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"math-verify is not installed; run: pip install 'ostinato\[tasks\]'"):
        math_judge.require()
