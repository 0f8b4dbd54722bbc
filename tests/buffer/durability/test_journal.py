"""The journal: what was acknowledged is there after a kill, exactly once, under any operations and any buffer."""

import errno
import os
import shutil
import subprocess
import sys
from contextlib import nullcontext

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from journal_cases import BUFFERS, group, killed, state

from ostinato.buffer import ReplayBuffer
from ostinato.buffer.journal import JournaledBuffer, read_journal
from ostinato.buffer.journal import segments as segments_module
from ostinato.errors import CheckpointError, ConfigError, DataError, RunError

OPERATIONS = ("add", "add", "add", "draw", "draw", "padded", "prompts", "priorities", "update", "retain", "remove")
RARE = ("resize", "clear", "departures", "rotate", "refused")


def operate(buffer, name, rng, step):
    """One operation with random arguments."""
    if name in ("draw", "padded"):
        buffer.retain(train_step=step)
    ids = buffer.columns["rollout_id"].copy()
    some = rng.choice(ids, rng.integers(0, 4)) if len(ids) else ids
    match name:
        case "add" if buffer.can_add(4):
            buffer.add(group(rng, 4, step), train_step=step)
        case "draw" if buffer.can_sample(3):
            buffer.sample(3, train_step=step, rng=rng)
        case "padded" if buffer.can_sample(2):
            buffer.sample_padded(2, train_step=step, rng=rng)
        case "prompts":
            buffer.sample_prompts(rng.integers(0, 100, 20), 2, train_step=step, rng=rng)
        case "priorities":
            buffer.update_priorities(some, rng.random(len(some)))
        case "update":
            buffer.update(some, reward=rng.random(len(some)), advantage=rng.random(len(some)))
        case "retain":
            buffer.retain(train_step=step)
        case "remove":
            buffer.remove(some)
        case "resize":
            buffer.resize(int(rng.integers(4, 20)), 5_000)
        case "clear":
            buffer.clear()
        case "departures":
            buffer.departures()
        case "rotate":
            buffer.rotate()
        case "refused":  # it may drop old rows before it refuses
            with pytest.raises(DataError):
                buffer.sample(1000, train_step=step, rng=rng)


@pytest.mark.parametrize("kind", BUFFERS)
@settings(max_examples=12)
@given(
    names=st.lists(st.one_of(st.sampled_from(OPERATIONS), st.sampled_from(RARE)), min_size=1, max_size=40),
    seed=st.integers(0, 1000),
    max_bytes=st.sampled_from([None, 3_000]),
)
def test_buffer_when_reopened_after_any_operations_is_the_one_before(
    tmp_path_factory, kind, names, seed, max_bytes
) -> None:
    directory, rng = tmp_path_factory.mktemp("journal"), np.random.default_rng(seed)
    with JournaledBuffer(BUFFERS[kind](), directory / "j", max_bytes=max_bytes) as buffer:
        for step, name in enumerate(names):
            if not (kind == "queue" and name == "refused"):
                operate(buffer, name, rng, step)
        for turn in range(2):  # a journal that was replayed goes on as one that was not
            copy = killed(directory / "j", directory / f"copy-{turn}")
            with JournaledBuffer(BUFFERS[kind](), copy, max_bytes=max_bytes) as again:
                again.check()
                assert state(again) == state(buffer)
                operate(again, "add", np.random.default_rng(1), len(names))
                operate(buffer, "add", np.random.default_rng(1), len(names))
                expected = state(buffer)
                assert state(again) == expected
            with JournaledBuffer(BUFFERS[kind](), copy) as once_more:
                assert state(once_more) == expected


def test_draws_when_reopened_are_the_ones_that_would_have_come(tmp_path) -> None:
    rng = np.random.default_rng(0)
    with JournaledBuffer(BUFFERS["fifo"](), tmp_path / "j") as buffer:
        for step in range(8):
            operate(buffer, "add", rng, step)
            operate(buffer, "draw", rng, step)
        with JournaledBuffer(BUFFERS["fifo"](), killed(tmp_path / "j", tmp_path / "copy")) as again:
            one, other = np.random.default_rng(5), np.random.default_rng(5)
            for step in range(8, 108):
                drawn, same = (b.sample(6, train_step=step, rng=r) for b, r in ((buffer, one), (again, other)))
                for name in ("rollout_ids", "uses", "staleness", "residence", "steps_since_last_use"):
                    np.testing.assert_array_equal(getattr(drawn, name), getattr(same, name))
                np.testing.assert_array_equal(drawn.rollouts.tokens, same.rollouts.tokens)


