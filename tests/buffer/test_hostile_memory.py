"""What would be read or written past its memory, or silently as another number, is refused or done otherwise."""

import os

import numpy as np
import pytest
from rollout_makers import groups, plain
from test_storage import colliding

from ostinato.buffer import PromptsLeft, ReplayBuffer, RightPadded, Workspace
from ostinato.buffer.blobs import Blobs
from ostinato.buffer.journal import JournaledBuffer
from ostinato.buffer.kernels import kernels as make_kernels
from ostinato.buffer.snapshot import load_arrays, save_arrays
from ostinato.errors import CheckpointError, ConfigError, DataError

RNG = np.random.default_rng
KERNELS = ("numpy", "numba")


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("apart", [False, True])
def test_values_when_their_checksums_collide_in_one_call_leave_one_by_one(kernels, apart) -> None:
    one = np.zeros(64, np.uint8)
    other = colliding(one)
    blobs = Blobs(np.uint8, (), make_kernels(kernels))
    handles = blobs.put(np.concatenate([one, other]), np.array([0, 64]), np.array([64, 64]))
    if apart:
        blobs.release(handles[1:])
        assert bytes(blobs.arena.view("values", int(handles[0]))) == one.tobytes()
        assert blobs.put(one, np.array([0]), np.array([64])).tolist() == handles[:1].tolist(), "found again"
        blobs.release(handles[[0, 0]])
    else:
        blobs.release(handles)
    assert blobs.live_bytes == 0
    assert bytes(blobs.arena.view("values", int(blobs.put(other, np.array([0]), np.array([64]))[0]))) == bytes(other)


@pytest.mark.parametrize("make", [RightPadded, PromptsLeft])
@pytest.mark.parametrize("token", [2**31, 2**40 + 1, -(2**31) - 1])
def test_layout_when_its_pad_token_is_no_int32_is_refused(make, token) -> None:
    with pytest.raises(ConfigError, match="pad_token must be at"):
        make(pad_token=token)


@pytest.mark.parametrize(("make", "name"), [(RightPadded, "width"), (RightPadded, "multiple_of")])
def test_layout_when_wider_than_any_memory_is_refused(make, name) -> None:
    with pytest.raises(ConfigError, match=f"{name} must be at most 2147483647"):
        make(**{name: 2**31})


@pytest.mark.parametrize("kernels", KERNELS)
def test_layout_when_its_pad_token_is_the_least_or_greatest_pads_with_it(kernels) -> None:
    buffer = ReplayBuffer(4, kernels=kernels)
    buffer.add(plain(1), train_step=0)
    for token in (-(2**31), 2**31 - 1):
        draw = buffer.sample_padded(1, train_step=0, rng=RNG(0), layout=RightPadded(token, width=7))
        assert draw.tokens.tolist() == [[0, 0, 0, 0, 0, token, token]]


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("form", ["sample", "sample_padded"])
@pytest.mark.parametrize(
    "allocate",
    [
        lambda size: np.frombuffer(bytes(size), np.uint8),
        lambda size: np.empty(2 * size, np.uint8)[::2],
        lambda size: np.empty(size, np.uint8)[::-1],
    ],
    ids=["read-only", "strided", "backwards"],
)
def test_workspace_when_its_memory_cannot_be_written_in_one_piece_is_refused(kernels, form, allocate) -> None:
    buffer = ReplayBuffer(9, kernels=kernels)
    buffer.add(groups(RNG(0), [4], extras="images"), train_step=0)
    with pytest.raises(DataError, match="read-only or not in one piece"):
        getattr(buffer, form)(3, train_step=0, rng=RNG(0), out=Workspace(allocate))
    assert buffer.metrics()["drawn"] == 0


@pytest.mark.parametrize("name", ["tokens", "reward", "offsets", "loss_mask"])
def test_rollouts_when_a_column_is_a_masked_array_are_refused(name) -> None:
    rollouts = plain(3)
    with pytest.raises(DataError, match="MaskedArray"):
        rollouts.replace(**{name: np.ma.masked_array(getattr(rollouts, name))})


def changed(name: str, rows, value):
    def change(arrays: dict[str, np.ndarray]) -> None:
        arrays[name] = arrays[name].copy()
        arrays[name][rows] = value

    return change


