"""Snapshot files: they hold every dtype exactly, tell every kind of damage, and are whole or absent."""

import errno
import json
import os
import struct
import tracemalloc
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ostinato.buffer import durable, snapshot
from ostinato.buffer.snapshot import FORMAT, HEAD, MAGIC, Chunks, SnapshotFile, load_arrays, save_arrays
from ostinato.errors import CheckpointError, DataError

ARRAYS = {
    "tokens": np.arange(100, dtype=np.int32),
    "mask": np.arange(7) % 2 == 0,
    "nothing": np.empty((0, 3), np.float32),
    "scalar": np.array(-0.0),
    "names": np.array(["a", "longer", "λ"]),
}


@pytest.fixture
def path(tmp_path):
    save_arrays(tmp_path / "s.ost", {"step": 7}, ARRAYS)
    return tmp_path / "s.ost"


def refused(path):
    """The message of the one-line error that opening and reading the file gives; it names the file, which stays."""
    before = path.read_bytes()
    with pytest.raises(CheckpointError) as caught:
        load_arrays(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)
    assert path.read_bytes() == before
    return str(caught.value)


def test_snapshot_when_loaded_gives_header_and_arrays_bit_for_bit(path) -> None:
    header, arrays = load_arrays(path)
    assert header == {"step": 7}
    assert list(arrays) == list(ARRAYS)
    for name, array in ARRAYS.items():
        assert arrays[name].dtype == array.dtype and arrays[name].shape == array.shape
        assert arrays[name].tobytes() == array.tobytes()
        assert arrays[name].flags.writeable


@settings(max_examples=60)
@given(
    hnp.arrays(
        st.one_of(
            hnp.scalar_dtypes(),
            hnp.unicode_string_dtypes(),
            hnp.byte_string_dtypes(),
            hnp.array_dtypes(hnp.integer_dtypes()),
        ),
        hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
    )
)
def test_array_when_of_any_dtype_and_shape_returns_bit_for_bit(tmp_path_factory, array) -> None:
    path = tmp_path_factory.mktemp("any") / "a"
    save_arrays(path, {}, {"turned": array.T, "a": array})
    loaded = load_arrays(path)[1]
    assert loaded["a"].dtype == array.dtype and loaded["a"].shape == array.shape
    assert loaded["a"].tobytes() == array.tobytes()
    assert loaded["turned"].tobytes() == array.T.tobytes()


def test_file_when_written_is_the_payload_and_little_more(tmp_path) -> None:
    payload = np.zeros(1 << 20, np.uint8)
    nbytes = save_arrays(tmp_path / "s", {}, {"a": payload})
    assert nbytes == (tmp_path / "s").stat().st_size < len(payload) + 256


def test_chunks_when_written_are_one_array_and_never_stand_together(tmp_path) -> None:
    def pieces():
        for index in range(64):
            yield np.full((1 << 10, 256), index, np.uint32)  # 1 MiB each

    tracemalloc.start()
    save_arrays(tmp_path / "s", {}, {"slabs": Chunks(np.dtype(np.uint32), (256,), pieces())})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 << 20
    loaded = load_arrays(tmp_path / "s")[1]["slabs"]
    assert loaded.shape == (64 << 10, 256)
    np.testing.assert_array_equal(loaded[:: 1 << 10, 0], np.arange(64))


def test_chunks_when_a_piece_differs_from_what_was_announced_are_refused(tmp_path) -> None:
    (tmp_path / "s").write_text("old")
    for piece in (np.zeros(3, np.int64), np.zeros((3, 2), np.int32), np.array(3, np.int32)):
        with pytest.raises(DataError, match="'slabs'"):
            save_arrays(tmp_path / "s", {}, {"slabs": Chunks(np.dtype(np.int32), (), iter([piece]))})
    assert (tmp_path / "s").read_text() == "old" and os.listdir(tmp_path) == ["s"]


def test_section_when_read_into_given_memory_fills_it_without_another_copy(path) -> None:
    slabs = [np.empty(60, np.int32), np.empty(0, np.int32), np.empty(40, np.int32)]
    with SnapshotFile(path) as file:
        assert file.sections["tokens"].shape == (100,)
        file.read("tokens", slabs)
        one = np.empty((10, 10), np.int32)
        assert file.read("tokens", one) is one
    np.testing.assert_array_equal(np.concatenate(slabs), ARRAYS["tokens"])
    np.testing.assert_array_equal(one.ravel(), ARRAYS["tokens"])


def test_section_when_the_given_memory_does_not_fit_is_refused(path) -> None:
    with SnapshotFile(path) as file:
        for memory in (np.empty(100, np.int64), np.empty(99, np.int32), np.empty(200, np.int32)[::2]):
            with pytest.raises(DataError, match="'tokens'"):
                file.read("tokens", memory)
        with pytest.raises(CheckpointError, match="lacks the array 'gone'"):
            file.read("gone")


@pytest.mark.parametrize("array", [np.array([object()]), np.zeros(2, "V2,O")], ids=["object", "record of objects"])
def test_array_when_it_holds_objects_is_refused_and_the_old_file_stays(path, array) -> None:
    before = path.read_bytes()
    with pytest.raises(DataError, match="'bad'"):
        save_arrays(path, {}, {"good": np.zeros(3), "bad": array})
    assert path.read_bytes() == before and os.listdir(path.parent) == [path.name]


# ---------------------------------------------------------------- damage


def test_byte_when_flipped_anywhere_is_noticed(path) -> None:
    content = path.read_bytes()
    for position in range(len(content)):
        damaged = bytearray(content)
        damaged[position] ^= 1 << position % 8
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError):
            load_arrays(path)
    path.write_bytes(content)
    load_arrays(path)


