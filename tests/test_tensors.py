"""Tensors of a draw: the same memory, the right values."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from ostinato import Rollouts, paper_fifo  # noqa: E402
from ostinato.buffer import PromptsLeft, Workspace  # noqa: E402
from ostinato.tensors import as_tensors  # noqa: E402


@pytest.fixture
def buffer():
    buffer = paper_fifo(8, min_size=1)
    prompts, completions = [[1, 2], [3], [4, 5, 6]], [[7], [8, 9, 10], [11, 12]]
    logprobs = [[-0.5] * len(row) for row in completions]
    advantages = np.array([1.0, -1.0, 0.5])
    extras = {"image": np.ones((3, 2, 2)) * advantages[:, None, None], "name": np.array(["a", "b", "c"])}
    group = Rollouts.from_completions(prompts, completions, logprobs, advantage=advantages, extras=extras)
    buffer.add(group, train_step=0)
    return buffer


def test_packed_draw_when_turned_into_tensors_shares_its_memory(buffer) -> None:
    draw = buffer.sample(3, train_step=0, rng=np.random.default_rng(3))
    tensors = as_tensors(draw)
    assert tensors["tokens"].dtype == torch.int32 and tensors["cu_seqlens"].dtype == torch.int32
    assert tensors["cu_seqlens"].tolist() == draw.rollouts.offsets.tolist()
    assert tensors["advantage"].tolist() == draw.rollouts.advantage.tolist()
    for name in ("tokens", "loss_mask", "behavior_logprobs"):
        assert tensors[name].data_ptr() == getattr(draw.rollouts, name).ctypes.data
    assert tensors["image"].data_ptr() == draw.rollouts.extras["image"].ctypes.data
    assert tensors["image"][:, 0, 0].tolist() == draw.rollouts.advantage.tolist()
    assert "name" not in tensors
    tensors["tokens"][0] = 99
    assert draw.rollouts.tokens[0] == 99
    assert 99 not in buffer.sample(8, train_step=0, rng=np.random.default_rng(0)).rollouts.tokens


def test_padded_draw_when_turned_into_tensors_stands_in_the_workspace(buffer) -> None:
    out = Workspace()
    draw = buffer.sample_padded(3, train_step=0, rng=np.random.default_rng(3), layout=PromptsLeft(pad_token=0), out=out)
    tensors = as_tensors(draw)
    assert tensors["tokens"].shape == tensors["loss_mask"].shape == draw.tokens.shape
    assert tensors["tokens"].data_ptr() == draw.tokens.ctypes.data
    assert tensors["attention_mask"].sum(1).tolist() == draw.lengths.tolist()
    again = buffer.sample_padded(3, train_step=0, rng=np.random.default_rng(3), layout=PromptsLeft(), out=out)
    assert as_tensors(again)["tokens"].data_ptr() == tensors["tokens"].data_ptr()
