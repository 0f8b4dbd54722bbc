"""`ostinato report`."""

from __future__ import annotations

from argparse import Namespace

from ostinato.errors import ConfigError
from ostinato.report import write_report


def run(arguments: Namespace) -> int:
    """Write report.html; returns the exit code."""
    if arguments.overrides:
        raise ConfigError(f"report takes no settings, got {arguments.overrides[0]!r}")
    print(write_report(arguments.run_directory))
    return 0
