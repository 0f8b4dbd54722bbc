"""The command line: parse, then import, then run. Nobody imports this room."""

from ostinato.cli.main import main

__all__ = ["main"]