def test_rotation_when_the_log_is_full_bounds_the_directory(tmp_path) -> None:
    rng = np.random.default_rng(0)
    with JournaledBuffer(ReplayBuffer(40), tmp_path, max_bytes=20_000) as buffer:
        for step in range(300):
            operate(buffer, "add", rng, step)
            assert len(list(tmp_path.glob("*.ost"))) == 2 and len(list(tmp_path.glob("log-*.seg"))) <= 1
            assert buffer.metrics()["journal_bytes"] < 20_000 + 4_000
        assert buffer.added == 1200 and len(buffer) == 40


def test_capacity_when_resized_is_remembered_unless_another_one_is_asked_for(tmp_path) -> None:
    rng = np.random.default_rng(0)
    with JournaledBuffer(ReplayBuffer(4), tmp_path) as buffer:
        buffer.resize(12)
        for step in range(3):
            operate(buffer, "add", rng, step)
    with JournaledBuffer(ReplayBuffer(4), tmp_path) as buffer:
        assert (buffer.capacity, len(buffer)) == (12, 12)
        buffer.rotate()
    with JournaledBuffer(ReplayBuffer(4), tmp_path) as buffer:
        assert (buffer.capacity, len(buffer)) == (12, 12)
    with JournaledBuffer(ReplayBuffer(8), tmp_path) as buffer:  # asked for: the newest 8 of 12 stay
        assert buffer.capacity == 8
        assert buffer.columns["rollout_id"].tolist() == list(range(4, 12))
    with JournaledBuffer(ReplayBuffer(8), tmp_path) as buffer:
        assert buffer.columns["rollout_id"].tolist() == list(range(4, 12))


def test_buffer_when_filled_before_begins_its_journal_with_that(tmp_path) -> None:
    rng, filled = np.random.default_rng(0), ReplayBuffer(12)
    operate(filled, "add", rng, 3)
    with JournaledBuffer(filled, tmp_path / "j") as buffer:
        with JournaledBuffer(ReplayBuffer(12), killed(tmp_path / "j", tmp_path / "copy")) as again:
            assert state(again) == state(buffer)
        with pytest.raises(DataError, match=r"holds 4 rollouts and the journal .* has its own"):
            JournaledBuffer(filled, tmp_path / "copy")


def test_state_when_loaded_into_a_journal_is_on_record(tmp_path) -> None:
    rng, other = np.random.default_rng(0), ReplayBuffer(12)
    operate(other, "add", rng, 3)
    with JournaledBuffer(ReplayBuffer(12), tmp_path / "j") as buffer:
        operate(buffer, "add", rng, 1)
        with pytest.raises(CheckpointError):
            buffer.load_state_arrays({})
        buffer.load_state_arrays(other.state_arrays())
        with JournaledBuffer(ReplayBuffer(12), killed(tmp_path / "j", tmp_path / "copy")) as again:
            assert state(again) == state(other)


def test_snapshot_when_loaded_into_a_journal_at_the_first_start_alone_survives_every_restart(tmp_path) -> None:
    rng, seed = np.random.default_rng(0), ReplayBuffer(12)
    operate(seed, "add", rng, 3)
    seed.save(tmp_path / "seed.ost", rng=np.random.default_rng(7))
    for start in range(3):
        with JournaledBuffer(ReplayBuffer(12), tmp_path / "j") as buffer:
            assert buffer.recovered.created == (start == 0)
            if buffer.recovered.created:
                generators = buffer.load(tmp_path / "seed.ost")
                assert generators["rng"].integers(1000) == np.random.default_rng(7).integers(1000)
            assert buffer.columns["rollout_id"].tolist() == list(range(4 + 2 * start))
            buffer.add(group(rng, 2, 4), train_step=4)
            with pytest.raises(CheckpointError):
                buffer.load(tmp_path / "none.ost")
            size = buffer.save(tmp_path / "copy.ost", rng=rng)
            assert (tmp_path / "copy.ost").stat().st_size == size
            copy = ReplayBuffer(12)
            copy.load(tmp_path / "copy.ost")
            assert state(copy) == state(buffer)
    with JournaledBuffer(ReplayBuffer(12), tmp_path / "j") as buffer:
        assert state(buffer) == state(copy)


