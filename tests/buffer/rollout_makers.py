"""Rollouts of every shape a buffer may meet, and how to tell whether one came back as it went in."""

from collections.abc import Sequence

import numpy as np

from ostinato.advantages import score_group
from ostinato.ragged import Extra, Ragged
from ostinato.rollouts import ROW_COLUMNS, TOKEN_COLUMNS, Rollouts, concatenate

EXTRAS = ("none", "fixed", "ragged", "images", "texts")
PROMPT_LENGTHS = (0, 3, 40)


def plain(n: int, *, length: int = 3, prompt: int = 2, first: int = 0, **columns) -> Rollouts:
    """Rollout i: prompt [i] * prompt, completion [i] * length, numbered from `first`."""
    numbers = range(first, first + n)
    return Rollouts.from_completions(
        [[i] * prompt for i in numbers], [[i] * length for i in numbers], [[-0.5] * length] * n, **columns
    )


def group(
    rng: np.random.Generator, size: int, *, group_id: int, version: int = 0, extras: str = "none", longest: int = 6
) -> Rollouts:
    """A scored group of one prompt, of 12 that come again, with gaps in its masks, and sometimes with a trained prompt.

    `extras`: a name of `EXTRAS`.
    """
    prompt_id = int(rng.integers(12))
    width = PROMPT_LENGTHS[prompt_id % 3]
    prompt = np.random.default_rng(prompt_id).integers(0, 50_000, width)
    lengths = rng.integers(0, longest + 1, size)
    rollouts = Rollouts.from_completions(
        [prompt] * size,
        [rng.integers(0, 2**31 - 1, length) for length in lengths],
        [-rng.random(length) for length in lengths],
        prompt_id=prompt_id,
        group_id=group_id,
        policy_version_min=max(0, version - int(rng.integers(3))),
        policy_version_max=version,
        birth_step=version,
        truncated=rng.random(size) < 0.2,
        temperature=0.7,
        top_p=0.9,
        top_k=int(rng.integers(50)),
        source=("math", "code", "a long name of a data set")[group_id % 3],
        extras=extra_columns(rng, size, extras),
    )
    mask, logprobs = rollouts.loss_mask.copy(), rollouts.behavior_logprobs.copy()
    gaps = rng.random(len(mask)) < 0.3
    mask[gaps], logprobs[gaps] = False, 0
    if width and rng.random() < 0.2:  # a trajectory whose first turn the policy wrote
        row = int(rng.integers(size))
        mask[rollouts.offsets[row]], logprobs[rollouts.offsets[row]] = True, -1.5
    rollouts = rollouts.replace(loss_mask=mask, behavior_logprobs=logprobs)
    return score_group(rollouts, rng.integers(0, 2, size).astype(float))


def groups(rng: np.random.Generator, sizes: Sequence[int], *, first_group: int = 0, **settings) -> Rollouts:
    """Several groups, one after the other; see `group`."""
    return concatenate([group(rng, size, group_id=first_group + i, **settings) for i, size in enumerate(sizes)])


def extra_columns(rng: np.random.Generator, n: int, kind: str) -> dict[str, Extra]:
    """Extra columns of n rollouts of one group."""
    if kind == "fixed":
        return {"embedding": rng.random((n, 2)).astype(np.float32), "seed": rng.integers(2**63, size=n)}
    if kind == "ragged":
        rows = [rng.integers(-9, 9, (int(rng.integers(4)), 2)).astype(np.int16) for _ in range(n)]
        return {"turns": Ragged.from_rows(rows), "tool_mask": Ragged.from_rows([row[:, 0] > 0 for row in rows])}
    if kind == "images":
        return {"image": np.repeat(rng.integers(0, 255, (1, 3, 8, 8), dtype=np.uint8), n, axis=0)}
    if kind == "texts":
        return {"answer": np.array(["x" * int(rng.integers(1, 30)) + str(i) for i in range(n)])}
    return {}


def extra_row(column: Extra, row: int) -> np.ndarray:
    """Row of an extra column."""
    return column.row(row) if isinstance(column, Ragged) else column[row]


def same_rollout(one: Rollouts, row: int, other: Rollouts, other_row: int, *, scalars: bool = True) -> bool:
    """Whether two rows are equal in every token, extra column and (with `scalars`) row column."""
    a, b = (slice(r.offsets[i], r.offsets[i + 1]) for r, i in ((one, row), (other, other_row)))
    tokens = all(np.array_equal(getattr(one, name)[a], getattr(other, name)[b]) for name in TOKEN_COLUMNS)
    extras = one.extras.keys() == other.extras.keys() and all(
        np.array_equal(extra_row(one.extras[name], row), extra_row(other.extras[name], other_row))
        for name in one.extras
    )
    names = ROW_COLUMNS if scalars else ("prompt_length", "prompt_id", "group_id")
    return tokens and extras and all(getattr(one, name)[row] == getattr(other, name)[other_row] for name in names)
