"""What the fields of a logged rollout are called, here and in the engines and trainers of others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ostinato.errors import ConfigError, DataError

NAMES: dict[str, tuple[str, ...]] = {
    "prompt_ids": ("prompt_token_ids",),
    "completion_ids": (
        "completion_token_ids",
        "response_ids",
        "response_token_ids",
        "output_ids",
        "output_token_ids",
        "token_ids",
    ),
    "tokens": ("input_ids",),
    "prompt_length": ("prompt_len",),
    "logprobs": (
        "behavior_logprobs",
        "completion_logprobs",
        "response_logprobs",
        "rollout_logprobs",
        "rollout_log_probs",
        "sampling_logprobs",
        "sampling_per_token_logps",
        "generation_logprobs",
        "output_token_logprobs",
    ),
    "loss_mask": ("loss_masks", "response_mask", "completion_mask", "action_mask", "tool_mask", "env_mask"),
    "reward": ("rewards", "score"),
    "group_id": ("uid", "group", "group_index"),
    "prompt_id": (),
    "advantage": ("advantages",),
    "group_reward_mean": (),
    "group_reward_std": (),
    "policy_version": ("versions", "model_version", "weight_version"),
    "policy_version_min": (),
    "policy_version_max": (),
    "birth_step": ("train_step", "global_step", "global_steps"),
    "temperature": (),
    "top_p": (),
    "top_k": (),
    "truncated": (),
    "finish_reason": ("stop_reason", "stop_reasons"),
    "source": ("data_source", "dataset"),
    "extras": (),
}
"""Field -> the other names it goes by. The documented table, docs/buffer-files.md, is checked against this one."""

NESTED = ("outputs", "choices")
"""Names of a list of completions, each an object with fields of its own; `renaming` takes the first as a target."""

MAY_CONFLICT = frozenset({"loss_mask", "finish_reason"})
"""Fields of which one line may hold several: masks are combined, and one reason "length" is enough."""

SHOWN_NAMES, SHOWN_LENGTH = 16, 40
"""Of the fields of a record, in a message."""

FIELD_OF = {name: field for field, names in NAMES.items() for name in (field, *names)}


def renaming(pairs: Iterable[str]) -> dict[str, str]:
    """`THEIRS=OURS` pairs as a mapping. Raises `ConfigError` when a pair is malformed or OURS is no field."""
    mapping: dict[str, str] = {}
    for pair in pairs:
        theirs, equals, ours = pair.partition("=")
        if not (theirs and equals) or ours not in (*NAMES, NESTED[0]):
            known = ", ".join((*NAMES, NESTED[0]))
            raise ConfigError(f"got the renaming {pair!r}, expected THEIRS=OURS with OURS one of {known}")
        mapping[theirs] = ours
    return mapping


def missing(field: str, record: Mapping[str, Any]) -> str:
    """What to say of a record that has a field under none of its names: the names, those found, and the way out."""
    found = [repr(name)[:SHOWN_LENGTH] for name, value in record.items() if value is not None]
    more = f" and {len(found) - SHOWN_NAMES} more" if len(found) > SHOWN_NAMES else ""
    return (
        f"found {', '.join(found[:SHOWN_NAMES]) or 'nothing'}{more}; expected one of"
        f" {', '.join((field, *NAMES[field]))} (another name: --rename THEIRS={field})"
    )


def sorted_into_fields(
    record: Mapping[str, Any], rename: Mapping[str, str]
) -> tuple[dict[str, list[Any]], dict[str, Any]]:
    """The values of each known field, null left out, and what else the record holds.

    Raises `DataError` when two names give one field different values, unless such a field may have several.
    """
    fields: dict[str, list[Any]] = {}
    given_as: dict[str, str] = {}
    extras: dict[str, Any] = {}
    for name, value in record.items():
        field = rename.get(name) or FIELD_OF.get(name)
        if field is None:
            extras[name] = value
        elif value is not None:
            others = fields.setdefault(field, [])
            if others and value != others[0] and field not in MAY_CONFLICT:
                raise DataError(f"{given_as[field]!r} and {name!r} both name the {field} and differ")
            given_as[field] = name
            others.append(value)
    return fields, extras
