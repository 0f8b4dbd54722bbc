"""Files of logged rollouts."""

import json

import pytest


@pytest.fixture
def lines(tmp_path):
    """Write records as JSONL."""

    def write(*records, tail=""):
        path = tmp_path / "logged.jsonl"
        path.write_text("".join(json.dumps(record) + "\n" for record in records) + tail)
        return path

    return write
