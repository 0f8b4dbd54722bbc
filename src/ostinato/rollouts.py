"""`Rollouts`: the one data type that flows through the house.

Columnar and packed: the tokens of all rollouts stand one after the other, `offsets` says where each
begins. An engine returns it, the buffer stores and returns it, batching turns it into tensors.

Shape letters: n rollouts, L token positions of all n together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ostinato import assembly
from ostinato.errors import DataError
from ostinato.ragged import (
    Extra,
    Ragged,
    check_column,
    check_extras,
    check_offsets,
    concatenate_extra,
    described,
    gather_positions,
    layout,
    offsets_of,
    row_bounds,
    row_numbers,
)

TOKEN_COLUMNS: dict[str, type[np.generic]] = {
    "tokens": np.int32,
    "loss_mask": np.bool_,
    "behavior_logprobs": np.float32,
}
ROW_COLUMNS: dict[str, type[np.generic]] = {
    "prompt_length": np.int32,
    "prompt_id": np.int64,
    "group_id": np.int64,
    "reward": np.float64,
    "group_reward_mean": np.float64,
    "group_reward_std": np.float64,
    "advantage": np.float64,
    "policy_version_min": np.int64,
    "policy_version_max": np.int64,
    "birth_step": np.int64,
    "truncated": np.bool_,
    "temperature": np.float32,
    "top_p": np.float32,
    "top_k": np.int32,
    "source": np.str_,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollouts:
    """n rollouts, packed. A rollout is one completion (multi-turn: one trajectory).

    Token columns, shape (L,): `tokens` int32 (prompt and completion), `loss_mask` bool (True where the
    policy produced the token), `behavior_logprobs` float32 (natural log, under the policy that generated, at
    its sampling temperature; 0 where the mask is False).
    `offsets` int64 (n+1,): rollout i is `tokens[offsets[i]:offsets[i+1]]`.

    Row columns, shape (n,): `prompt_length` (tokens), `prompt_id`, `group_id` (rollouts that share a baseline),
    `reward`, `group_reward_mean`, `group_reward_std` (ddof=1), `advantage` (frozen at generation),
    `policy_version_min/max` (train steps at which the oldest and newest weights that produced a token were
    published), `birth_step` (train step at generation), `truncated` (hit the length limit),
    `temperature, top_p, top_k` (top_k 0: off), `source` (name of the data set).

    `extras`: named further columns, per rollout an array (n, ...) or a `Ragged` (images, tool masks, token
    versions); they survive every round trip. Raises `DataError` on construction when columns disagree.
    """

    tokens: NDArray[np.int32]
    loss_mask: NDArray[np.bool_]
    behavior_logprobs: NDArray[np.float32]
    offsets: NDArray[np.int64]
    prompt_length: NDArray[np.int32]
    prompt_id: NDArray[np.int64]
    group_id: NDArray[np.int64]
    reward: NDArray[np.float64]
    group_reward_mean: NDArray[np.float64]
    group_reward_std: NDArray[np.float64]
    advantage: NDArray[np.float64]
    policy_version_min: NDArray[np.int64]
    policy_version_max: NDArray[np.int64]
    birth_step: NDArray[np.int64]
    truncated: NDArray[np.bool_]
    temperature: NDArray[np.float32]
    top_p: NDArray[np.float32]
    top_k: NDArray[np.int32]
    source: NDArray[np.str_]
    extras: Mapping[str, Extra] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.tokens, np.ndarray) or self.tokens.ndim != 1:
            raise DataError(f"tokens is {described(self.tokens)}, expected int32 (L,)")
        check_offsets(self.offsets, len(self.tokens))
        n, total = len(self.offsets) - 1, len(self.tokens)
        for name, dtype in TOKEN_COLUMNS.items():
            check_column(name, getattr(self, name), dtype, (total,))
        for name, dtype in ROW_COLUMNS.items():
            check_column(name, getattr(self, name), dtype, (n,))
        check_extras(self.extras, n)
        self.check_prompts()

    def check_prompts(self) -> None:
        """Raise `DataError` unless every prompt lies within its rollout."""
        if np.count_nonzero((self.completion_lengths | self.prompt_length) < 0):  # the sign bit of the smaller one
            raise DataError("prompt_length must lie between 0 and the length of its rollout")

    @classmethod
    def trusted(cls, **columns: Any) -> Rollouts:
        """A record of columns that the caller knows to agree: the constructor without its checks."""
        rollouts = object.__new__(cls)
        for name, column in columns.items():
            _SETTERS[name](rollouts, column)
        return rollouts

    @classmethod
    def from_completions(
        cls, prompts: assembly.IntRows, completions: assembly.IntRows, logprobs: Sequence[Any], **columns: Any
    ) -> Rollouts:
        """Pack n (prompt, completion, log-probs of the completion) triples given as token ids.

        `columns`: any row column by name, a scalar for all rows or one value a row; `extras` too. Columns left out are
        0 (temperature and top_p: 1; group_id: the row number, each a group of its own; prompt_id: a hash of the
        prompt's tokens; policy_version_max: policy_version_min).
        Raises `DataError` when the counts or lengths differ, or token ids are no integers from 0 to 2^31 - 1.
        """
        n = len(prompts)
        if not n == len(completions) == len(logprobs):
            raise DataError(f"got {n} prompts, {len(completions)} completions and {len(logprobs)} rows of log-probs")
        before, behind = [*map(len, prompts)], [*map(len, completions)]
        assembly.check_lengths("log-probs", logprobs, behind, "completion tokens")
        lengths = [*map(int.__add__, before, behind)]
        rows, offsets = [*chain.from_iterable(zip(prompts, completions, strict=True))], offsets_of(lengths)
        return cls._packed(
            columns,
            lambda: before,
            tokens=assembly.packed_ids(rows, lengths, parts=2),
            loss_mask=assembly.flags_after(before, offsets),
            behavior_logprobs=assembly.packed_logprobs(logprobs, before),
            offsets=offsets,
        )

    @classmethod
    def from_rows(
        cls, tokens: assembly.IntRows, loss_mask: Sequence[Any], behavior_logprobs: Sequence[Any], **columns: Any
    ) -> Rollouts:
        """Pack n whole rollouts, such as trajectories of several turns, whose masks (rows of booleans) have holes.

        Left out, `prompt_length` is the number of tokens before the first that the policy produced; `columns` else,
        and `DataError`, as in `from_completions`.
        """
        n, masks, logprobs = map(len, (tokens, loss_mask, behavior_logprobs))
        if not n == masks == logprobs:
            raise DataError(f"got {n} rows of tokens, {masks} masks, {logprobs} log-probs")
        lengths = [*map(len, tokens)]
        assembly.check_lengths("booleans in loss_mask", loss_mask, lengths, "tokens")
        assembly.check_lengths("log-probs", behavior_logprobs, lengths, "tokens")
        mask, offsets = assembly.packed_flags(loss_mask, "loss_mask"), offsets_of(lengths)
        return cls._packed(
            columns,
            lambda: assembly.counts_before_true(mask, offsets),
            tokens=assembly.packed_ids(tokens, lengths),
            loss_mask=mask,
            behavior_logprobs=assembly.packed_logprobs(behavior_logprobs),
            offsets=offsets,
        )

    @classmethod
    def _packed(
        cls, columns: dict[str, Any], prompt_length: Callable[[], Any], offsets: NDArray[np.int64], **packed: Any
    ) -> Rollouts:
        """A record of token columns that agree and row columns still to be checked; left out, `prompt_length` is so."""
        n, extras = len(offsets) - 1, columns.pop("extras", {})
        check_extras(extras, n)
        given = columns if "prompt_length" in columns else {"prompt_length": prompt_length(), **columns}
        rollouts = cls.trusted(offsets=offsets, **packed, **assembly.row_columns(n, given, ROW_COLUMNS), extras=extras)
        if given is columns:
            rollouts.check_prompts()
        if "prompt_id" not in columns:
            rollouts.prompt_id[:] = assembly.content_ids([*map(rollouts.prompt, range(n))])
        return rollouts

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each rollout, prompt included: int64 (n,)."""
        return self.offsets[1:] - self.offsets[:-1]

    @property
    def completion_lengths(self) -> NDArray[np.int64]:
        """Tokens after the prompt: int64 (n,)."""
        return self.lengths - self.prompt_length

    @property
    def nbytes(self) -> int:
        """Bytes of all columns, extras included."""
        arrays = [getattr(self, name) for name in (*TOKEN_COLUMNS, *ROW_COLUMNS)]
        for column in self.extras.values():
            arrays += [column.values, column.offsets] if isinstance(column, Ragged) else [column]
        return int(sum(array.nbytes for array in arrays)) + self.offsets.nbytes

    def prompt(self, index: int) -> NDArray[np.int32]:
        """Prompt tokens of rollout `index`, a view."""
        start, _ = row_bounds(self.offsets, index)
        return self.tokens[start : start + self.prompt_length[index]]

    def completion(self, index: int) -> NDArray[np.int32]:
        """Completion tokens of rollout `index`, a view."""
        start, stop = row_bounds(self.offsets, index)
        return self.tokens[start + self.prompt_length[index] : stop]

    def select(self, rows: NDArray[np.int64] | Sequence[int]) -> Rollouts:
        """The given rows in the given order, repeats allowed; a copy that shares no memory.

        Raises `DataError` unless they are integers from 0 to n - 1 (`np.flatnonzero` turns a mask into them).
        """
        index = row_numbers(rows, len(self))
        positions, offsets = gather_positions(self.offsets, index)
        return Rollouts(
            offsets=offsets,
            **{name: getattr(self, name)[positions] for name in TOKEN_COLUMNS},
            **{name: getattr(self, name)[index] for name in ROW_COLUMNS},
            extras={
                name: column.select(index) if isinstance(column, Ragged) else column[index]
                for name, column in self.extras.items()
            },
        )

    def replace(self, **columns: Any) -> Rollouts:
        """A copy of the record with the named columns exchanged; all other arrays are shared. Raises `DataError`."""
        if unknown := [name for name in columns if name not in _SETTERS]:
            raise DataError(f"there is no column {unknown[0]!r} to replace; extra columns go into extras={{...}}")
        if "prompt_length" in columns or not columns.keys() <= ROW_COLUMNS.keys():
            return replace(self, **columns)
        for name, column in columns.items():  # which agrees with no other but in length
            check_column(name, column, ROW_COLUMNS[name], (len(self),))
        return Rollouts.trusted(**{name: getattr(self, name) for name in _SETTERS} | columns)


_SETTERS = {column.name: getattr(Rollouts, column.name).__set__ for column in fields(Rollouts)}


def concatenate(parts: Sequence[Rollouts]) -> Rollouts:
    """All rollouts of `parts` in order. Raises `DataError` when extras differ, or they are no list of at least one."""
    if not isinstance(parts, Sequence) or not all(isinstance(part, Rollouts) for part in parts):
        raise DataError(f"expected a list of Rollouts to concatenate, got {described(parts)}")
    if not parts:
        raise DataError("cannot concatenate an empty list of rollouts")
    first = extra_layouts(parts[0])
    for part in parts:
        if extra_layouts(part) != first:
            raise DataError(f"rollouts to concatenate must share their extra columns: {extra_layouts(part)}, {first}")
    return Rollouts.trusted(
        offsets=offsets_of(np.concatenate([part.lengths for part in parts])),
        **{name: np.concatenate([getattr(part, name) for part in parts]) for name in (*TOKEN_COLUMNS, *ROW_COLUMNS)},
        extras={name: concatenate_extra([part.extras[name] for part in parts]) for name in first},
    )


def extra_layouts(rollouts: Rollouts) -> dict[str, str]:
    """The `layout` of each extra column: equal for rollouts that may stand in one record or one buffer."""
    return {name: layout(column) for name, column in rollouts.extras.items()}
