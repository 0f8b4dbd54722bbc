"""Grade-school word problems written for this project: `problems.jsonl`, each answer computed from its numbers.

    python recipes/smollm2/make_problems.py

writes the file anew. A problem is a text with numbers to fill in, a formula, and three fillings; of each the last is a
test problem. Answers are integers, fractions and decimals, as Math-Verify compares them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

Filling = tuple[int, ...]
PROBLEMS: list[tuple[str, Callable[..., int | Fraction], list[Filling]]] = [
    (
        "A baker puts {0} rolls on each of {1} trays and sells {2} of them before noon. How many rolls are left?",
        lambda a, b, c: a * b - c,
        [(12, 6, 35), (15, 4, 28), (18, 5, 47)],
    ),
    (
        "Mira has {0} beads. She strings bracelets of {1} beads each. How many beads are left over?",
        lambda a, b: a % b,
        [(50, 8), (77, 9), (100, 12)],
    ),
    (
        "A bus with {0} seats makes {1} full trips and one last trip with {2} passengers. How many rode in all?",
        lambda a, b, c: a * b + c,
        [(42, 3, 17), (30, 5, 22), (56, 4, 31)],
    ),
    (
        "Three friends share {0} euros in the ratio {1} to {2} to {3}. How many euros is the largest share?",
        lambda a, b, c, d: Fraction(a * max(b, c, d), b + c + d),
        [(60, 1, 2, 3), (120, 3, 4, 5), (90, 2, 2, 5)],
    ),
    (
        "What fraction of an hour are {0} minutes? Give a fraction in lowest terms.",
        lambda a: Fraction(a, 60),
        [(15,), (24,), (35,)],
    ),
    (
        "A shirt costs {0} euros and is reduced by {1} percent. What does it cost now, in euros?",
        lambda a, b: Fraction(a * (100 - b), 100),
        [(40, 25), (60, 15), (45, 20)],
    ),
    (
        "The sides of a rectangle are {0} m and {1} m. How long is a fence around it, in metres?",
        lambda a, b: 2 * (a + b),
        [(7, 12), (15, 9), (23, 18)],
    ),
    (
        "A tank holds {0} litres and is one quarter full. How many litres are missing?",
        lambda a: Fraction(3 * a, 4),
        [(80,), (200,), (60,)],
    ),
    (
        "Tom is {0} years old and his sister is {1} years younger. How old will his sister be in {2} years?",
        lambda a, b, c: a - b + c,
        [(14, 5, 3), (11, 4, 10), (20, 7, 6)],
    ),
    (
        "A train leaves at {0} o'clock and arrives {1} minutes later. After how many minutes is it halfway?",
        lambda a, b: Fraction(b, 2),
        [(9, 84), (7, 45), (8, 130)],
    ),
    (
        "In a class of {0} children {1} play football, {2} play chess and {3} play both. How many play neither?",
        lambda a, b, c, d: a - (b + c - d),
        [(28, 12, 9, 4), (30, 17, 11, 6), (25, 10, 8, 3)],
    ),
    (
        "The mean of {0}, {1} and a third number is {2}. What is the third number?",
        lambda a, b, c: 3 * c - a - b,
        [(8, 10, 11), (4, 15, 9), (20, 31, 22)],
    ),
    (
        "A snail climbs {0} cm each day and slips back {1} cm each night. How high is it at the end of day {2}, in cm?",
        lambda a, b, c: c * a - (c - 1) * b,
        [(30, 20, 4), (25, 10, 5), (40, 15, 6)],
    ),
    (
        "Pencils cost {0} cents each and erasers {1} cents each. What do {2} pencils and {3} erasers cost, in cents?",
        lambda a, b, c, d: a * c + b * d,
        [(35, 60, 4, 2), (25, 45, 6, 3), (40, 75, 5, 4)],
    ),
    (
        "In the morning it is {0} degrees, and it gets {1} degrees colder until night. How many degrees is it then?",
        lambda a, b: a - b,
        [(4, 9), (2, 7), (5, 16)],
    ),
    (
        "A recipe for {0} people needs {1} g of flour. How many grams does it need for {2} people?",
        lambda a, b, c: Fraction(b * c, a),
        [(4, 500, 6), (3, 240, 7), (8, 600, 5)],
    ),
    (
        "A farmer has hens and cows, {0} animals with {1} legs in all. How many cows does he have?",
        lambda a, b: Fraction(b - 2 * a, 2),
        [(20, 52), (35, 94), (18, 60)],
    ),
    (
        "A book has {0} pages. Ana reads {1} on the first day and twice as many on the second. How many are left?",
        lambda a, b: a - 3 * b,
        [(180, 25), (240, 40), (150, 32)],
    ),
    (
        "A car uses {0} litres of fuel for 100 km. How many litres does it use for {1} km?",
        lambda a, b: Fraction(a * b, 100),
        [(6, 250), (8, 75), (5, 330)],
    ),
    (
        "Two numbers add up to {0} and differ by {1}. What is the larger one?",
        lambda a, b: Fraction(a + b, 2),
        [(40, 12), (75, 9), (101, 27)],
    ),
    (
        "A pizza is cut into {0} equal slices. Leo eats {1} and Ida eats {2}. What fraction of the pizza is left?",
        lambda a, b, c: Fraction(a - b - c, a),
        [(8, 2, 3), (12, 4, 5), (10, 3, 2)],
    ),
    (
        "Kai saves {0} euros a week and already has {1} euros. After how many weeks does he have {2} euros?",
        lambda a, b, c: Fraction(c - b, a),
        [(5, 20, 65), (8, 12, 100), (15, 30, 210)],
    ),
    (
        "A square has an area of {0} square metres. What is its perimeter, in metres?",
        lambda a: 4 * round(a**0.5),
        [(49,), (81,), (144,)],
    ),
    (
        "{0} workers paint a wall in {1} hours. How many hours do {2} workers need at the same pace?",
        lambda a, b, c: Fraction(a * b, c),
        [(3, 8, 4), (6, 5, 10), (4, 9, 3)],
    ),
    (
        "A password has {0} letters, each one of {1} different letters. How many passwords are there?",
        lambda a, b: b**a,
        [(2, 5), (3, 4), (4, 3)],
    ),
    (
        "Lena cycles {0} km in {1} minutes. What is her speed in km per hour?",
        lambda a, b: Fraction(60 * a, b),
        [(5, 20), (12, 40), (9, 36)],
    ),
    (
        "{0} boxes hold {1} apples each. One apple in {2} is bad. How many good apples are there?",
        lambda a, b, c: Fraction(a * b * (c - 1), c),
        [(6, 20, 10), (4, 30, 8), (9, 16, 12)],
    ),
    (
        "Half of a number plus {0} is {1}. What is the number?",
        lambda a, b: 2 * (b - a),
        [(7, 19), (12, 30), (9, 26)],
    ),
    (
        "A shop sold {0} umbrellas on Monday, {1} more than that on Tuesday, and on Wednesday half of Tuesday's. "
        "How many did it sell on the three days?",
        lambda a, b: Fraction(5 * a + 3 * b, 2),
        [(14, 6), (20, 10), (9, 7)],
    ),
    (
        "A cube has edges of {0} cm. How many cubic centimetres does it hold when it is filled to {1} percent?",
        lambda a, b: Fraction(a**3 * b, 100),
        [(5, 40), (10, 35), (4, 75)],
    ),
    (
        "A clock is {0} minutes fast and gains {1} minutes every day. How many minutes fast is it after {2} weeks?",
        lambda a, b, c: a + 7 * b * c,
        [(5, 2, 1), (3, 1, 4), (10, 3, 2)],
    ),
    (
        "A bag holds {0} red and {1} blue marbles. What is the probability of drawing a red one, as a fraction?",
        lambda a, b: Fraction(a, a + b),
        [(3, 9), (10, 15), (8, 20)],
    ),
]


def written(value: int | Fraction) -> str:
    """An integer, a decimal where that is exact and short, or a fraction."""
    exact = Fraction(value)
    if exact.denominator == 1:
        return str(exact.numerator)
    if 100 % exact.denominator == 0 and exact > 1:
        return f"{float(exact):g}"
    return f"{exact.numerator}/{exact.denominator}"


def lines() -> list[str]:
    """The file, a JSON object a line."""
    return [
        json.dumps(
            {
                "question": text.format(*filling),
                "answer": written(formula(*filling)),
                "split": "test" if filling is fillings[-1] else "train",
            }
        )
        for text, formula, fillings in PROBLEMS
        for filling in fillings
    ]


if __name__ == "__main__":
    path = Path(__file__).with_name("problems.jsonl")
    path.write_text("\n".join(lines()) + "\n", encoding="utf-8")
    print(f"{len(lines())} problems in {path}")
