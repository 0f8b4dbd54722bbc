"""The crash test of the journal at length: `python benchmarks/crash_test.py --kills 500`.

A process adds rollouts to a journaled buffer, draws from it, acknowledges each operation, and is killed (SIGKILL) at a
random moment, half of the time a consume-once queue, half of the time the paper's buffer. Then the journal is reopened:
every acknowledged rollout must be there once, or drawn once, with its content and its uses. The next process goes on in
the same directory. Prints what was met; the exit code is 1 at the first contradiction.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "buffer" / "durability"))

from crashing import crash


def main() -> None:
    """Run both kinds and print the ledgers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--sync", choices=("process", "disk"), default="process")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    for index, kind in enumerate(("queue", "fifo")):
        begun, kills = time.perf_counter(), (options.kills + 1 - index) // 2
        with tempfile.TemporaryDirectory() as directory:
            ledger = crash(kind, Path(directory) / "journal", kills, sync=options.sync, seed=options.seed + index)
        print(
            f"{kind}: {ledger.kills} kills, {ledger.operations} operations acknowledged, {len(ledger.added)} rollouts "
            f"added and {sum(ledger.drawn.values())} draws, 0 lost, 0 doubled; {ledger.unacknowledged} operations on "
            f"record but not acknowledged, {ledger.torn} torn tails, {ledger.in_rotation} kills in a rotation; "
            f"{time.perf_counter() - begun:.0f} s"
        )


if __name__ == "__main__":
    main()
