"""One logged rollout: from the fields of a record to checked values."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ostinato.assembly import content_ids
from ostinato.errors import DataError
from ostinato.rollout_files.extras import is_typed, layout_of_value
from ostinato.rollout_files.logprobs import MissingLogprobsError, behavior_logprobs, sampled_ids
from ostinato.rollout_files.names import missing, sorted_into_fields
from ostinato.rollout_files.nested import Completion
from ostinato.rollout_files.settings import HOTTEST, ReadRules

INT64, INT32 = np.iinfo(np.int64), np.iinfo(np.int32)
LARGEST = 1e100
"""Of a reward: its square, which a deviation takes, must be a number too."""


@dataclass(frozen=True, slots=True)
class Line:
    """One rollout: token columns of all its tokens, row columns by name, and what else its record holds.

    `reward` and `advantage` are None where the record has none; group statistics are None unless it has both. `unsaid`
    are the fields for which the rules stand in.
    """

    tokens: NDArray[np.int32]
    loss_mask: NDArray[np.bool_]
    behavior_logprobs: NDArray[np.float32]
    row: dict[str, Any]
    reward: float | None
    advantage: float | None
    group: tuple[float, float] | None
    extras: dict[str, Any]
    unsaid: tuple[str, ...]


UNSAID = {"policy_version": ("policy_version_min",), "temperature": (), "top_p": (), "top_k": ()}
"""Fields for which the rules stand in, and the fields that say as much."""


def line_of(completion: Completion, number: int, rules: ReadRules) -> Line:
    """The rollout of a completion, `number` its line. Raises `DataError`, `MissingLogprobsError` where it has none."""
    fields, extras = sorted_into_fields(completion.record, rules.rename)
    one = {name: values[0] for name, values in fields.items() if name != "loss_mask"}
    typed = one.pop("extras", {})
    if not isinstance(typed, Mapping):
        raise DataError(f"'extras' is {shown(typed)}, expected an object")
    prompt, answer = _prompt_and_completion(one, completion.record)
    if one.get("logprobs") is None:
        raise MissingLogprobsError(missing("logprobs", completion.record))
    mask = _loss_mask(fields.get("loss_mask", []), len(prompt), len(answer))
    _check_lengths(one, len(prompt), len(answer))
    row: dict[str, Any] = {**_versions(one, rules), **_sampling(one, rules)}
    if isinstance(one.get("policy_version"), list):
        extras.setdefault("token_versions", one["policy_version"])
    row["prompt_length"] = len(prompt)
    row["prompt_id"] = _identity(one["prompt_id"], "prompt_id") if "prompt_id" in one else content_ids([prompt])[0]
    tokens = np.concatenate([prompt, answer])
    group = b"%d of " % number + (tokens.tobytes() if completion.group is None else completion.group)
    row["group_id"] = _group_id(one, row["prompt_id"], group, rules)
    row["truncated"] = _truncated(one.get("truncated"), fields.get("finish_reason", []))
    row["source"] = _source(one.get("source", rules.source))
    mean, std = _number(one, "group_reward_mean"), _number(one, "group_reward_std")
    if std is not None and std < 0:
        raise DataError(f"group_reward_std is {std:g}, expected at least 0")
    return Line(
        tokens=tokens,
        loss_mask=mask,
        behavior_logprobs=behavior_logprobs(one["logprobs"], prompt, answer, mask),
        row=row,
        reward=_reward(one),
        advantage=_number(one, "advantage"),
        group=None if mean is None or std is None else (mean, std),
        extras=_extras({**extras, **typed}),
        unsaid=tuple(name for name, others in UNSAID.items() if not any(other in one for other in (name, *others))),
    )


def shown(value: Any) -> str:
    """A value in a message, cut to a line's worth."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _prompt_and_completion(
    one: Mapping[str, Any], record: Mapping[str, Any]
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    completion = one.get("completion_ids")
    if completion is None and "tokens" not in one:
        completion = sampled_ids(one.get("logprobs"))
    if completion is not None and "prompt_ids" in one:
        return _ids(one["prompt_ids"], "prompt_ids"), _ids(completion, "completion_ids")
    if "tokens" in one and "prompt_length" in one:
        tokens, length = _ids(one["tokens"], "tokens"), _integer(one["prompt_length"], "prompt_length")
        if not 0 <= length <= len(tokens):
            raise DataError(f"prompt_length is {length}, expected 0 to {len(tokens)}, the number of tokens")
        return tokens[:length], tokens[length:]
    if "tokens" in one and completion is None:
        raise DataError(f"tokens without the length of the prompt: {missing('prompt_length', record)}")
    lacking = "completion_ids" if completion is None else "prompt_ids"
    part = lacking.partition("_")[0]
    raise DataError(f"no token ids of the {part} (text alone cannot be replayed): {missing(lacking, record)}")


def _ids(value: Any, name: str) -> NDArray[np.int32]:
    ids = _array(value)
    if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
        raise DataError(f"{name} is {shown(value)}, expected a list of token ids")
    if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) <= INT32.max:
        raise DataError(f"{name} holds {int(ids.min())} to {int(ids.max())}, expected ids from 0 to 2^31 - 1")
    return ids.astype(np.int32)


def _array(value: Any) -> NDArray[Any]:
    """A list as numpy sees it, () of objects for what is no list or has rows of different lengths."""
    try:
        return np.asarray(value) if isinstance(value, Sequence) else np.empty((), object)
    except ValueError:
        return np.empty((), object)


