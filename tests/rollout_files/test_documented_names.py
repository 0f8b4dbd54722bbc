"""The table of names in the documents is the one the code has."""

import re
from pathlib import Path

from ostinato.cli.main import build_parser
from ostinato.rollout_files.names import FIELD_OF, NAMES

DOCUMENT = Path(__file__).parent.parent.parent / "docs" / "buffer-files.md"


def test_names_when_documented_are_those_understood() -> None:
    section = DOCUMENT.read_text(encoding="utf-8").partition("## What a line may be called")[2].partition("\n* ")[0]
    rows = re.findall(r"^\| `(\w+)` \|(.*)\|$", section, re.MULTILINE)
    assert {field: tuple(re.findall(r"`(\w+)`", names)) for field, names in rows} == NAMES


def test_names_when_listed_are_each_of_one_field() -> None:
    assert len(FIELD_OF) == sum(1 + len(names) for names in NAMES.values())


def test_commands_when_documented_parse() -> None:
    found = re.findall(r"^    ostinato (buffer .*)$", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(found) == 4
    for line in found:
        _, left = build_parser().parse_known_args(line.split())
        assert left == []
