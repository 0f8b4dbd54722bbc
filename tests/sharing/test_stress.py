"""Producers and consumers flat out, a checksum on every row, and producers killed on the way."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "sharing_stress.py"


@pytest.mark.parametrize(("sync", "seconds"), [("auto", 5.0), ("flock", 2.0)])
def test_four_producers_and_two_consumers_when_flat_out_tear_and_lose_no_row(tmp_path, sync, seconds) -> None:
    command = [sys.executable, SCRIPT, "--seconds", str(seconds), "--kill-every-s", "1.5", "--sync", sync]
    done = subprocess.run([*command, "--json", tmp_path / "figures.json"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert (figures["torn"], figures["missing"], figures["failed"]) == (0, 0, 0)
    assert figures["drawn"] > 0 and figures["drained"] > 0