def exchanged(arrays: dict[str, np.ndarray]) -> None:
    """Two rows of tokens, one longer and the other shorter by one."""
    lengths = arrays["tokens.lengths"].copy()
    long = np.flatnonzero(lengths > 1)[:2]
    lengths[long] += [-1, 1]
    arrays["tokens.lengths"] = lengths


CONTRADICTIONS = {
    "rows too long": changed("rows.length", 0, 10**6),
    "rows too short": changed("rows.length", slice(None), 0),
    "tokens of other rows": exchanged,
    "tokens below 0": changed("tokens.lengths", slice(0, 2), [90, -50]),
    "tokens past 63 bits": changed("tokens.lengths", slice(0, 2), [2**63 - 1, 2**63 - 1]),
    "no such prompt": changed("prompt.index", 0, 99),
    "a prompt below 0": changed("prompt.index", 0, -1),
    "prompts of few": lambda arrays: arrays.update({"prompt.index": arrays["prompt.index"][:-1]}),
    "a prompt that is too long": changed("rows.prompt_length", 0, 9999),
    "a prompt that is negative": changed("rows.prompt_length", 0, -1),
    "no such source": changed("rows.source_code", 0, 77),
    "a mask of none": changed("masks.rows", 0, -1),
    "masks of others": lambda arrays: arrays.update({"masks.rows": np.roll(arrays["masks.rows"], 1)}),
    "an extra of none": changed("extra.turns.index", 0, -1),
    "a reward that is not finite": changed("rows.reward", 0, np.nan),
    "one reward for all": lambda arrays: arrays.update({"rows.reward": arrays["rows.reward"][:1]}),
    "rewards of another dtype": lambda arrays: arrays.update({"rows.reward": arrays["rows.reward"].astype("f4")}),
}


@pytest.mark.parametrize("what", CONTRADICTIONS)
def test_load_when_a_file_with_right_checksums_contradicts_itself_is_refused(tmp_path, what) -> None:
    path, buffer = tmp_path / "buffer", ReplayBuffer(32, kernels="numpy")
    buffer.add(groups(RNG(1), [4, 4], extras="ragged"), train_step=0)
    buffer.save(path)
    header, arrays = load_arrays(path)
    CONTRADICTIONS[what](arrays)
    save_arrays(path, header, arrays)
    with pytest.raises(CheckpointError, match="is not a whole buffer"):
        buffer.load(path)
    buffer.check()
    assert len(buffer.sample(8, train_step=0, rng=RNG(0))) == 8, "nothing has changed"


def test_load_when_a_fixed_extra_has_other_than_one_item_a_row_is_refused(tmp_path) -> None:
    path, buffer = tmp_path / "buffer", ReplayBuffer(32)
    buffer.add(groups(RNG(1), [4], extras="fixed"), train_step=0)
    buffer.save(path)
    header, arrays = load_arrays(path)
    changed("extra.seed.lengths", slice(0, 2), [2, 0])(arrays)
    save_arrays(path, header, arrays)
    with pytest.raises(CheckpointError, match="contradicts its payload"):
        buffer.load(path)


def test_file_when_the_system_has_no_preadv_is_read_all_the_same(tmp_path, monkeypatch) -> None:
    path, buffer = tmp_path / "buffer", ReplayBuffer(32)
    buffer.add(groups(RNG(1), [4, 4], extras="ragged", longest=400), train_step=0)
    buffer.save(path)
    monkeypatch.delattr(os, "preadv")
    again = ReplayBuffer(32)
    again.load(path)
    one, two = buffer.state_arrays(), again.state_arrays()
    assert one.keys() == two.keys() and all(np.array_equal(one[name], two[name]) for name in one)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="truncated"):
        again.load(path)


def test_journal_when_the_system_lacks_vectored_calls_and_fdatasync_is_written_and_read(tmp_path, monkeypatch) -> None:
    for name in ("preadv", "pwritev", "fdatasync"):
        monkeypatch.delattr(os, name)
    with JournaledBuffer(ReplayBuffer(32), tmp_path / "j", sync="disk") as buffer:
        for step in range(3):
            buffer.add(groups(RNG(step), [4], first_group=step, version=step, longest=400), train_step=step)
        one = buffer.state_arrays()
    with JournaledBuffer(ReplayBuffer(32), tmp_path / "j") as again:
        two = again.state_arrays()
    assert one.keys() == two.keys() and all(np.array_equal(one[name], two[name]) for name in one)