def test_journal_when_steps_and_sizes_are_numpy_integers_records_them(tmp_path) -> None:
    rng = np.random.default_rng(0)
    with JournaledBuffer(ReplayBuffer(12), tmp_path) as buffer:
        buffer.add(group(rng), train_step=np.int64(1))
        buffer.sample(2, train_step=np.int32(2), rng=rng)
        buffer.retain(train_step=np.int64(3))
        buffer.resize(np.int64(10))
        buffer.rotate()
        buffer.add(group(rng), train_step=np.int64(4))
        expected = state(buffer)
    with JournaledBuffer(ReplayBuffer(12), tmp_path) as again:
        assert state(again) == expected


def test_resize_when_beyond_what_a_journal_holds_is_refused_and_the_journal_opens_again(tmp_path) -> None:
    with JournaledBuffer(ReplayBuffer(12), tmp_path) as buffer:
        for size in ((2**63, None), (12, 2**63)):
            with pytest.raises(ConfigError, match="a journal holds at most"):
                buffer.resize(*size)
        assert buffer.capacity == 12
    with JournaledBuffer(ReplayBuffer(12), tmp_path) as buffer:
        assert buffer.capacity == 12


def test_settings_when_impossible_are_refused(tmp_path) -> None:
    for options in ({"sync": "never"}, {"max_bytes": 0}, {"max_bytes": 2.5}, {"max_bytes": "x"}):
        with pytest.raises(ConfigError):
            JournaledBuffer(ReplayBuffer(4), tmp_path, **options)
    assert not os.listdir(tmp_path)


# ---------------------------------------------------------------- who may write


def test_directory_when_another_buffer_writes_it_is_refused(tmp_path) -> None:
    with JournaledBuffer(ReplayBuffer(4), tmp_path):
        with pytest.raises(RunError, match="writes the journal"):
            JournaledBuffer(ReplayBuffer(4), tmp_path)
        code = (
            "import sys\nfrom ostinato.buffer import ReplayBuffer\n"
            "from ostinato.buffer.journal import JournaledBuffer\n"
            "JournaledBuffer(ReplayBuffer(4), sys.argv[1])"
        )
        done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
        assert done.returncode == 1 and "RunError: another process" in done.stderr
    JournaledBuffer(ReplayBuffer(4), tmp_path).close()


FORKING = """
import os, sys
from ostinato.buffer import ReplayBuffer
from ostinato.buffer.journal import JournaledBuffer
buffer = JournaledBuffer(ReplayBuffer(4), sys.argv[1])
(told, tell), (heard, say) = os.pipe(), os.pipe()
child = os.fork()
if child == 0:
    os.close(tell)
    try:
        buffer.clear()
        os.write(say, b"cleared")
    except BaseException as error:
        os.write(say, type(error).__name__.encode())
    os.read(told, 1)  # lives until the parent closes its end
    os._exit(0)
print(os.read(heard, 100).decode())
buffer.close()
JournaledBuffer(ReplayBuffer(4), sys.argv[1]).close()
print("reopened while the child lived:", os.waitpid(child, os.WNOHANG) == (0, 0))
os.close(tell)
os.waitpid(child, 0)
"""


