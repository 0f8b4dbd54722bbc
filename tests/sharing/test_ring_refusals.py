"""What cannot be, is damaged, foreign, or left by the dead is refused or removed, and nothing else changes."""

import asyncio
import errno
import json
import re
import zlib
from pathlib import Path

import numpy as np
import pytest
from shared_rows import RNG, SIZE, numbered, plain, seen

from ostinato import Rollouts, paper_fifo, sharing
from ostinato.errors import ConfigError, DataError, RunError
from ostinato.sharing import SharedProducer, SharedReader, directory, ring, shared_directory
from ostinato.sharing.directory import remove_abandoned


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"capacity": 0}, "capacity must be at least 1"),
        ({"capacity": 2.5}, "capacity must be an integer"),
        ({"capacity_bytes": 0}, "capacity_bytes must be at least 1"),
        ({"capacity_bytes": None}, "capacity_bytes must be an integer"),
        ({"sync": "mutex"}, "sync must be"),
        ({"wait_for_readers_s": 0.0}, "wait_for_readers_s"),
        ({"wait_for_readers_s": float("nan")}, "wait_for_readers_s must be above 0 or None, got nan"),
        ({"wait_for_readers_s": "x"}, "wait_for_readers_s"),
    ],
)
def test_settings_when_impossible_are_refused(rings, settings, message) -> None:
    with pytest.raises(ConfigError, match=message):
        SharedProducer(rings, "a", **(SIZE | settings))
    with pytest.raises(ConfigError, match="min_size"):
        SharedReader(rings, min_size=-1)
    with pytest.raises(ConfigError, match="part of a file name"):
        SharedReader(rings, name="../x")


def test_lock_free_reading_when_the_processor_reorders_is_refused(rings, monkeypatch) -> None:
    monkeypatch.setattr(ring.platform, "machine", lambda: "aarch64")
    with pytest.raises(ConfigError, match="needs an x86-64 processor, this is aarch64; use 'flock'"):
        SharedProducer(rings, "a", **SIZE, sync="seqlock")
    assert SharedProducer(rings, "b", **SIZE)._ring.settings.sync == "flock"
    monkeypatch.setattr(ring.platform, "machine", lambda: "x86_64")
    SharedProducer(rings, "c", **SIZE, sync="seqlock").close()
    monkeypatch.setattr(ring.platform, "machine", lambda: "aarch64")
    with pytest.raises(DataError, match="not for this machine"):
        SharedReader(rings)


def test_memory_when_there_is_not_enough_is_refused_and_given_back(rings) -> None:
    with pytest.raises(DataError, match="no room for"):
        SharedProducer(rings, "a", capacity=1, capacity_bytes=1 << 50)
    assert {path.name for path in rings.iterdir()} == {"index", "lock", "owner"}


def test_memory_when_the_system_cannot_reserve_it_is_written_instead(rings, monkeypatch) -> None:
    monkeypatch.delattr(directory.os, "posix_fallocate")
    producer = SharedProducer(rings, "a", capacity=8, capacity_bytes=3 << 20)
    producer.add(numbered(0, 8), train_step=0)
    assert seen(SharedReader(rings)) == set(range(8))
    assert (rings / "ring-0000").stat().st_blocks * 512 >= 3 << 20


def damaged(path, at: int, content: bytes) -> None:
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(content)


def settings_of_format(version: int) -> bytes:
    content = json.dumps({"anything": 1}).encode()
    frame = len(content).to_bytes(4, "little") + zlib.crc32(content).to_bytes(4, "little") + content
    return version.to_bytes(8, "little") + frame


