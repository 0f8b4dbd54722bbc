"""Log-probs of the policy that generated, in the shapes in which engines give them out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ostinato.errors import DataError

ABOVE_ZERO = 0.01
"""A log-prob above this is none: rounding gives less, probabilities logged by mistake give more."""


class MissingLogprobsError(DataError):
    """A line without log-probs."""

    def __init__(self) -> None:
        super().__init__(
            "no log-probs of the sampled tokens; they cannot be recomputed once the policy has moved on"
            " (leave such lines out: --missing-logprobs drop)"
        )


def behavior_logprobs(
    given: Any, prompt: NDArray[np.int32], completion: NDArray[np.int32], loss_mask: NDArray[np.bool_]
) -> NDArray[np.float32]:
    """One log-prob a token, float32 (prompt + completion,), 0 where none is given.

    `given`: numbers, one a completion token (or one a token, prompt included); or what engines write: a list of objects
    with a "logprob", a list of objects that map token ids to such, {"token_logprobs": [...]}, {"content": [...]}.
    Where the loss mask is False they may be null. Raises `MissingLogprobsError`, or `DataError` where a token that the
    policy produced has none that is finite and at most 0.
    """
    if isinstance(given, Mapping):
        given = given.get("content", given.get("token_logprobs"))
    if given is None:
        raise MissingLogprobsError
    total = len(prompt) + len(completion)
    if not isinstance(given, list) or len(given) not in (len(completion), total):
        count = len(given) if isinstance(given, list) else f"a {type(given).__name__}"
        raise DataError(f"got {count} log-probs for {len(completion)} completion tokens")
    ids = np.concatenate([prompt, completion])[total - len(given) :]
    values = np.zeros(total, np.float64)
    values[total - len(given) :] = _numbers(given, ids)
    with np.errstate(over="ignore"):  # too large for float32 is not finite either
        narrow = values.astype(np.float32)
    good = np.isfinite(narrow) & (values <= ABOVE_ZERO)
    bad = np.flatnonzero(loss_mask & ~good)
    if len(bad):
        where = f"token {bad[0] - len(prompt)} of the completion"
        raise DataError(f"the log-prob of {where} is {values[bad[0]]:g}, expected a finite number of at most 0")
    return np.where(good, narrow, np.float32(0))


def _numbers(given: list[Any], ids: NDArray[np.int32]) -> NDArray[np.float64]:
    try:
        if all(type(value) is float for value in given):  # the common case, without a look at each
            return np.array(given, np.float64)
        return np.array([_number(value, token) for value, token in zip(given, ids.tolist(), strict=True)], np.float64)
    except OverflowError:
        raise DataError("a log-prob is no number of 64 bits") from None


def _number(value: Any, token: int) -> float:
    if isinstance(value, Mapping):
        chosen = value.get(str(token), value.get(token, value))
        value = chosen.get("logprob") if isinstance(chosen, Mapping) else chosen
    if value is None:
        return float("nan")
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise DataError(f"a log-prob is a {type(value).__name__}, expected a number")
    return float(value)