def test_child_when_forked_may_not_write_and_does_not_keep_the_lock(tmp_path) -> None:
    done = subprocess.run([sys.executable, "-c", FORKING, str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == ["RunError", "reopened while the child lived: True"], done.stderr


def test_directory_when_it_holds_other_things_is_refused_and_left_alone(tmp_path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(CheckpointError, match=r"'thesis.tex' but no journal.ost"):
        JournaledBuffer(ReplayBuffer(4), tmp_path)
    assert os.listdir(tmp_path) == ["thesis.tex"]


@pytest.mark.parametrize("what", [".lock", "directory", "segment"])
def test_files_when_removed_under_an_open_journal_end_it_before_the_next_operation(tmp_path, what) -> None:
    rng, directory = np.random.default_rng(0), tmp_path / "j"
    buffer = JournaledBuffer(ReplayBuffer(12), directory)
    operate(buffer, "add", rng, 0)
    if what == ".lock":
        (directory / ".lock").unlink()
    elif what == "directory":
        shutil.move(directory, tmp_path / "elsewhere")
    else:
        next(directory.glob("log-*.seg")).unlink()
    before = state(buffer)
    with pytest.raises(RunError, match="was removed while" if what == "segment" else "was moved, or its file"):
        operate(buffer, "add", rng, 1)
    assert state(buffer) == before
    buffer.save(tmp_path / "kept.ost")
    buffer.close()


def test_buffer_when_there_are_no_posix_locks_imports(tmp_path) -> None:
    code = (
        "import sys\nsys.modules['fcntl'] = None\nimport ostinato.buffer\nprint(len(ostinato.buffer.ReplayBuffer(4)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "0\n", done.stderr


def test_journal_when_closed_records_nothing_more(tmp_path) -> None:
    buffer = JournaledBuffer(ReplayBuffer(4), tmp_path)
    buffer.close()
    with pytest.raises(RunError, match="was closed"):
        buffer.add(group(np.random.default_rng(0)), train_step=0)
    assert len(buffer) == 0


# ---------------------------------------------------------------- a disk that refuses


def full(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_disk_when_full_before_an_operation_refuses_it_and_nothing_changes(tmp_path, monkeypatch) -> None:
    rng = np.random.default_rng(0)
    monkeypatch.setattr(segments_module, "STEP_BYTES", 0)
    with JournaledBuffer(ReplayBuffer(12), tmp_path / "j") as buffer:
        operate(buffer, "add", rng, 0)
        before = state(buffer)
        monkeypatch.setattr(segments_module.os, "posix_fallocate", full)
        for name in ("add", "draw", "priorities", "clear"):
            with pytest.raises(OSError, match="No space left"):
                operate(buffer, name, rng, 1)
            assert state(buffer) == before
        with JournaledBuffer(ReplayBuffer(12), killed(tmp_path / "j", tmp_path / "copy")) as again:
            assert state(again) == before
        monkeypatch.undo()
        operate(buffer, "add", rng, 1)  # room again: it goes on
        with JournaledBuffer(ReplayBuffer(12), killed(tmp_path / "j", tmp_path / "copy")) as again:
            assert state(again) == state(buffer) and len(again) == 8


@pytest.mark.parametrize("call", ["pwritev", "fdatasync"])
def test_write_when_it_fails_ends_the_journal_at_the_operation_before(tmp_path, monkeypatch, call) -> None:
    rng = np.random.default_rng(0)
    buffer = JournaledBuffer(ReplayBuffer(12), tmp_path, sync="disk")
    operate(buffer, "add", rng, 0)
    before = state(buffer)
    real = os.pwrite

    def half(handle, parts, position):
        real(handle, b"".join(parts[: len(parts) // 2]), position)
        full()

    monkeypatch.setattr(segments_module.os, call, half if call == "pwritev" else full)
    with pytest.raises(OSError, match="No space left"):
        operate(buffer, "add", rng, 1)
    monkeypatch.undo()
    for name in ("add", "draw", "clear", "rotate"):
        with pytest.raises(RunError, match=r"failed \(OSError: .*No space left.*reopen it"):
            operate(buffer, name, rng, 2)
    buffer.close()
    with JournaledBuffer(ReplayBuffer(12), tmp_path) as again:
        assert state(again) == before
        operate(again, "add", rng, 1)
        assert again.columns["rollout_id"].tolist() == list(range(8))


def test_record_when_the_system_takes_it_in_pieces_is_whole(tmp_path, monkeypatch) -> None:
    rng, real = np.random.default_rng(0), os.pwrite
    monkeypatch.setattr(segments_module, "PARTS", 7)
    monkeypatch.setattr(segments_module.os, "pwritev", lambda h, parts, at: real(h, b"".join(parts)[:5], at))
    monkeypatch.setattr(segments_module.os, "pwrite", lambda h, data, at: real(h, data[:100], at))
    with JournaledBuffer(ReplayBuffer(12), tmp_path / "j") as buffer:
        operate(buffer, "add", rng, 0)
        with JournaledBuffer(ReplayBuffer(12), killed(tmp_path / "j", tmp_path / "copy")) as again:
            assert state(again) == state(buffer) and again.recovered.records == 1


def test_snapshot_when_the_disk_is_full_leaves_the_log_growing_and_says_so(tmp_path, monkeypatch) -> None:
    rng = np.random.default_rng(0)
    with JournaledBuffer(ReplayBuffer(12), tmp_path / "j", max_bytes=10_000) as buffer:
        monkeypatch.setattr(ReplayBuffer, "save", full)
        for step in range(20):
            operate(buffer, "add", rng, step)
        assert 1 <= buffer.metrics()["journal_failed_snapshots"] <= 4  # tried again each time it grew by half
        assert buffer.metrics()["journal_bytes"] > 20_000
        monkeypatch.undo()
        with JournaledBuffer(ReplayBuffer(12), killed(tmp_path / "j", tmp_path / "copy")) as again:
            assert state(again) == state(buffer)
        for step in range(20, 40):
            operate(buffer, "add", rng, step)
        assert buffer.metrics()["journal_bytes"] < 15_000


def test_operation_when_interrupted_ends_the_journal(tmp_path) -> None:
    class Interrupted:
        repeats = True

        def __call__(self, columns, n, rng):
            raise KeyboardInterrupt

    with JournaledBuffer(ReplayBuffer(12, sampler=Interrupted()), tmp_path) as buffer:
        operate(buffer, "add", np.random.default_rng(0), 0)
        with pytest.raises(KeyboardInterrupt):
            operate(buffer, "draw", np.random.default_rng(0), 0)
        with pytest.raises(RunError, match="an operation was interrupted"):
            operate(buffer, "clear", np.random.default_rng(0), 0)


# ---------------------------------------------------------------- reading along, and going back


def test_journal_when_read_while_it_is_written_gives_the_buffer_and_changes_nothing(tmp_path) -> None:
    rng = np.random.default_rng(0)
    with JournaledBuffer(ReplayBuffer(12), tmp_path / "j") as buffer:
        for step in range(5):
            operate(buffer, "add", rng, step)
            operate(buffer, "draw", rng, step)
        before = {path.name: path.read_bytes() for path in (tmp_path / "j").iterdir()}
        other = ReplayBuffer(12)
        assert read_journal(other, tmp_path / "j").records == 10
        assert state(other) == state(buffer)
        assert {path.name: path.read_bytes() for path in (tmp_path / "j").iterdir()} == before
        other.clear()  # it is a buffer of its own
        with pytest.raises(CheckpointError, match="is no journal"):
            read_journal(ReplayBuffer(12), tmp_path)


def test_buffer_when_its_journal_is_closed_is_left_to_itself(tmp_path) -> None:
    rng = np.random.default_rng(0)
    with JournaledBuffer(ReplayBuffer(12), tmp_path) as buffer:
        operate(buffer, "add", rng, 0)
        expected = state(buffer)
    operate(buffer.buffer, "add", rng, 1)
    with JournaledBuffer(ReplayBuffer(12), tmp_path) as again:
        assert state(again) == expected


def test_clock_when_set_back_drops_rollouts_of_versions_that_come_again(tmp_path) -> None:
    rng = np.random.default_rng(0)
    with JournaledBuffer(ReplayBuffer(100), tmp_path) as buffer:
        for step in range(10):  # rollouts 4 k to 4 k + 3 are of policy version k
            buffer.add(group(rng, 4, step), train_step=step)
        buffer.sample(40, train_step=12, rng=rng)
        uses = buffer.columns["uses"].copy()
    with JournaledBuffer(ReplayBuffer(100), tmp_path, train_step=12) as buffer:
        assert (buffer.recovered.rewound, len(buffer)) == (0, 40)
    files, held = {path.name: path.read_bytes() for path in tmp_path.iterdir()}, ReplayBuffer(100)
    with pytest.raises(RuntimeWarning, match="12 of 40 rollouts"):  # made an error, it comes before anything is lost
        JournaledBuffer(held, tmp_path, train_step=6)
    assert len(held) == 0 and {path.name: path.read_bytes() for path in tmp_path.iterdir()} == files
    for rewound in (12, 0):  # the second time it is on record already
        message = "train_step 6 lies before step 12, .* 12 of 40 rollouts, .* leave for good"
        with (
            pytest.warns(RuntimeWarning, match=message) if rewound else nullcontext(),
            JournaledBuffer(ReplayBuffer(100), tmp_path, train_step=6) as buffer,
        ):
            assert (buffer.recovered.rewound, buffer.train_step) == (rewound, 6)
            assert buffer.columns["rollout_id"].tolist() == list(range(28))
            assert buffer.columns["uses"].tolist() == uses[:28].tolist()
            assert buffer.columns["last_use_step"].max() == 6
            draw = buffer.buffer.sample(20, train_step=6, rng=rng)
            for name in ("staleness", "residence", "uses"):
                assert getattr(draw, name).min() >= 0
    with JournaledBuffer(ReplayBuffer(100), tmp_path) as buffer:
        assert buffer.add(group(rng, 4, 7), train_step=7).tolist() == [40, 41, 42, 43]  # ids are never given twice
