"""What is summed over the rows of a draw, and where it stands in an array of sums."""

from __future__ import annotations

SUMS = ("staleness", "since", "new", "repeats", "correct", "informative")
"""Train steps since the oldest weights and since the last use, and numbers of rows: never drawn before, met before in
the same draw, with a reward above the threshold, with a group whose rewards differ."""

STALENESS, SINCE, NEW, REPEATS, CORRECT, INFORMATIVE = range(len(SUMS))
