"""A directory of rings for each test."""

import pytest

from ostinato.sharing import shared_directory


@pytest.fixture
def rings(tmp_path):
    with shared_directory(tmp_path) as path:
        yield path
