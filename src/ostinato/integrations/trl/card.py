"""The model card of a replayed run: what was replayed and how, so that a model on the hub says it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard

from ostinato.errors import ConfigError
from ostinato.integrations.trl.config import ReplayConfig
from ostinato.setting_checks import shown

Mixed: Any = object
"""To a type checker: the trainer that `ReplayCardMixin` stands before, whose attributes it uses."""

TITLE = "### Replay"
TAGS = ("experience-replay", "ostinato")
BEFORE = "### Framework versions"
"""The section of TRL's card that the settings stand before."""

PAPER = "[Efficient RL Training for LLMs with Experience Replay](https://huggingface.co/papers/2604.08706)"


def add_replay_to_card(path: str | Path, settings: Any) -> None:
    """Write the settings of replay into a card that TRL made: tags, a table, the version; doing it twice is once.

    `path`: its README.md. `settings`: a `ReplayConfig` or a mapping of names to values. Raises `ConfigError` for a card
    that is not there and for settings of another kind.
    """
    if not Path(path).is_file():
        raise ConfigError(f"{path} is no model card: call create_model_card first, and give its README.md")
    if not isinstance(settings, (Mapping, ReplayConfig)):
        raise ConfigError(f"settings is {shown(settings)}, expected a ReplayConfig or a dict of settings by name")
    card = ModelCard.load(path, ignore_metadata_errors=True)
    card.data.tags = sorted({*(card.data.tags or []), *TAGS})
    if TITLE not in card.text:
        head, found, tail = card.text.partition(BEFORE)
        card.text = f"{head.rstrip()}\n\n{_section(settings)}\n\n{found}{tail}"
    # The version stands beside those of the other packages.
    line = f"- Ostinato: {version('ostinato')}\n"
    if line not in card.text and "\n- TRL: " in card.text:
        card.text = card.text.replace("\n- TRL: ", f"\n{line}- TRL: ", 1)
    card.save(path)


def say_on_cards(trainer: Any, settings: Mapping[str, Any]) -> None:
    """Let every card that this trainer writes, at a checkpoint or before a push, carry the settings of replay."""
    written = trainer.create_model_card

    def create_model_card(*positional: Any, **named: Any) -> None:
        written(*positional, **named)
        if trainer.is_world_process_zero():
            add_replay_to_card(os.path.join(trainer.args.output_dir, "README.md"), settings)

    trainer.create_model_card = create_model_card


class ReplayCardMixin(Mixed):  # type: ignore[misc]
    """`create_model_card` with the settings of `self.replay`; TRL calls it at each checkpoint and before a push."""

    def create_model_card(self, *positional: Any, **named: Any) -> None:
        """TRL's card, and replay in it."""
        super().create_model_card(*positional, **named)
        if self.is_world_process_zero():
            add_replay_to_card(os.path.join(self.args.output_dir, "README.md"), self.replay)


def _section(settings: Any) -> str:
    if not isinstance(settings, Mapping):
        settings = {item.name: getattr(settings, item.name) for item in fields(settings)}
    rows = [f"| `{name}` | {_shown(value)} |" for name, value in settings.items() if not _empty(value)]
    about = f"Rollouts were kept and drawn again with Ostinato, as in {PAPER}."
    return "\n".join([TITLE, "", about, "", "| setting | value |", "|---|---|", *rows])


def _empty(value: Any) -> bool:
    return value is None or (isinstance(value, (tuple, list, dict, str)) and not value)


def _shown(value: Any) -> str:
    """A value in a cell of a table: parts of a buffer by name and settings, functions by name."""
    if isinstance(value, (tuple, list)):
        text = ", ".join(_shown(item) for item in value)
    elif is_dataclass(value) and not isinstance(value, type):
        given = {item.name: getattr(value, item.name) for item in fields(value) if item.init and item.repr}
        text = f"{type(value).__name__}({', '.join(f'{name}={_shown(item)}' for name, item in given.items())})"
    elif isinstance(value, (str, int, float, bool, Mapping)):
        text = str(value)
    elif callable(value) and hasattr(value, "__name__"):
        text = str(value.__name__)
    else:  # a sampler: its plain settings
        given = {name: item for name, item in vars(value).items() if _is_setting(name, item)}
        text = f"{type(value).__name__}({', '.join(f'{name}={_shown(item)}' for name, item in given.items())})"
    return text.replace("|", "\\|").replace("\n", " ")


def _is_setting(name: str, value: Any) -> bool:
    return not name.startswith("_") and isinstance(value, (str, int, float, bool))
