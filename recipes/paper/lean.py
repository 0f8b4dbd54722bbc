"""Whether a Lean 4 proof checks: the scorer of `qwen3-8b-lean.toml`.

The proof in the completion, what follows `:=`, is put behind the theorem's own statement and given to Lean, which must
accept it and derive it from nothing but Lean's standard axioms. So a completion can change neither the statement nor
what stands before it, and `sorry` or an axiom of its own earn nothing.

`lake env lean` runs in `$OSTINATO_LEAN_PROJECT`, a Lean project that imports what the headers of the problems do
(Mathlib), built. A proof that takes too long is ended, Lean included, by `task.score_timeout_s`.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

PROJECT = "OSTINATO_LEAN_PROJECT"
STANDARD_AXIOMS = {"propext", "Classical.choice", "Quot.sound"}
_BLOCK = re.compile(r"```(?:lean4?|)[ \t]*\n(.*?)```", re.DOTALL)
_NAME = re.compile(r"\b(?:theorem|lemma)\s+([^\s({\[:]+)")


def proof_checks(completion: str, details: Mapping[str, str]) -> float:
    """1 when Lean accepts the proof in the last code block of the completion. Raises `OSError` without a project."""
    blocks = _BLOCK.findall(completion)
    if not blocks:
        return 0.0
    name = _NAME.search(details["formal_statement"])
    if name is None:
        raise ValueError(f"expected a theorem in formal_statement, got {details['formal_statement'][:80]!r}")
    return float(_is_proved(source(details["header"], details["formal_statement"], blocks[-1], name[1]), name[1]))


def source(header: str, statement: str, proof: str, name: str) -> str:
    """The file that Lean checks: statement up to its `:=`, the proof, and a question for the axioms it used."""
    opening = statement.rstrip().removesuffix("sorry").rstrip().removesuffix("by").rstrip().removesuffix(":=").rstrip()
    body = proof.strip().removeprefix(":=").strip()
    return f"{header.strip()}\n\n{opening} :=\n{body}\n\n#print axioms {name}\n"


def _is_proved(text: str, name: str) -> bool:
    project = os.environ.get(PROJECT, "")
    if not Path(project, "lakefile.lean").exists() and not Path(project, "lakefile.toml").exists():
        raise OSError(f"${PROJECT} must name a Lean project (with a lakefile), got {project!r}")
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory, "Proof.lean")
        file.write_text(text, encoding="utf-8")
        done = subprocess.run(
            ["lake", "env", "lean", str(file)],
            cwd=project,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            check=False,
        )
    return done.returncode == 0 and axioms_used(done.stdout, name) <= STANDARD_AXIOMS


def axioms_used(output: str, name: str) -> set[str]:
    """What Lean's last answer about the theorem says that it rests on; `sorryAx` where it says nothing."""
    answers = re.findall(
        rf"^.*'{re.escape(name)}' (?:does not depend on any axioms|depends on axioms: \[([^\]]*)\])",
        output,
        re.MULTILINE,
    )
    if not answers:
        return {"sorryAx"}
    return {axiom for axiom in re.split(r"[,\s]+", answers[-1]) if axiom}
