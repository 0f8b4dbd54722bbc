"""Verifiers: pure functions of (completion text, gold answer) that return 0.0 or 1.0."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import re
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import Any

from ostinato.errors import DataError, MissingExtraError
from ostinato.tasks.score_pool import Verifier

RELATIVE_TOLERANCE = Fraction(1, 10**6)
MAX_NUMBER_CHARACTERS = 200

_PLAIN = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]*)?|\.[0-9]+"
_DECIMAL = rf"[+-]?(?:{_PLAIN})(?:[eE][+-]?[0-9]{{1,3}})?"
_NUMBER = re.compile(rf"({_DECIMAL})(?:\s*/\s*({_DECIMAL}))?")
# A minus after a digit, a letter or a bracket is a subtraction ("17-5", "x-5"), elsewhere a sign.
_IN_TEXT = re.compile(rf"(?:(?<![\w).])-)?(?:{_PLAIN})")

_DELIMITER = re.compile(r"\$|\\boxed|\\[()\[\]]")
"""What Math-Verify looks for around LaTeX."""


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
    comparison is not symmetric. An answer without LaTeX delimiters, or with one alone (`5$`), is read as LaTeX. A
    completion such as `9^{9^{9^9}}` keeps the package busy for ever: call it where that is ended (`TextScorer` with
    workers). The package's own limit is off, because it works in a main thread alone and does not tell what it cut
    short. Raises `DataError` when the answer cannot be parsed, `MissingExtraError` without the package.
    """
    require_math_verify()
    import math_verify as package

    gold = _mathematics_of(answer)
    if not gold:
        raise DataError(f"Math-Verify finds no mathematics in the gold answer {answer!r}")
    return float(package.verify(gold, package.parse(text, parsing_timeout=None), timeout_seconds=None))


def fault_of_answer(scoring: str, answer: str) -> str:
    """What a gold answer must be to be compared by `scoring` and is not: "a number", "mathematics"; else empty."""
    if scoring in ("numeric", "last-number") and parse_number(answer) is None:
        return "a number"
    if scoring == "math-verify" and not _DELIMITER.sub("", answer).strip(" \t\r\n{}\\"):
        return "mathematics"
    return ""


def require_math_verify() -> None:
    """Raise `MissingExtraError` unless the package is installed."""
    if importlib.util.find_spec("math_verify") is None:
        raise MissingExtraError("math-verify", "tasks")


@lru_cache(maxsize=1024)
def _mathematics_of(answer: str) -> list[Any]:
    import math_verify as package

    # It warns that its time limit is off.
    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    text = " ".join(answer.split())  # formulas end with their line, for the package
    bare = _DELIMITER.sub(" ", text).rstrip(" \\")  # a backslash would make the closing $ a dollar
    forms = [f"${bare}$"]
    if _DELIMITER.search(text):
        forms.insert(0, text)
    parsed: list[list[Any]] = [package.parse(form, parsing_timeout=None) for form in forms]
    return next(filter(None, parsed), [])


SCORERS: dict[str, Callable[[str, str], float]] = {
    "exact": exact,
    "numeric": numeric,
    "last-number": last_number,
    "math-verify": math_verify,
}

"""Every way a gold answer is compared, by the name that a recipe calls it."""


def open_comparison(scoring: str) -> Verifier:
    """The verifier of a task whose answer is compared by `scoring`, its package imported."""
    compare = SCORERS[scoring]
    if scoring == "math-verify":
        require_math_verify()
        importlib.import_module("math_verify")
    return lambda task, text: compare(text, task.answer)


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