@pytest.mark.parametrize(
    ("at", "content", "message"),
    [
        (0, b"GARBAGE!", "is not a shared ring"),
        (8, settings_of_format(7), "format 7, this version of ostinato reads 1"),
        (30, b"\xff\xff", "fails its checksum"),
        (8, settings_of_format(1), "are damaged or not for this machine"),
        (8192 + 20, b"\0\0\0", "fails its checksum"),
        (4096, (10**6).to_bytes(8, "little"), "damaged: rows 0 to 1000000"),
        (4096, (2**64 - 5).to_bytes(8, "little"), "damaged: rows"),
        ("records", b"\xff" * 64, "damaged: the record of row"),
    ],
)
def test_ring_when_foreign_or_damaged_gives_a_data_error(rings, at, content, message) -> None:
    producer = SharedProducer(rings, "a", **SIZE)
    producer.add(numbered(0, 64), train_step=0)
    if at == "records":
        at = (1 << 16) + (1 << 16)
        content *= producer._ring.records.nbytes // 64
    damaged(rings / "ring-0000", at, content)
    with pytest.raises(DataError, match=message):
        SharedReader(rings, min_size=1).sample(30, train_step=0, rng=RNG(0))


def test_directory_when_foreign_or_cut_gives_a_data_error(tmp_path) -> None:
    (tmp_path / "index").write_bytes(b"x" * 5000)
    with pytest.raises(DataError, match="not the index"):
        SharedReader(tmp_path)
    (tmp_path / "index").write_bytes(b"x")
    with pytest.raises(DataError, match="has 1 bytes, expected at least 4096"):
        SharedReader(tmp_path)
    (tmp_path / "index").unlink()
    (tmp_path / "ring-0003").write_bytes(b"OSTRING\0")
    with pytest.raises(DataError, match="expected at least 65536"):
        SharedReader(tmp_path)


@pytest.mark.parametrize("use", [SharedReader, lambda path: SharedProducer(path, "a", **SIZE)], ids=["read", "write"])
def test_directory_when_missing_or_of_another_program_is_refused_and_left_alone(tmp_path, use) -> None:
    with pytest.raises(DataError, match=r"there is no directory .*nowhere; shared_directory"):
        use(tmp_path / "nowhere")
    with shared_directory(tmp_path) as path:
        pass
    with pytest.raises(DataError, match="there is no directory"):  # its owner has removed it
        use(path)
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(DataError, match=r"holds 'thesis\.tex' but no index"):
        use(tmp_path)
    with pytest.raises(DataError, match="there is no directory"):
        use(tmp_path / "thesis.tex")
    assert [each.name for each in tmp_path.iterdir()] == ["thesis.tex"]


