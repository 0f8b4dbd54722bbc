"""What the documents show is true: their code runs, their commands and settings exist."""

import contextlib
import io
import re
import shlex
from pathlib import Path

import pytest

from ostinato.cli.main import build_parser
from ostinato.recipe import apply_overrides, config_from_dict, recipe_tree

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_python_when_shown_runs_and_prints_what_stands_below(path) -> None:
    text = path.read_text(encoding="utf-8")
    for block in re.finditer(r"```python\n(.*?)```(?:\n\nprints\n\n```\n(.*?)```)?", text, re.DOTALL):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(block[1], str(path), "exec"), {})
        if block[2] is not None:
            assert printed.getvalue() == block[2]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_commands_when_shown_parse(path) -> None:
    for line in re.findall(
        r"^(?:\$ )?ostinato ((?:train|compare|eval|report|buffer|plan|simulate|check|doctor) .*)$",
        path.read_text("utf-8"),
        re.MULTILINE,
    ):
        words = shlex.split(line, comments=True)
        if "--help" in words or any(word.isupper() or "$" in word for word in words):
            continue
        arguments, overrides = build_parser().parse_known_args(words)
        if arguments.command in ("train", "compare", "check", "doctor") and arguments.recipe:
            tree = recipe_tree(ROOT / arguments.recipe, overrides)
            tree.pop("arms", None)
            config_from_dict(tree)
        elif arguments.command == "eval":
            config_from_dict(apply_overrides({"loop": {"train_steps": 1}}, overrides))


def test_links_when_local_lead_somewhere() -> None:
    for path in DOCUMENTS:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", path.read_text(encoding="utf-8")):
            assert (path.parent / target).exists(), f"{path.name}: {target}"
