"""Log-probs of the policy that generated, in the shapes in which engines give them out."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ostinato.errors import DataError

ABOVE_ZERO = 0.01
"""A log-prob above this is none: rounding gives less, probabilities logged by mistake give more."""


TOKEN_ID = re.compile(r"token_id:([0-9]{1,10})")


class MissingLogprobsError(DataError):
    """A line without log-probs; `found`: what stands there instead."""

    def __init__(self, found: str) -> None:
        super().__init__(
            f"no log-probs of the sampled tokens, which cannot be recomputed once the policy has moved on: {found};"
            " leave such lines out with --missing-logprobs drop"
        )


def behavior_logprobs(
    given: Any, prompt: NDArray[np.int32], completion: NDArray[np.int32], loss_mask: NDArray[np.bool_]
) -> NDArray[np.float32]:
    """One log-prob a token, float32 (prompt + completion,), 0 where none is given.

    `given`: numbers, one a completion token (or one a token, prompt included); or what engines write: a list of objects
    with a "logprob", a list of objects that map token ids to such, {"token_logprobs": [...]}, {"content": [...]}.
    Where the loss mask is False they may be null. Raises `MissingLogprobsError` for null, or `DataError` where a token
    that the policy produced has none that is finite and at most 0.
    """
    if isinstance(given, Mapping):
        given = given.get("content") if given.get("token_logprobs") is None else given["token_logprobs"]
    if given is None:
        raise MissingLogprobsError("the object has neither 'token_logprobs' nor 'content'")
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


def sampled_ids(given: Any) -> list[int] | None:
    """Token ids that stand with the log-probs, as "token_id:7" in place of texts (vLLM: `return_tokens_as_token_ids`).

    `given`: {"tokens": [...]} or {"content": [{"token": ...}, ...]}; None where there are texts, or something else.
    """
    if not isinstance(given, Mapping):
        return None
    tokens = given.get("tokens")
    if isinstance(given.get("content"), list):
        tokens = [entry.get("token") if isinstance(entry, Mapping) else None for entry in given["content"]]
    if not isinstance(tokens, list) or not tokens:
        return None
    found = [TOKEN_ID.fullmatch(token) if isinstance(token, str) else None for token in tokens]
    return [int(match[1]) for match in found if match] if all(found) else None


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
