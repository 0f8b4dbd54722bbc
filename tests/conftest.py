"""What all tests share."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

ONE_ENGINE = ("cluster", "vllm")
"""Rooms whose tests share what takes long to start: one worker process runs all of a room."""

LONG_FIRST = ("cluster", "simulation", "loop", "trl", "vllm", "hf", "cli")
"""Rooms that begin before the others, so that no process has minutes of work left when the others have none."""

# A shared machine may stall for longer than any deadline, and nothing here asserts times. CI sees the same examples
# every time, a person new ones.
settings.register_profile("house", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("house")


@pytest.hookimpl(tryfirst=True)  # before the processes read the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where several processes share the tests (`-n`): a file, whose fixtures are shared, stays in one of them, and
    `LONG_FIRST` begin."""
    for item in items:
        room = item.path.parent.name
        name = room if room in ONE_ENGINE else str(item.path.relative_to(Path(__file__).parent))
        item.add_marker(pytest.mark.xdist_group(name))
    items.sort(key=lambda item: (*LONG_FIRST, item.path.parent.name).index(item.path.parent.name))
