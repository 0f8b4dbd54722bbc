"""Files that are whole or absent, and readers that name what is not theirs."""

import subprocess
import sys

import pytest

from ostinato.errors import CheckpointError, DataError
from ostinato.telemetry import (
    JsonlWriter,
    directory_in_place,
    read_json_object,
    read_jsonl,
    remove_unfinished,
    write_json,
)

STEP = b'{"event": "step", "compute": 1.0}\n'


def test_json_object_when_written_is_read_back(tmp_path) -> None:
    write_json(tmp_path / "a.json", {"a": float("nan"), "b": [1, 2.5]})
    assert read_json_object(tmp_path / "a.json", required=("a", "b")) == {"a": None, "b": [1, 2.5]}
    with pytest.raises(DataError, match=r"a\.json lacks 'c', got the keys \['a', 'b'\]"):
        read_json_object(tmp_path / "a.json", required=("a", "c"))
    with pytest.raises(FileNotFoundError):
        read_json_object(tmp_path / "b.json")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not JSON"),
        (b"{", "is not JSON"),
        (b'{"a": "\xff"}', "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"[]", "holds a list, expected an object"),
        (b"null", "holds null, expected an object"),
        (b"3", "holds a int, expected an object"),
    ],
)
def test_json_object_when_it_is_something_else_is_refused_in_one_line(tmp_path, content, message) -> None:
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(DataError, match=rf"a\.json {message}") as caught:
        read_json_object(tmp_path / "a.json")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "line", [b"garbage", b"[1, 2]", b'{"a": 1}', b"null", b"\xff", b'{"event": "evaluation", "compute": 0}']
)
def test_metrics_when_a_line_in_the_middle_is_damaged_are_refused_by_its_number(tmp_path, line) -> None:
    (tmp_path / "m.jsonl").write_bytes(STEP + line + b"\n" + STEP)
    with pytest.raises(DataError, match=r"m\.jsonl:2 "):
        read_jsonl(tmp_path / "m.jsonl")


def test_metrics_when_the_last_line_is_torn_drop_it(tmp_path) -> None:
    (tmp_path / "m.jsonl").write_bytes(2 * STEP + STEP[:-3])
    assert read_jsonl(tmp_path / "m.jsonl") == 2 * [{"event": "step", "compute": 1.0}]


def test_writer_when_it_goes_on_keeps_so_many_bytes_and_no_fewer(tmp_path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_bytes(3 * STEP)
    writer = JsonlWriter(path, keep_bytes=2 * len(STEP))
    assert writer.position == 2 * len(STEP)
    writer.close()
    with pytest.raises(CheckpointError, match=rf"has {2 * len(STEP)} bytes, .* at least {3 * len(STEP)}"):
        JsonlWriter(path, keep_bytes=3 * len(STEP))
    assert path.read_bytes() == 2 * STEP
    with pytest.raises(CheckpointError, match="has 0 bytes"):
        JsonlWriter(tmp_path / "none.jsonl", keep_bytes=1)
    assert not (tmp_path / "none.jsonl").exists()


def make(path, text) -> None:
    with directory_in_place(path) as fresh:
        (fresh / "file").write_text(text)


def test_directory_when_replaced_is_new_and_nothing_is_left_beside_it(tmp_path) -> None:
    make(tmp_path / "d", "old")
    make(tmp_path / "d", "new")
    assert (tmp_path / "d" / "file").read_text() == "new"
    with pytest.raises(KeyError), directory_in_place(tmp_path / "d"):
        raise KeyError
    assert [path.name for path in tmp_path.iterdir()] == ["d"]
    assert (tmp_path / "d" / "file").read_text() == "new"


KILLED = """
import os, shutil, sys
from pathlib import Path
from ostinato.telemetry import directory_in_place
rename, left = os.replace, int(sys.argv[2])
def replace(source, target):
    global left
    if left == 0:
        os._exit(9)
    left -= 1
    rename(source, target)
os.replace, shutil.rmtree = replace, lambda *a, **k: os._exit(9)
with directory_in_place(Path(sys.argv[1])) as fresh:
    (fresh / "file").write_text("new")
"""


@pytest.mark.parametrize("renames", [0, 1, 2])
def test_directory_when_the_process_dies_while_replacing_it_is_whole_after_tidying(tmp_path, renames) -> None:
    make(tmp_path / "d", "old")
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "d"), str(renames)], check=False)
    assert done.returncode == 9
    remove_unfinished(tmp_path, "d")
    assert [path.name for path in tmp_path.iterdir()] == ["d"]
    assert (tmp_path / "d" / "file").read_text() == ("new" if renames == 2 else "old")
