"""Damaged journals: a torn tail is ignored, a hole is refused and left alone, a salvage keeps what comes before it."""

import os
import shutil
import zlib
from itertools import pairwise

import numpy as np
import pytest
from journal_cases import BUFFERS, group, killed, segment, state

from ostinato.buffer import ReplayBuffer
from ostinato.buffer.journal import JournaledBuffer
from ostinato.buffer.journal.segments import FORMAT, HEAD, SegmentReader
from ostinato.buffer.snapshot import HEAD as SNAPSHOT_HEAD
from ostinato.errors import CheckpointError

CAPACITY = 6


def reopened(directory, **options):
    return JournaledBuffer(ReplayBuffer(CAPACITY), directory, **options)


def contents(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A journal of 7 small operations, the byte at which each record ends, and the state after each."""
    directory, rng = tmp_path_factory.mktemp("recorded") / "j", np.random.default_rng(0)
    with reopened(directory) as buffer:
        states = [state(buffer)]
        for step in range(7):
            if step % 3 == 2:
                buffer.sample(2, train_step=step, rng=rng)
            else:
                buffer.add(group(rng, 1, step), train_step=step)
            states.append(state(buffer))
    reader = SegmentReader(segment(directory))
    ends = [reader.end, *[reader.end for _ in reader][1:]]
    ends.append(reader.end)
    assert len(ends) == len(states)
    return directory, ends, states


def copied(recorded, tmp_path):
    directory, ends, states = recorded
    copy = killed(directory, tmp_path / "copy")
    return copy, segment(copy), ends, states


def test_tail_when_cut_at_and_around_every_record_is_ignored(recorded, tmp_path) -> None:
    directory, path, ends, states = copied(recorded, tmp_path)
    whole = path.read_bytes()
    for index, end in enumerate(ends):
        for cut in (end - 1, end, end + 1):
            kept = index - (cut < end)
            if not ends[0] <= cut <= len(whole):
                continue
            path.write_bytes(whole[:cut])
            with reopened(directory) as buffer:
                assert state(buffer) == states[kept]
                assert buffer.recovered.records == kept
                assert buffer.recovered.torn_bytes == len(whole[ends[kept] : cut].rstrip(b"\0"))
            assert path.read_bytes() == whole[:cut]  # reading changes nothing


def test_tail_when_torn_is_cut_off_by_the_next_record(recorded, tmp_path) -> None:
    directory, path, ends, states = copied(recorded, tmp_path)
    os.truncate(path, ends[-1] - 5)
    rng = np.random.default_rng(1)
    with reopened(directory) as buffer:
        assert state(buffer) == states[-2]
        buffer.add(group(rng, 1, 9), train_step=9)
        expected = state(buffer)
    with reopened(directory) as buffer:
        assert state(buffer) == expected and buffer.recovered.torn_bytes == 0


def test_room_when_taken_but_not_written_is_no_damage(recorded, tmp_path) -> None:
    directory, path, _, states = copied(recorded, tmp_path)
    path.write_bytes(path.read_bytes() + bytes(100_000))
    with reopened(directory) as buffer:
        assert state(buffer) == states[-1] and buffer.recovered.torn_bytes == 0


def test_byte_when_flipped_in_any_record_but_the_last_is_refused_with_file_and_offset(recorded, tmp_path) -> None:
    directory, path, ends, _ = copied(recorded, tmp_path)
    whole = path.read_bytes()
    for record, (begin, end) in enumerate(pairwise(ends[:-1])):
        for position in (*range(begin, begin + 24), *range(begin + 24, end, 97), end - 1):
            damaged = bytearray(whole)
            damaged[position] ^= 1 << position % 8
            path.write_bytes(damaged)
            before = contents(directory)
            with pytest.raises(CheckpointError) as caught:
                reopened(directory)
            behind = len(ends) - 2 - record
            expected = f"{path} is damaged at byte {begin}: record {record} does not match its CRC32 or its number, "
            expected += f"the {record} before it in this file are intact and so are {behind} behind it"
            assert expected in str(caught.value) and "nothing was changed" in str(caught.value)
            assert contents(directory) == before


def test_byte_when_flipped_in_the_last_record_drops_it_alone(recorded, tmp_path) -> None:
    directory, path, ends, states = copied(recorded, tmp_path)
    whole = path.read_bytes()
    for position in (*range(ends[-2], ends[-2] + 24), *range(ends[-2] + 24, ends[-1], 53)):
        damaged = bytearray(whole)
        damaged[position] ^= 0x10
        path.write_bytes(damaged)
        with reopened(directory) as buffer:
            assert state(buffer) == states[-2]


def test_salvage_when_asked_for_keeps_what_precedes_the_hole_and_sets_the_rest_aside(recorded, tmp_path) -> None:
    directory, path, ends, states = copied(recorded, tmp_path)
    damaged = bytearray(path.read_bytes())
    damaged[ends[3] + 40] ^= 1
    path.write_bytes(damaged)
    with reopened(directory, salvage=True) as buffer:
        assert state(buffer) == states[3]
        buffer.add(group(np.random.default_rng(1), 1, 9), train_step=9)
        expected = state(buffer)
    assert (directory / f"damaged-{path.name}").read_bytes() == damaged
    with reopened(directory) as buffer:
        assert state(buffer) == expected


@pytest.mark.parametrize("name", ["journal.ost", "log-00000000000000000000.seg", "snapshot-00000000000000000000.ost"])
def test_salvage_when_the_head_of_a_file_is_damaged_loses_nothing(recorded, tmp_path, name) -> None:
    directory, _, _, states = copied(recorded, tmp_path)
    whole = (directory / name).read_bytes()
    for position in range(HEAD.size):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << position % 8
        (directory / name).write_bytes(damaged)
        before = contents(directory)
        with pytest.raises(CheckpointError, match=f"{name} .*; nothing was changed, salvage=True "):
            reopened(directory)
        assert contents(directory) == before
        copy = killed(directory, tmp_path / "salvaged")
        with reopened(copy, salvage=True) as buffer:
            assert state(buffer) == states[-1] and name in buffer.recovered.damage
            buffer.add(group(np.random.default_rng(1), 1, 9), train_step=9)
            expected = state(buffer)
        assert (copy / f"damaged-{name}").read_bytes() == damaged
        with reopened(copy) as buffer:
            assert state(buffer) == expected and buffer.recovered.damage == ""


def test_files_when_their_numbers_are_almost_numbers_are_ignored(recorded, tmp_path) -> None:
    directory, _, _, states = copied(recorded, tmp_path)
    for name in ("log-\u00b2\u00b3.seg", "snapshot-\u00b2.ost"):
        (directory / name).write_bytes(b"x")
    with reopened(directory) as buffer:
        assert state(buffer) == states[-1]


@pytest.mark.parametrize("kind", BUFFERS)
def test_salvage_when_the_damaged_first_snapshot_held_rollouts_keeps_those_on_record_or_refuses(tmp_path, kind) -> None:
    rng, seed, directory = np.random.default_rng(0), BUFFERS[kind](), tmp_path / "j"
    seed.add(group(rng, 4, 0), train_step=0)
    seed.save(tmp_path / "seed.ost")
    with JournaledBuffer(BUFFERS[kind](), directory) as buffer:
        buffer.load(tmp_path / "seed.ost")
        buffer.add(group(rng, 4, 1), train_step=1)
        buffer.sample(2, train_step=1, rng=rng)
        seeded = seed.added
        added, ids = buffer.added, buffer.columns["rollout_id"]
        later = ids[ids >= seeded].tolist()
    path = directory / "snapshot-00000000000000000000.ost"
    path.write_bytes(path.read_bytes()[:-1])
    before = contents(directory)
    if kind == "prioritized":  # its statistics name rules that only the snapshot knew
        with pytest.raises(CheckpointError, match="do not add up to a buffer"):
            JournaledBuffer(BUFFERS[kind](), directory, salvage=True)
        assert contents(directory) == before
        return
    with JournaledBuffer(BUFFERS[kind](), directory, salvage=True) as buffer:
        assert buffer.columns["rollout_id"].tolist() == later and buffer.added == added
        buffer.check()


def test_salvage_when_what_says_that_it_is_a_journal_is_lost_does_without(recorded, tmp_path) -> None:
    directory, _, _, states = copied(recorded, tmp_path)
    (directory / "journal.ost").unlink()
    with pytest.raises(CheckpointError, match=r"no journal\.ost"):
        reopened(directory)
    with reopened(directory, salvage=True) as buffer:
        assert state(buffer) == states[-1] and "journal.ost cannot be read" in buffer.recovered.damage
    with reopened(directory) as buffer:
        assert state(buffer) == states[-1]


def test_salvage_when_a_later_snapshot_is_the_only_one_and_damaged_says_that_nothing_can_be_had(
    recorded, tmp_path
) -> None:
    directory, _, _, _ = copied(recorded, tmp_path)
    with reopened(directory) as buffer:
        buffer.rotate()
    (path,) = directory.glob("snapshot-*.ost")
    path.write_bytes(b"x")
    before = contents(directory)
    with pytest.raises(CheckpointError, match=f"{path.name} is no snapshot: .* nothing can be had without it"):
        reopened(directory, salvage=True)
    assert contents(directory) == before


@pytest.mark.parametrize("name", ["journal.ost", "log-00000000000000000000.seg", "snapshot-00000000000000000000.ost"])
def test_salvage_when_a_sound_file_is_of_a_newer_format_refuses_it(recorded, tmp_path, name) -> None:
    directory, _, _, _ = copied(recorded, tmp_path)
    size = HEAD.size if name.startswith("log") else SNAPSHOT_HEAD.size
    content = bytearray((directory / name).read_bytes())
    content[8:12] = (FORMAT + 1).to_bytes(4, "little")
    content[size - 4 : size] = zlib.crc32(content[: size - 4]).to_bytes(4, "little")
    (directory / name).write_bytes(content)
    before = contents(directory)
    with pytest.raises(CheckpointError, match=f"format {FORMAT + 1}, this version reads {FORMAT}"):
        reopened(directory, salvage=True)
    assert contents(directory) == before


def test_buffer_when_its_journal_is_refused_is_empty_and_bounded_as_before(recorded, tmp_path) -> None:
    directory, path, ends, _ = copied(recorded, tmp_path)
    damaged = bytearray(path.read_bytes())
    damaged[ends[3] + 40] ^= 1
    path.write_bytes(damaged)
    buffer = ReplayBuffer(CAPACITY)
    with pytest.raises(CheckpointError):
        JournaledBuffer(buffer, directory)
    assert (len(buffer), buffer.capacity, buffer.capacity_bytes) == (0, CAPACITY, None)


def test_record_when_one_is_missing_or_doubled_is_refused(recorded, tmp_path) -> None:
    directory, path, ends, _ = copied(recorded, tmp_path)
    whole = path.read_bytes()
    for content in (
        whole[: ends[2]] + whole[ends[3] :],
        whole[: ends[3]] + whole[ends[2] :],
    ):
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match="its number"):
            reopened(directory)


def test_head_when_damaged_foreign_or_of_the_future_is_refused(recorded, tmp_path) -> None:
    directory, path, _, _ = copied(recorded, tmp_path)
    whole = path.read_bytes()
    for position in range(HEAD.size):
        damaged = bytearray(whole)
        damaged[position] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError, match=path.name):
            reopened(directory)
    path.write_bytes(whole[:8] + (FORMAT + 1).to_bytes(4, "little") + whole[12:])
    with pytest.raises(CheckpointError, match=f"journal format {FORMAT + 1}, this version reads {FORMAT}"):
        reopened(directory)
    path.write_bytes(b"")
    with pytest.raises(CheckpointError, match="is no journal segment"):
        reopened(directory)


def test_snapshot_when_damaged_is_refused_and_left_alone(recorded, tmp_path) -> None:
    directory, _, _, _ = copied(recorded, tmp_path)
    for name in ("journal.ost", "snapshot-00000000000000000000.ost"):
        whole = (directory / name).read_bytes()
        (directory / name).write_bytes(whole[:-3])
        before = contents(directory)
        with pytest.raises(CheckpointError, match=f"{name} is truncated"):
            reopened(directory)
        assert contents(directory) == before
        (directory / name).write_bytes(whole)
    (directory / name).unlink()
    with pytest.raises(CheckpointError, match="holds no snapshot"):
        reopened(directory)


@pytest.mark.parametrize("step", ["described", "saved", "removed"])
def test_rotation_when_killed_between_any_two_steps_loses_nothing(recorded, tmp_path, monkeypatch, step) -> None:
    directory, _, _, states = copied(recorded, tmp_path)
    with reopened(directory) as buffer:
        from ostinato.buffer.journal.log import Log

        def killed_here(*_):
            raise KeyboardInterrupt

        kept = tmp_path / "kept"
        if step == "described":
            monkeypatch.setattr(ReplayBuffer, "save", killed_here)
        elif step == "saved":
            monkeypatch.setattr(Log, "_remove_older", killed_here)
        else:  # the snapshot goes, the segment stays
            real = os.unlink
            monkeypatch.setattr(
                "pathlib.Path.unlink",
                lambda path, **_: killed_here() if path.suffix == ".seg" else real(path),
            )
        with pytest.raises(KeyboardInterrupt):
            buffer.rotate()
        monkeypatch.undo()
        shutil.copytree(directory, kept)
    with reopened(kept) as buffer:
        assert state(buffer) == states[-1]
        buffer.add(group(np.random.default_rng(1), 1, 9), train_step=9)
        expected = state(buffer)
    assert len(list(kept.glob("snapshot-*"))) == 1 and len(list(kept.glob("log-*"))) == 1
    with reopened(kept) as buffer:
        assert state(buffer) == expected


def test_snapshot_when_the_newest_is_damaged_and_the_one_before_is_still_there_is_not_needed(
    recorded, tmp_path
) -> None:
    directory, _, _, states = copied(recorded, tmp_path)
    shutil.copytree(directory, tmp_path / "old")
    with reopened(directory) as buffer:
        buffer.rotate()
    newest = max(directory.glob("snapshot-*.ost"))
    (tmp_path / "old" / newest.name).write_bytes(newest.read_bytes()[:-1])
    with reopened(tmp_path / "old") as buffer:
        assert state(buffer) == states[-1]
        buffer.add(group(np.random.default_rng(1), 1, 9), train_step=9)
        expected = state(buffer)
    with reopened(tmp_path / "old") as buffer:
        assert state(buffer) == expected
        buffer.rotate()
    with reopened(tmp_path / "old") as buffer:
        assert state(buffer) == expected


def test_snapshot_when_the_newest_is_damaged_and_records_before_it_are_lost_is_refused(recorded, tmp_path) -> None:
    directory, path, ends, _ = copied(recorded, tmp_path)
    (directory / "snapshot-00000000000000000007.ost").write_bytes(b"damaged")
    os.truncate(path, ends[5])
    with pytest.raises(CheckpointError, match="ends with record 4, its newest snapshot stands behind 6"):
        reopened(directory)
