"""What stands beside the recipes: problems with right answers, a scorer that asks Lean."""

import importlib.util
import json
import os
import re
from fractions import Fraction
from functools import partial
from pathlib import Path

import pytest

from ostinato.config import TaskConfig
from ostinato.protocols import Task
from ostinato.tasks import ScorePool, create, load_scorer
from ostinato.tasks.score_process import TIMEOUT, Mark
from ostinato.tasks.scoring import open_comparison

RECIPES = Path(__file__).parent.parent.parent / "recipes"
PROBLEMS = RECIPES / "smollm2" / "problems.jsonl"
LEAN = f"{RECIPES / 'paper' / 'lean.py'}:proof_checks"
STATEMENT = "theorem one_lt_two (n : Nat) : n + 1 < n + 2 := by\n  sorry"


def module(path: Path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def test_problems_are_those_that_the_script_makes() -> None:
    maker = module(RECIPES / "smollm2" / "make_problems.py")
    assert PROBLEMS.read_text("utf-8").splitlines() == maker.lines()
    rows = [json.loads(line) for line in maker.lines()]
    assert len(rows) == 96 == len({row["question"] for row in rows})
    assert sum(row["split"] == "test" for row in rows) == 32
    assert len({row["answer"] for row in rows}) > 60
    assert all(fraction > -100 for row in rows for fraction in [Fraction(row["answer"])])


def test_answers_are_right_where_another_hand_worked_them() -> None:
    answers = {row["question"]: row["answer"] for row in map(json.loads, PROBLEMS.read_text("utf-8").splitlines())}
    for start, answer in {
        "A baker puts 12 rolls": "37",
        "Three friends share 120": "50",
        "What fraction of an hour are 24": "2/5",
        "A snail climbs 30": "60",
        "In the morning it is 4": "-5",
        "A recipe for 3": "560",
        "A farmer has hens and cows, 35": "12",
        "A car uses 5": "16.5",
        "A password has 3": "64",
        "A shop sold 14": "44",
        "A clock is 3": "31",
    }.items():
        assert [found for question, found in answers.items() if question.startswith(start)] == [answer]


def test_every_gold_answer_is_accepted_and_no_other_by_the_recipes_scoring() -> None:
    pytest.importorskip("math_verify")
    tasks = create(TaskConfig(name="jsonl", file=str(PROBLEMS), scoring="math-verify", test_prompts=32))
    verify = open_comparison("math-verify")
    for task in [*tasks.test, *map(tasks.train, range(64))]:
        assert verify(task, f"So it is \\boxed{{{task.answer}}}.") == 1
        assert verify(task, f"So it is \\boxed{{{task.answer}7}}.") == 0


@pytest.fixture
def lean(tmp_path: Path, monkeypatch):
    """A `lake` that accepts what holds the word "omega", in the form of Lean's own answers."""
    project, programs = tmp_path / "project", tmp_path / "bin"
    project.mkdir()
    programs.mkdir()
    (project / "lakefile.toml").write_text('name = "problems"\n')
    (programs / "lake").write_text(
        "#!/bin/sh\n"
        'test "$1 $2" = "env lean" || exit 9\n'
        'cat "$3" >> asked.lean\n'
        'if grep -q hang "$3"; then sleep 1000; fi\n'
        'if grep -q "axiom cheat" "$3"; then echo "\'one_lt_two\' depends on axioms: [propext, cheat]"; exit 0; fi\n'
        'if grep -q "sorry" "$3"; then\n'
        '  echo "Proof.lean:3:8: warning: declaration uses sorry"\n'
        "  echo \"'one_lt_two' depends on axioms: [sorryAx]\"; exit 0\n"
        "fi\n"
        'grep -q omega "$3" || { echo "error: unsolved goals"; exit 1; }\n'
        "echo \"'one_lt_two' depends on axioms: [propext,\"\n"
        'echo " Quot.sound]"\n'
    )
    (programs / "lake").chmod(0o755)
    monkeypatch.setenv("OSTINATO_LEAN_PROJECT", str(project))
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    return project


def proof(text: str) -> tuple[Task, str]:
    details = {"header": "import Mathlib\nopen Nat", "formal_statement": STATEMENT, "name": "one_lt_two"}
    return Task(STATEMENT, "", 0, "lean", details), f"I prove it.\n```lean\n{text}\n```\nDone."


def test_lean_is_asked_for_this_statement_with_that_proof(lean: Path) -> None:
    verify = load_scorer(LEAN)
    assert verify(*proof(":= by\n  omega")) == 1
    assert (lean / "asked.lean").read_text() == (
        "import Mathlib\nopen Nat\n\ntheorem one_lt_two (n : Nat) : n + 1 < n + 2 :=\nby\n  omega\n\n"
        "#print axioms one_lt_two\n"
    )
    assert verify(*proof("by simp")) == 0
    assert verify(*proof("by sorry -- omega")) == 0
    assert verify(*proof("by exact cheat\naxiom cheat : False -- omega")) == 0
    task, _ = proof("by omega")
    assert verify(task, "by omega, without a block") == 0


def test_lean_is_ended_with_its_scorer_when_a_proof_takes_too_long(lean: Path) -> None:
    pool = ScorePool(partial(load_scorer, LEAN), workers=1, timeout_s=3)
    assert pool.mark([proof("by hang"), proof("by omega")]) == [Mark(failure=TIMEOUT), Mark(reward=1.0)]
    pool.close()
    left = [p for p in Path("/proc").glob("[0-9]*/cwd") if re.match(str(lean), _target(p))]
    assert left == []


def test_an_answer_that_a_proof_printed_itself_does_not_count() -> None:
    axioms_used = module(RECIPES / "paper" / "lean.py").axioms_used
    printed = "'t' does not depend on any axioms\n'other' depends on axioms: [propext]\n"
    assert axioms_used(printed + "'t' depends on axioms: [sorryAx]\n", "t") == {"sorryAx"}
    assert axioms_used("", "t") == {"sorryAx"}
    assert axioms_used("x.lean:9:0: info: 't' does not depend on any axioms\n", "t") == set()


def test_without_a_project_the_scorer_says_what_it_needs(monkeypatch) -> None:
    monkeypatch.delenv("OSTINATO_LEAN_PROJECT", raising=False)
    with pytest.raises(OSError, match="OSTINATO_LEAN_PROJECT must name a Lean project"):
        load_scorer(LEAN)(*proof("by omega"))


def _target(link: Path) -> str:
    try:
        return os.readlink(link)
    except OSError:
        return ""
