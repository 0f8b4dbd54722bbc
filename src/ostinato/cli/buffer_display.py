"""The contents of a buffer for a person: numbers in a table, rollouts as ids or text."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TextIO

from ostinato.cli.buffer_characters import CharacterReader
from ostinato.errors import ConfigError, MissingExtraError
from ostinato.rollouts import Rollouts

SHOWN_IDS = 16
SHOWN_CHARACTERS = 300
CHARACTERS = "characters"
"""Name of the built-in tokenizer of one token a character."""


def load_tokenizer(name: str) -> Any:
    """A Hugging Face tokenizer from a directory or by hub name, or "characters", the built-in one.

    Raises `ConfigError` when there is none, `MissingExtraError` without transformers, which the built-in one does not
    need.
    """
    if name == CHARACTERS:
        return CharacterReader()
    try:
        import transformers

        from ostinato.backends.hf.models import quiet
    except ImportError as error:
        raise MissingExtraError(error.name or "transformers", "hf") from None
    try:
        with quiet():
            return transformers.AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError, RuntimeError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ConfigError(f"--tokenizer {name!r}: expected a directory or a reachable hub name; {reason}") from None


def say(text: str, stream: TextIO | None = None) -> None:
    """Print to the stream, standard output unless another is given; what its encoding lacks is written out."""
    stream = sys.stdout if stream is None else stream
    encoding = stream.encoding or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding), file=stream)


def row_records(rollouts: Rollouts, about: Sequence[Mapping[str, Any]], tokenizer: Any) -> list[dict[str, Any]]:
    """What --json shows of each row: its columns, token ids, and texts if there is a tokenizer."""
    records = []
    for index, known in enumerate(about):
        prompt, completion = rollouts.prompt(index), rollouts.completion(index)
        record = {**known, "prompt_ids": prompt.tolist(), "completion_ids": completion.tolist()}
        if tokenizer is not None:
            record |= {"prompt": _text(tokenizer, prompt), "completion": _text(tokenizer, completion)}
        records.append(record)
    return records


def described(numbers: Mapping[str, Any]) -> Iterator[str]:
    """The lines that `ostinato buffer inspect` prints."""
    yield f"{numbers['path']}: {numbers['kind']}"
    rows = dict(_rows(numbers))
    width = max(map(len, rows))
    for name, value in rows.items():
        yield f"  {name:<{width}}  {value}"
    for row in numbers["rows"]:
        uses = f", used {row['uses']} times" if "uses" in row else ""
        yield (
            f"row {row['row']}: reward {row['reward']:g}, advantage {row['advantage']:.3g}, policy version"
            f" {row['policy_version_min']}{uses}, group {row['group_id']}" + (", truncated" if row["truncated"] else "")
        )
        for part in ("prompt", "completion"):
            yield f"  {part:<10}  {_line(row[part]) if part in row else _ids(row[f'{part}_ids'])}"


def _rows(numbers: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "rollouts", f"{numbers['rollouts']} in {numbers['groups']} groups of {numbers['prompts']} prompts"
    per_token = numbers["bytes_per_token"]
    each = f", {per_token:.1f} a token" if per_token else ""
    yield "bytes", f"{numbers['bytes']} for {numbers['tokens']} tokens{each}"
    yield "train step", str(numbers["train_step"])
    for name in ("staleness", "residence"):
        if numbers[name]:
            yield name, _spread(numbers[name]) + " train steps"
    if uses := numbers["uses"]:
        never = uses["never_fraction"]
        yield "uses", f"never {_percent(never)}" + (f", {_spread(uses)}" if never is not None else "")
    if numbers["reward"]:
        correct = f"{_percent(numbers['correct_fraction'])} above {numbers['correct_above']:g}"
        yield "reward", f"{_spread(numbers['reward'])}; {correct}"
        informative = numbers["informative_fraction"]
        yield (
            "informative",
            f"{_percent(informative['groups'])} of groups, {_percent(informative['rollouts'])} of rollouts",
        )
        yield "prompt", _spread(numbers["prompt_length"]) + " tokens"
        truncated = f"{_percent(numbers['truncated_fraction'])} truncated"
        yield "completion", f"{_spread(numbers['completion_length'])} tokens; {truncated}"
        low, high = numbers["temperature"]["min"], numbers["temperature"]["max"]
        limited = f"{_percent(numbers['truncated_sampling_fraction'])} with top_p or top_k"
        yield "sampling", f"temperature {low:.3g} to {high:.3g}; {limited}"
        yield (
            "sources",
            ", ".join(f"{_line(name) or '(none)'} {_percent(share)}" for name, share in numbers["sources"].items()),
        )
    if numbers["priority"]:
        yield "priority", _spread(numbers["priority"])
    if numbers["extras"]:
        yield "extras", ", ".join(f"{_line(name)} {layout}" for name, layout in numbers["extras"].items())


def _spread(numbers: Mapping[str, float]) -> str:
    inner = " / ".join(f"{numbers[name]:.4g}" for name in ("min", "p10", "median", "p90", "max"))
    return f"mean {numbers['mean']:.4g} ({inner})"


def _percent(share: float | None) -> str:
    return "none" if share is None else f"{100 * share:.1f} %"


def _ids(ids: Sequence[int]) -> str:
    more = f" ... {len(ids)} tokens" if len(ids) > SHOWN_IDS else ""
    return " ".join(map(str, ids[:SHOWN_IDS])) + more


def _line(text: str) -> str:
    """A text on one line, its control characters written out: a completion must not steer the terminal."""
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text[:SHOWN_CHARACTERS])
    return shown + (f" ... {len(text)} characters" if len(text) > SHOWN_CHARACTERS else "")


def _text(tokenizer: Any, tokens: Any) -> str:
    text: str = tokenizer.decode(tokens.tolist(), skip_special_tokens=True)
    return text
