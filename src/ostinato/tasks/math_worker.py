"""The helper process of `math_judge`: answers `[gold, text]` lines with true, false or null (no mathematics in gold).

Run as a script, never imported. Math-Verify bounds its running time with a signal, which only a main thread receives;
here it always runs in one.
"""

from __future__ import annotations

import json
import sys

STEP_SECONDS = 3
_DELIMITERS = ("$", "\\boxed", "\\(", "\\[")


def main() -> None:
    """Serve until standard input ends; standard output carries nothing but answers."""
    from math_verify import parse, verify

    replies, sys.stdout = sys.stdout, sys.stderr
    print("ready", file=replies, flush=True)
    for line in sys.stdin:
        gold, text = json.loads(line)
        delimited = gold if any(mark in gold for mark in _DELIMITERS) else f"${gold}$"
        expected = parse(delimited, parsing_timeout=STEP_SECONDS)
        verdict = None
        if expected:
            verdict = verify(expected, parse(text, parsing_timeout=STEP_SECONDS), timeout_seconds=STEP_SECONDS)
        print(json.dumps(verdict), file=replies, flush=True)


if __name__ == "__main__":
    main()
