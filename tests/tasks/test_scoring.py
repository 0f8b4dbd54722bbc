import importlib.util

import pytest

from ostinato.errors import DataError, MissingExtraError
from ostinato.tasks import scoring

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


def test_math_verify_refuses_when_the_gold_answer_is_empty() -> None:
    pytest.importorskip("math_verify")
    with pytest.raises(DataError, match="no mathematics in the gold answer ''"):
        scoring.math_verify("5", "")


@pytest.mark.parametrize("gold", ["5$", "$5", "\\(5", "5 \\\\", "  5\n", "n\n= 5", "\\boxed5"])
def test_math_verify_reads_a_gold_answer_whose_delimiters_are_odd(gold: str) -> None:
    pytest.importorskip("math_verify")
    assert scoring.fault_of_answer("math-verify", gold) == ""
    assert scoring.math_verify("so it is $5$", gold) == 1
    assert scoring.math_verify("so it is $6$", gold) == 0


@pytest.mark.parametrize("gold", ["", " \n", "$", "$$", "\\boxed{}", "\\(\\)", "{ }", "\\\\"])
def test_gold_answer_without_mathematics_is_told_before_the_run(gold: str) -> None:
    assert scoring.fault_of_answer("math-verify", gold) == "mathematics"
    assert scoring.fault_of_answer("exact", gold) == ""
    assert scoring.fault_of_answer("numeric", gold) == "a number"


def test_math_verify_names_the_extra_when_not_installed(monkeypatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"math-verify is not installed; run: pip install 'ostinato\[tasks\]'"):
        scoring.math_verify("5", "5")
