import itertools
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ostinato.protocols import Task
from ostinato.tasks.countdown import Countdown, evaluate

COUNTDOWN = Countdown(numbers=3, max_number=25, max_target=999)
TASK = Task("3,7,25>82=", "3*25+7", 0, "countdown")


def reachable(numbers: tuple[int, ...]) -> Iterator[tuple[str, Fraction]]:
    """Every fully bracketed expression that uses all of the numbers in this order, with its value."""
    if len(numbers) == 1:
        yield str(numbers[0]), Fraction(numbers[0])
    for cut in range(1, len(numbers)):
        for (a, x), (b, y) in itertools.product(reachable(numbers[:cut]), reachable(numbers[cut:])):
            yield f"({a}+{b})", x + y
            yield f"({a}-{b})", x - y
            yield f"({a}*{b})", x * y
            if y:
                yield f"({a}/{b})", x / y


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        ("3*25+7", 1),
        (" 7 + 25*3 \n", 1),
        ("(25*3)+7", 1),
        ("25+25+25+7", 0),  # one 25 only
        ("82", 0),  # not a given number
        ("3*25", 0),
        ("3*25+7=82", 0),
        ("3*25+7.0", 0),
        ("-7+25*3", 0),  # no sign
        ("+7", 0),
        ("3**25", 0),
        ("25//3", 0),
        ("3(25)+7", 0),
        ("07+3*25", 0),
        ("7/(3-3)", 0),
        ("25/(7-7)", 0),
        ("", 0),
        ("()", 0),
        ("(3,25)", 0),
        ("__import__('os')", 0),
        ("((((((((3*25))))))))+7", 1),
        ("(" * 250, 0),
        ("-" * 250 + "3", 0),
        ("9" * 250, 0),
        ("1+" * 5000 + "1", 0),
        ("٣*25+7", 0),
    ],
)
def test_score_gives_1_only_when_the_expression_reaches_the_target(text: str, reward: int) -> None:
    assert COUNTDOWN.score(TASK, text) == reward


def test_score_is_exact_when_a_quotient_is_a_fraction() -> None:
    assert evaluate("1/3+1/6", [1, 1, 3, 6]) == Fraction(1, 2)
    assert evaluate("8/(3-8/3)", [3, 3, 8, 8]) == 24
    assert evaluate("1/0", [0, 1]) is None


@given(st.lists(st.integers(1, 9), min_size=1, max_size=3), st.randoms(use_true_random=False))
def test_evaluate_agrees_with_brute_force(numbers: list[int], random) -> None:
    expression, value = random.choice(list(reachable(tuple(numbers))))
    assert evaluate(expression, numbers) == value
    assert evaluate(expression, numbers[1:]) is None  # one number is now missing


@given(st.integers(2, 8), st.integers(1, 100), st.integers(0, 2**32))
def test_make_returns_a_solution_within_the_bounds(numbers: int, max_number: int, seed: int) -> None:
    puzzle = Countdown(numbers, max_number, max_target=120)
    prompt, answer = puzzle.make(np.random.default_rng(seed))
    given_numbers, target = prompt.removesuffix("=").split(">")
    drawn = [int(number) for number in given_numbers.split(",")]
    assert len(drawn) == numbers
    assert all(1 <= number <= max_number for number in drawn)
    assert 1 <= int(target) <= 120
    assert evaluate(answer, drawn) == int(target)
    assert puzzle.score(Task(prompt, answer, 0, "countdown"), answer) == 1


@given(st.integers(0, 2**32))
@example(688)  # 2,1,2 combined so that nothing but 1 or 2 can be left
def test_make_never_gives_the_target_away_when_another_is_in_reach(seed: int) -> None:
    prompt, _ = COUNTDOWN.make(np.random.default_rng(seed))
    numbers, target = prompt.removesuffix("=").split(">")
    assert target not in numbers.split(",")


@given(st.text("0123456789+-*/() ", max_size=40))
def test_evaluate_never_raises_on_any_text(text: str) -> None:
    value = evaluate(text, [1, 2, 3])
    assert value is None or abs(value) <= 9


def test_score_raises_when_the_prompt_is_not_a_countdown() -> None:
    with pytest.raises(ValueError, match="expected a countdown prompt like '3,7,25>82=', got 'hello'"):
        COUNTDOWN.score(Task("hello", "", 0, "x"), "1")
