"""Killed at random moments, also in the middle of a rotation: nothing acknowledged is lost or doubled."""

import pytest
from crashing import crash


@pytest.mark.parametrize(
    ("kind", "sync", "kills"), [("queue", "process", 10), ("fifo", "process", 10), ("queue", "disk", 5)]
)
def test_process_when_killed_at_random_moments_loses_nothing_acknowledged(tmp_path, kind, sync, kills) -> None:
    ledger = crash(kind, tmp_path / "journal", kills, sync=sync, seed=kills)
    assert ledger.kills == kills
    assert ledger.operations > 10 * kills and len(ledger.added) > 10 * kills
