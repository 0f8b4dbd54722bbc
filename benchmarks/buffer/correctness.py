"""G12: what a fast buffer must not get wrong. Each gate is a small experiment that holds or not."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ostinato.buffer import MinSize, Uniform
from ostinato.buffer.sampling import Exponential, Prioritized
from ostinato.errors import DataError
from ostinato.rollouts import Rollouts

from .peer_failures import FAILURES
from .results import Line, judged, most, skipped
from .setting import Setting
from .subject import Ostinato

UPDATES, TAU, EXPONENT = 1_000_000, 50.0, 0.6


def correctness(setting: Setting) -> list[Line]:
    """Failures of each gate, 0 allowed; then a gate that each peer fails."""
    if not setting.is_long:
        return []
    lines = []
    for name, gate in GATES.items():
        lines.append(
            judged("G12", "any", name, float(gate(setting.quick)), "", must=most(1e-9 if "exact" in name else 0))
        )
    for peer, (what, fails) in FAILURES.items():
        try:
            text = f"{peer}: {what}: {'yes' if fails() else 'no'}"
            lines.append(Line("G12", "any", text, "figure"))
        except (ImportError, RuntimeError) as error:
            lines.append(skipped("G12", "any", peer, str(error)))
    return lines


def _rollouts(lengths: list[int], first: int = 0) -> Rollouts:
    rows = [list(range(first + i + 1, first + i + 1 + length)) for i, length in enumerate(lengths)]
    return Rollouts.from_completions([[7]] * len(rows), rows, [[-0.5] * len(row) for row in rows])


def _aliasing(quick: bool) -> int:
    """Arrays that change along with what was put in or given out."""
    subject, rollouts = Ostinato(4, limiter=MinSize(1)), _rollouts([5, 6, 7, 8])
    want = rollouts.tokens.copy()
    subject.insert(rollouts)
    rollouts.tokens[:] = rollouts.behavior_logprobs[:] = rollouts.reward[:] = -9
    drawn = subject.packed(64)
    drawn.rollouts.tokens[:] = -9
    again = subject.packed(64)
    wrong_in = int(np.any(drawn.rollouts.reward == -9))
    return wrong_in + int(not np.isin(again.rollouts.tokens, want).all())


def _stale(quick: bool) -> int:
    """Write-backs to rollouts that left: how many landed, and priorities of others that changed."""
    subject = Ostinato(4, sampler=Prioritized())
    gone = subject.insert(_rollouts([5, 6, 7, 8]))
    subject.insert(_rollouts([5, 6, 7, 8]))
    before = subject.buffer.columns["priority"].copy()
    landed = subject.buffer.update_priorities(gone, np.full(4, 1e6))
    return landed + int((subject.buffer.columns["priority"] != before).sum())


def _probabilities(quick: bool) -> float:
    """Largest relative error against brute force after a million updates over sixteen decades and decay."""
    n, rng = 1000, np.random.default_rng(0)
    sampler = Prioritized(exponent=EXPONENT, decay=Exponential(TAU))
    subject = Ostinato(n, sampler=sampler)
    for step in range(100):
        subject.buffer.add(_rollouts([3] * 10), train_step=step)
    for step in range(100, 100 + (50 if quick else UPDATES // 500)):
        ids = rng.choice(n, 500, replace=False)
        subject.buffer.update_priorities(ids, 10.0 ** rng.uniform(-8, 8, 500))
        subject.buffer.sample(8, train_step=step, rng=rng)
    columns = subject.buffer.columns
    age = subject.buffer.train_step - columns["insert_step"]
    exact = (columns["priority"] * np.exp(-age / TAU)) ** EXPONENT
    exact /= exact.sum()
    got = sampler.probabilities(columns, np.arange(n))
    return float(np.max(np.abs(got - exact) / exact))


def _lengths(quick: bool) -> int:
    """Rollouts of other lengths than the first that were refused or changed."""
    subject, lengths = Ostinato(64, limiter=MinSize(1)), [1, 40, 3, 20_000]
    for length in lengths:
        subject.insert(_rollouts([length]))
    got = {
        int(i): int(n)
        for batch in [subject.packed(200)]
        for i, n in zip(batch.rollout_ids, batch.rollouts.lengths, strict=True)
    }
    return sum(got.get(i) != length + 1 for i, length in enumerate(lengths))


def _broadcast(quick: bool) -> int:
    """Rows of one value, or of another length, that were taken for rows of many."""
    taken = 0
    for logprobs in ([-0.5], [-0.5] * 6):
        try:
            Ostinato(4).insert(Rollouts.from_completions([[1]], [[1, 2, 3]], [logprobs]))
            taken += 1
        except DataError:
            pass
    return taken


def _sizes(quick: bool) -> int:
    """Batches of another size than asked for, with and without replacement, near the end of an epoch too."""
    wrong = 0
    for replacement in (True, False):
        subject = Ostinato(100, sampler=Uniform(replacement))
        subject.insert(_rollouts([4] * 100))
        wrong += sum(len(subject.packed(60)) != 60 for _ in range(20))
    return wrong


def _restored(quick: bool) -> int:
    """Differences after a save and a load: draws, priorities, the next id."""
    first, second = (Ostinato(64, sampler=Prioritized(beta=0.4)) for _ in range(2))
    first.insert(_rollouts([5] * 64))
    ids = first.insert(_rollouts([5] * 16))
    first.buffer.update_priorities(ids, np.linspace(0.1, 5, 16))
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "buffer"
        first.buffer.save(path, draws=first.rng)
        second.rng = second.buffer.load(path)["draws"]
    wrong = int((first.buffer.columns["priority"] != second.buffer.columns["priority"]).sum())
    wrong += sum(bool(np.any(first.packed(16).rollout_ids != second.packed(16).rollout_ids)) for _ in range(1000))
    return wrong + int(np.any(first.insert(_rollouts([5])) != second.insert(_rollouts([5]))))


GATES: dict[str, Callable[[bool], float]] = {
    "arrays that alias what went in or came out": _aliasing,
    "stale handles that landed": _stale,
    "error of exact probabilities, 1e6 updates and decay": _probabilities,
    "ragged rows refused or changed": _lengths,
    "rows silently broadcast": _broadcast,
    "batches of a wrong size": _sizes,
    "differences after a checkpoint, 1,000 draws": _restored,
}