def test_file_when_cut_short_anywhere_or_longer_is_refused(path) -> None:
    content = path.read_bytes()
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(CheckpointError):
            load_arrays(path)
    path.write_bytes(content[:-1])
    assert f"truncated: {len(content) - 1} bytes, expected {len(content)}" in refused(path)
    path.write_bytes(content + b"\0")
    assert "longer than it was written" in refused(path)


def test_damage_when_reported_says_what_is_wrong(path) -> None:
    content = path.read_bytes()

    def with_bytes(position, data):
        path.write_bytes(content[:position] + data + content[position + len(data) :])
        return refused(path)

    assert "'tokens' do not match their CRC32" in with_bytes(HEAD.size, b"\xff")
    assert "its index does not match" in with_bytes(len(content) - 1, b"?")
    assert "its head does not match" in with_bytes(12, b"\xff")
    assert f"format {FORMAT + 1}, this version reads {FORMAT}" in with_bytes(8, struct.pack("<I", FORMAT + 1))
    assert "is no snapshot: it begins with b'PK" in with_bytes(0, b"PK\x03\x04")
    path.write_bytes(b"")
    assert "is no snapshot" in refused(path)
    path.write_bytes(MAGIC)
    assert "is truncated: 8 bytes" in refused(path)


def test_path_when_missing_or_no_file_is_a_checkpoint_error(tmp_path) -> None:
    with pytest.raises(CheckpointError, match="No such file"):
        load_arrays(tmp_path / "missing")
    with pytest.raises(CheckpointError, match="no regular file"):
        load_arrays(tmp_path)
    os.mkfifo(tmp_path / "pipe")  # opening it would wait for a writer
    with pytest.raises(CheckpointError, match="no regular file"):
        load_arrays(tmp_path / "pipe")


def rewritten(path, change):
    """The file with another index, all CRCs right: what a faulty writer or a forger could make."""
    content = path.read_bytes()
    magic, version, _, offset, length, _, _ = HEAD.unpack(content[: HEAD.size])
    index = json.loads(content[offset : offset + length])
    change(index)
    new = json.dumps(index).encode()
    head = HEAD.pack(magic, version, offset + len(new), offset, len(new), zlib.crc32(new), 0)[:-4]
    path.write_bytes(head + struct.pack("<I", zlib.crc32(head)) + content[HEAD.size : offset] + new)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("dtype", "|O"),
        ("dtype", "nonsense"),
        ("dtype", 3),
        ("shape", [1 << 60]),
        ("shape", [-100]),
        ("shape", "x"),
        ("offset", 65),
        ("nbytes", 401),
    ],
)
def test_index_when_it_makes_no_sense_is_refused_before_memory_is_taken(path, field, value) -> None:
    rewritten(path, lambda index: index["sections"][0].update({field: value}))
    assert "makes no sense" in refused(path)


@pytest.mark.parametrize("index", [{}, {"header": 3}, {"header": {}, "sections": [{}]}], ids=str)
def test_index_when_entries_are_missing_is_refused(path, index) -> None:
    rewritten(path, lambda old: (old.clear(), old.update(index)))
    assert "makes no sense" in refused(path)


def test_file_when_it_shrinks_while_open_gives_an_error_not_a_signal(path) -> None:
    with SnapshotFile(path) as file:
        os.truncate(path, HEAD.size + 10)
        with pytest.raises(CheckpointError, match="ends inside 'tokens'"):
            file.read("tokens")


# ---------------------------------------------------------------- replacement


@pytest.mark.parametrize("step", ["write", "fsync", "rename"])
def test_old_file_when_the_disk_refuses_at_any_step_stays(path, monkeypatch, step) -> None:
    before = path.read_bytes()

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    if step == "write":
        monkeypatch.setattr(snapshot, "write_all", full)
    else:
        monkeypatch.setattr(durable.os, {"fsync": "fsync", "rename": "replace"}[step], full)
    with pytest.raises(OSError, match="No space left"):
        save_arrays(path, {}, {"a": np.zeros(1000)})
    monkeypatch.undo()
    assert path.read_bytes() == before and os.listdir(path.parent) == [path.name]


def test_unfinished_files_when_their_writer_is_dead_are_removed_and_those_of_living_ones_stay(path) -> None:
    dead = path.parent / ".ostinato.dead.part"
    dead.write_bytes(b"half")
    with durable.file_in_place(path.parent / "other") as handle:
        os.write(handle, b"living")
        save_arrays(path, {}, {})
        assert not dead.exists()
    assert (path.parent / "other").read_bytes() == b"living"
    assert sorted(os.listdir(path.parent)) == ["other", path.name]


def test_link_when_saved_to_stays_a_link(path) -> None:
    link = path.parent / "link"
    link.symlink_to(path)
    save_arrays(link, {"through": "link"}, {})
    assert link.is_symlink() and load_arrays(path)[0] == {"through": "link"}
    assert path.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("kind", ["pipe", "directory", "loop", "device"])
def test_save_when_the_target_is_no_regular_file_refuses_and_leaves_it(tmp_path, kind) -> None:
    path = tmp_path / "target"
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "directory":
            path.mkdir()
        case "loop":
            path.symlink_to(path)
        case "device":
            path = Path("/dev/null")
    before = os.lstat(path).st_mode
    with pytest.raises(OSError):
        save_arrays(path, {}, {"x": np.zeros(3)})
    assert os.lstat(path).st_mode == before
    assert [each.name for each in tmp_path.iterdir()] == ([] if kind == "device" else ["target"])


@pytest.mark.parametrize("path", [None, "a\0b", b"x\0"])
def test_load_when_the_path_is_none_gives_a_checkpoint_error(path) -> None:
    with pytest.raises(CheckpointError):
        load_arrays(path)
