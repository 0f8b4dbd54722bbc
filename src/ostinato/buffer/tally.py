"""Numbers and names that the kernels and those who call them agree on."""

from __future__ import annotations

from ostinato.rollouts import ROW_COLUMNS

ROWS = tuple(name for name in ROW_COLUMNS if name != "source")
"""Row columns that the table holds as they are; of `source` it holds a code."""

FINITE_ROWS = ("reward", "group_reward_mean", "group_reward_std", "advantage")
"""Row columns that must be finite numbers."""

SUMS = ("staleness", "since", "new", "repeats", "correct", "informative")
"""Train steps since the oldest weights and since the last use, and numbers of rows: never drawn before, met before in
the same draw, with a reward above the threshold, with a group whose rewards differ."""

STALENESS, SINCE, NEW, REPEATS, CORRECT, INFORMATIVE = range(len(SUMS))

PLAIN, MASKED, WHOLE = 0, 1, 2
"""How a rollout is stored. Plain: behind the prompt every mask is True, in the prompt masks are False and log-probs 0,
so the mask need not be kept. Masked: the same prompt, a mask of its own behind. Whole: nothing about it is known."""