def test_readme_when_its_code_is_run_works() -> None:
    text = (Path(sharing.__file__).parent / "README.md").read_text("utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    names: dict = {}
    exec(compile(block, "README.md", "exec"), names)
    assert (len(names["draw"]), names["moved"], len(names["buffer"])) == (4, 4, 4)


def test_numpy_sizes_when_given_are_those_numbers(rings) -> None:
    producer = SharedProducer(rings, "a", capacity=np.int64(64), capacity_bytes=np.uint32(1 << 16))
    producer.add(numbered(0, 4), train_step=np.int64(0))
    assert len(SharedReader(rings, min_size=np.int64(2)).sample(4, train_step=np.int64(0), rng=RNG(0))) == 4


def bad(column: str, value: float) -> Rollouts:
    rollouts = numbered(0, 4)
    values = getattr(rollouts, column).copy()
    values[2] = value
    return rollouts.replace(**{column: values})


@pytest.mark.parametrize(
    ("rollouts", "message"),
    [
        (bad("reward", np.nan), "reward of rollout 2 is nan"),
        (bad("advantage", np.inf), "advantage of rollout 2 is inf"),
        (bad("behavior_logprobs", np.nan), "behavior_logprobs of rollout"),
        (bad("policy_version_max", 6), "policy_version_max 6 at train step 5"),
    ],
)
def test_rollouts_that_no_buffer_takes_when_added_to_a_ring_are_refused(rings, rollouts, message) -> None:
    producer, reader = SharedProducer(rings, "a", **SIZE), SharedReader(rings)
    with pytest.raises(DataError, match=message):
        producer.add(rollouts, train_step=5)
    assert len(reader) == 0 and producer.written == 0
    producer.add(numbered(0, 4), train_step=5)
    assert seen(reader) == set(range(4))


def test_sources_when_the_second_of_an_add_does_not_fit_leave_no_name_behind(rings) -> None:
    producer = SharedProducer(rings, "a", **SIZE)
    before = producer._ring.counters.tolist()
    with pytest.raises(DataError, match="fill the header"):
        producer.add(plain(2, source=["a" * 100, "b" * 40_000]), train_step=0)
    with pytest.raises(DataError, match="is no text"):
        producer.add(plain(2, source=["a", "\ud800"]), train_step=0)
    assert producer._ring.sources() == [] and producer._ring.counters.tolist()[22] == before[22]
    producer.add(plain(2, source=["c", "d"]), train_step=0)
    assert producer._ring.sources() == ["c", "d"]


def test_room_when_only_a_part_of_it_can_be_had_is_given_back(rings, monkeypatch) -> None:
    producer = SharedProducer(rings, "a", capacity=1000, capacity_bytes=1 << 20)
    path, real = rings / "ring-0000", directory.os.posix_fallocate
    size = path.stat().st_size

    def a_part(handle: int, start: int, length: int) -> None:
        real(handle, start, length - 1000)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(directory.os, "posix_fallocate", a_part)
    with pytest.raises(DataError, match="No space left"):
        producer.add(numbered(0, 1), train_step=0)
    assert path.stat().st_size == size
    monkeypatch.undo()
    assert producer.add(numbered(0, 1), train_step=0).tolist() == [0]


def test_files_when_their_names_are_almost_those_of_rings_are_ignored(rings) -> None:
    SharedProducer(rings, "a", **SIZE).add(numbered(0, 4), train_step=0)
    for name in ("ring-0x", "ring-\u00b2", "ring-1.bak"):
        (rings / name).write_bytes(b"x")
    assert seen(SharedReader(rings)) == set(range(4))


@pytest.mark.parametrize("name", ["index", "lock", "ring-0000"])
def test_directories_when_in_the_place_of_files_give_a_data_error(tmp_path, name) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(DataError, match=f"{name} cannot be opened: Is a directory"):
        SharedReader(tmp_path)


def test_reader_when_closed_refuses_everything(rings) -> None:
    SharedProducer(rings, "a", **SIZE).add(numbered(0, 4), train_step=0)
    reader = SharedReader(rings)
    reader.close()
    reader.close()
    for call in (
        lambda: reader.sample(1, train_step=0, rng=RNG(0)),
        lambda: reader.drain(paper_fifo(9), train_step=0),
        reader.producers,
    ):
        with pytest.raises(RunError, match="is closed"):
            call()


@pytest.mark.parametrize("timeout_s", [float("nan"), -1, "x", True])
def test_timeouts_when_they_are_no_seconds_are_refused_at_once(rings, timeout_s) -> None:
    reader, buffer = SharedReader(rings), sharing.LockedBuffer(paper_fifo(9))
    calls = [
        lambda: reader.sample(1, train_step=0, rng=RNG(0), timeout_s=timeout_s),
        lambda: reader.drain(paper_fifo(9), train_step=0, timeout_s=timeout_s),
        lambda: buffer.sample(1, train_step=0, rng=RNG(0), timeout_s=timeout_s),
        lambda: buffer.add(numbered(0, 1), train_step=0, timeout_s=timeout_s),
        lambda: asyncio.run(sharing.AsyncBuffer(buffer).sample(1, train_step=0, rng=RNG(0), timeout_s=timeout_s)),
    ]
    for call in calls:
        with pytest.raises(DataError, match="timeout_s must be a number of seconds"):
            call()
    assert len(buffer) == 0


def test_rings_when_their_extra_columns_differ_are_not_drawn_together(rings) -> None:
    SharedProducer(rings, "a", **SIZE).add(numbered(0, 2), train_step=0)
    SharedProducer(rings, "b", **SIZE).add(plain(2), train_step=0)
    with pytest.raises(DataError, match="ring-0001 holds the extra columns"):
        SharedReader(rings).sample(1, train_step=0, rng=RNG(0))


def test_sources_when_they_fill_the_header_are_refused(rings) -> None:
    producer = SharedProducer(rings, "a", capacity=40, capacity_bytes=1 << 16)
    names = [f"{k}" * 2000 for k in range(10, 26)]  # 4,000 bytes each; the header has 32 KiB for them
    for k, name in enumerate(names[:8]):
        producer.add(plain(1, source=name, reward=float(k)), train_step=0)
    with pytest.raises(DataError, match="8 sources fill the header"):
        producer.add(plain(1, source=names[8]), train_step=0)
    producer.add(plain(1, source=names[3], reward=3.0), train_step=0)
    draw = SharedReader(rings).sample(9, train_step=0, rng=RNG(0))
    assert draw.rollouts.source.tolist() == [names[int(k)] for k in draw.rollouts.reward]


def test_directory_when_the_block_ends_is_gone_and_abandoned_ones_are_removed(tmp_path) -> None:
    with shared_directory(tmp_path) as path:
        SharedProducer(path, "a", **SIZE).close()
        remove_abandoned(tmp_path)
        assert path.exists()
    assert not path.exists()
    with shared_directory(tmp_path) as path:
        (tmp_path / "ostinato-left").mkdir()
        (tmp_path / "ostinato-left" / "owner").touch()
        producer = SharedProducer(tmp_path / "ostinato-left", "a", **SIZE)
        remove_abandoned(tmp_path)
        assert (tmp_path / "ostinato-left").exists()  # somebody still writes there
        producer.close()
        remove_abandoned(tmp_path)
        assert not (tmp_path / "ostinato-left").exists() and path.exists()


def test_ring_when_all_slots_are_taken_is_refused(rings, monkeypatch) -> None:
    from ostinato.sharing import producer as module

    monkeypatch.setattr(module, "MAX_RINGS", 2)
    kept = [SharedProducer(rings, name, **SIZE) for name in "ab"]
    with pytest.raises(DataError, match="has its 2 rings already"):
        SharedProducer(rings, "c", **SIZE)
    assert [producer.slot for producer in kept] == [0, 1]


def test_settings_when_they_do_not_fit_in_a_header_are_refused(rings) -> None:
    with pytest.raises(ConfigError, match="too long: 9000 characters"):
        SharedProducer(rings, "x" * 9000, **SIZE)
    producer = SharedProducer(rings, "a", **SIZE)
    many = {f"{k:0100}": np.zeros((1, 1)) for k in range(200)}
    with pytest.raises(DataError, match="203 payload columns do not fit"):
        producer.add(plain(1, extras=many), train_step=0)
    assert producer.add(numbered(0, 1), train_step=0).tolist() == [0]


def test_producer_when_the_ring_it_takes_over_is_damaged_is_refused(rings) -> None:
    with SharedProducer(rings, "a", **SIZE) as producer:
        producer.add(numbered(0, 8), train_step=0)
        size = producer._ring.records.nbytes
    damaged(rings / "ring-0000", (1 << 16) + (1 << 16), b"\xff" * size)
    with pytest.raises(DataError, match="its records do not have their row numbers"):
        SharedProducer(rings, "a", **SIZE)


def test_producer_when_closed_or_unknown_is_refused(rings) -> None:
    producer, reader = SharedProducer(rings, "a", **SIZE), SharedReader(rings)
    assert producer.add(numbered(0, 0), train_step=0).tolist() == []
    producer.close()
    producer.close()
    with pytest.raises(RunError, match="'a' is closed; a new one of this name goes on in its ring"):
        producer.add(numbered(0, 1), train_step=0)
    with pytest.raises(DataError, match=r"no producer 'b', known are \['a'\]"):
        reader.alive("b")


def test_ring_when_the_file_is_a_copy_is_refused(rings) -> None:
    SharedProducer(rings, "a", **SIZE)
    (rings / "ring-0007").write_bytes((rings / "ring-0000").read_bytes())
    with pytest.raises(DataError, match="ring-0007 is a copy of the ring of slot 0"):
        SharedReader(rings)