def _loss_mask(masks: Sequence[Any], prompt: int, completion: int) -> NDArray[np.bool_]:
    result = np.concatenate([np.zeros(prompt, np.bool_), np.ones(completion, np.bool_)])
    whole = [mask for mask in masks if isinstance(mask, Sequence) and len(mask) == prompt + completion != completion]
    if whole:
        result[:prompt] = True
    for mask in masks:
        values = _array(mask)
        if values.ndim != 1 or len(values) not in (completion, prompt + completion):
            raise DataError(f"the loss mask is {shown(mask)}, expected {completion} flags, one a completion token")
        if values.size and (values.dtype.kind not in "biu" or not np.isin(values, (0, 1)).all()):
            raise DataError(f"the loss mask is {shown(mask)}, expected 0 and 1")
        result[len(result) - len(values) :] &= values.astype(np.bool_)
    return result


def _check_lengths(one: Mapping[str, Any], prompt: int, completion: int) -> None:
    """A list of rewards or versions is one a token."""
    for name in ("reward", "policy_version"):
        given = one.get(name)
        if isinstance(given, list) and (not given or len(given) not in (completion, prompt + completion)):
            raise DataError(
                f"{name} is {shown(given)}, expected a number, or {completion} of them, one a completion token"
            )


def _versions(one: Mapping[str, Any], rules: ReadRules) -> dict[str, int]:
    given = one.get("policy_version", rules.policy_version)
    versions = [_integer(v, "policy_version") for v in given] if isinstance(given, list) else []
    # Some engines mark tokens that no policy produced with -1.
    produced = [version for version in versions if version >= 0]
    if isinstance(given, list) and not produced:
        raise DataError("policy_version is a list without a version of 0 or more")
    lowest, highest = (min(produced), max(produced)) if produced else (_integer(given, "policy_version"),) * 2
    if "policy_version_min" in one:
        lowest = highest = _integer(one["policy_version_min"], "policy_version_min")
    highest = _integer(one.get("policy_version_max", highest), "policy_version_max")
    if lowest > highest:
        raise DataError(f"policy_version_min {lowest} is above policy_version_max {highest}")
    birth = _integer(one.get("birth_step", highest), "birth_step")
    return {"policy_version_min": lowest, "policy_version_max": highest, "birth_step": birth}


def _sampling(one: Mapping[str, Any], rules: ReadRules) -> dict[str, float | int]:
    values = {name: _number(one, name) for name in ("temperature", "top_p")}
    temperature = rules.temperature if values["temperature"] is None else values["temperature"]
    top_p = rules.top_p if values["top_p"] is None else values["top_p"]
    top_k = _integer(one.get("top_k", rules.top_k), "top_k")
    if not 0 <= temperature <= HOTTEST or not 0 <= top_p <= 1:
        raise DataError(f"got temperature {temperature:g} and top_p {top_p:g}, expected 0 to {HOTTEST:g}, and 0 to 1")
    if not -1 <= top_k <= INT32.max:
        raise DataError(f"top_k is {top_k}, expected -1 (off) to 2^31 - 1")
    return {"temperature": temperature, "top_p": top_p, "top_k": max(top_k, 0)}  # -1 is "off" in vLLM


def _group_id(one: Mapping[str, Any], prompt_id: int, line: bytes, rules: ReadRules) -> int:
    if "group_id" in one:
        return _identity(one["group_id"], "group_id")
    return _hash(b"group of prompt %d" % prompt_id if rules.group_by == "prompt" else b"group of line " + line)


def _extras(values: dict[str, Any]) -> dict[str, Any]:
    """The same; what claims a dtype and a shape must have them."""
    for name, value in values.items():
        if is_typed(value):
            try:
                layout_of_value(value)
            except DataError as error:
                raise DataError(f"extra {name!r}: {error}") from None
    return values


def _source(value: Any) -> str:
    if isinstance(value, (dict, list)):
        raise DataError(f"source is {shown(value)}, expected a name")
    return str(value)


def _truncated(flag: Any, reasons: Sequence[Any]) -> bool:
    if flag is None:
        return "length" in reasons or "max_tokens" in reasons
    if flag not in (0, 1):
        raise DataError(f"truncated is {shown(flag)}, expected true or false")
    return bool(flag)


def _reward(one: Mapping[str, Any]) -> float | None:
    given = one.get("reward")
    if not isinstance(given, list):
        return _number(one, "reward")
    # One reward a token: their sum is the reward of the trajectory.
    return _finite(sum(_finite(value, "reward") for value in given), "the sum of rewards")


def _number(one: Mapping[str, Any], name: str) -> float | None:
    return _finite(one[name], name) if name in one else None


def _finite(value: Any, name: str) -> float:
    if not isinstance(value, (bool, int, float)) or not abs(value) <= LARGEST:
        raise DataError(f"{name} is {shown(value)}, expected a finite number")
    return float(value)


def _integer(value: Any, name: str) -> int:
    if isinstance(value, str) and len(value) <= 20 and value.strip().lstrip("-").isdecimal():
        value = int(value)
    if isinstance(value, float) and value.is_integer():  # tables with gaps turn whole numbers into these
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not INT64.min <= value <= INT64.max:
        raise DataError(f"{name} is {shown(value)}, expected a whole number")
    return value


def _identity(value: Any, name: str) -> int:
    return _hash(value.encode("utf-8", "surrogatepass")) if isinstance(value, str) else _integer(value, name)


def _hash(content: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "big") >> 1
