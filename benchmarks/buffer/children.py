"""Measurements that need a process of their own: clean memory, or another allocator."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .machine import default_environment, steady_environment

ROOT = Path(__file__).parents[2]


class ChildError(Exception):
    """A child ended with an error; the message is its last line."""


def measured(module: str, *arguments: object, steady: bool, timeout_s: float = 600) -> dict[str, Any]:
    """Run `python -m benchmarks.buffer.MODULE ARGUMENTS` and return the JSON object it prints last.

    `steady`: with the steady allocator, else as it comes. Raises `ChildError`.
    """
    command = [sys.executable, "-W", "ignore", "-m", f"{__package__}.{module}", *map(str, arguments)]
    environment: Mapping[str, str] = steady_environment() if steady else default_environment()
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        raise ChildError(f"{module} did not end within {timeout_s:.0f} s") from None
    if done.returncode:
        raise ChildError((done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1])
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer
