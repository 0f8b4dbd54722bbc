"""Verifiers: pure functions of (completion text, gold answer) that return 0.0 or 1.0."""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction

from ostinato.errors import DataError
from ostinato.tasks import math_judge

RELATIVE_TOLERANCE = Fraction(1, 10**6)
MAX_NUMBER_CHARACTERS = 200

_PLAIN = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]*)?|\.[0-9]+"
_DECIMAL = rf"[+-]?(?:{_PLAIN})(?:[eE][+-]?[0-9]{{1,3}})?"
_NUMBER = re.compile(rf"({_DECIMAL})(?:\s*/\s*({_DECIMAL}))?")
# A minus after a digit, a letter or a bracket is a subtraction ("17-5", "x-5"), elsewhere a sign.
_IN_TEXT = re.compile(rf"(?:(?<![\w).])-)?(?:{_PLAIN})")


def exact(text: str, answer: str) -> float:
    """1 when text and answer are equal apart from white space at either end."""
    return float(text.strip() == answer.strip())


def numeric(text: str, answer: str) -> float:
    """1 when the whole text is a number equal to the answer.

    Understands `1,234`, `.5`, `2e-3` and fractions such as `1/2`. Integers are compared exactly, other numbers to a
    relative 1e-6 of the answer. Raises `DataError` when the answer is not a number.
    """
    return _equal(parse_number(text), answer)


def last_number(text: str, answer: str) -> float:
    """1 when the last number in the text equals the answer, compared as in `numeric`; 0 when there is none.

    Raises `DataError` when the answer is not a number.
    """
    found = _IN_TEXT.findall(_ascii_minus(text))
    return _equal(parse_number(found[-1]) if found else None, answer)


def math_verify(text: str, answer: str) -> float:
    r"""1 when Math-Verify finds the mathematics of the text equal to that of the answer.

    Default parsing of the package: LaTeX anywhere (`\boxed` first) and plain expressions; gold first, because the
    comparison is not symmetric. An answer without LaTeX delimiters is read as LaTeX. Comparisons that take longer than
    the helper process allows count as wrong; callable from any thread. Raises `DataError` when the answer cannot be
    parsed, `MissingExtraError` without the package.
    """
    equal = math_judge.judge(answer, text)
    if equal is None:
        raise DataError(f"Math-Verify finds no mathematics in the gold answer {answer!r}")
    return float(equal)


SCORERS: dict[str, Callable[[str, str], float]] = {
    "exact": exact,
    "numeric": numeric,
    "last-number": last_number,
    "math-verify": math_verify,
}


def parse_number(text: str) -> Fraction | None:
    """The exact value of a text that is one number or one fraction, or None."""
    stripped = _ascii_minus(text).strip()
    match = _NUMBER.fullmatch(stripped) if len(stripped) <= MAX_NUMBER_CHARACTERS else None
    if match is None:
        return None
    numerator, denominator = (Fraction((part or "1").replace(",", "")) for part in match.groups())
    return numerator / denominator if denominator else None


def _equal(value: Fraction | None, answer: str) -> float:
    gold = parse_number(answer)
    if gold is None:
        raise DataError(f"expected a number as gold answer, got {answer!r}")
    if value is None:
        return 0.0
    if value.denominator == gold.denominator == 1:
        return float(value == gold)
    return float(abs(value - gold) <= RELATIVE_TOLERANCE * abs(gold))


def _ascii_minus(text: str) -> str:
    return text.replace("\N{MINUS SIGN}", "-")
