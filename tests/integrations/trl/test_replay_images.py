"""Rows of images through storage and back, for every layout that TRL has, on batches as its own code splits them.

A vision model cannot run here (its processors need torchvision), so the batches are made; what splits and joins them is
TRL's own code.
"""

import numpy as np
import pytest
import torch

pytest.importorskip("trl")

from trl.trainer.utils import split_pixel_values_by_grid, split_tensor_dict, unsplit_pixel_values_by_grid

from ostinato.errors import DataError
from ostinato.integrations.trl import ReplayConfig
from ostinato.integrations.trl.batches import micro_batches
from ostinato.integrations.trl.recording import GroupScores, Origin, recorded
from ostinato.integrations.trl.store import ReplayStore

IMAGES = (0, 1, 3, 1, 0, 3, 1, 1)
"""Of each rollout: 10 in all."""
PROMPT, COMPLETION = (2, 5, 3, 4, 1, 5, 2, 3), (4, 1, 6, 2, 3, 5, 6, 1)
N, P, C = 8, 5, 6


def text():
    """Tokens and log-probs of 8 rollouts, each value told apart by row and place."""
    prompt_mask = (torch.arange(P) >= P - torch.tensor(PROMPT)[:, None]).long()
    completion_mask = (torch.arange(C) < torch.tensor(COMPLETION)[:, None]).long()
    ids = torch.arange(N * (P + C)).reshape(N, -1) + 3
    return {
        "prompt_ids": ids[:, :P] * prompt_mask,
        "prompt_mask": prompt_mask,
        "completion_ids": ids[:, P:] * completion_mask,
        "completion_mask": completion_mask,
        "advantages": torch.linspace(-1, 1, N),
        "old_per_token_logps": -ids[:, P:] / 64 * completion_mask,
        "num_items_in_batch": completion_mask.sum(),
        "num_images": list(IMAGES),
    }


def rows(*shape, count=10):
    return torch.arange(count * int(np.prod(shape)), dtype=torch.float32).reshape(count, *shape)


GRIDS = torch.tensor([[1, 1 + i % 3, 2] for i in range(sum(IMAGES))])
TILES = [2 * number for number in IMAGES]
LAYOUTS = {
    "Qwen": {"pixel_values": rows(4, count=int(GRIDS.prod(-1).sum())), "image_grid_thw": GRIDS},
    "Gemma": {"pixel_values": rows(3, 2, 2), "image_position_ids": rows(2).long()},
    "LLaVA": {"pixel_values": rows(3, 2, 2), "image_sizes": rows(2).long()},
    "InternVL": {"pixel_values": rows(3, 2, 2, count=sum(TILES)), "num_tiles": TILES},
    "LFM2": {
        "pixel_values": rows(4, 2, count=sum(TILES)),
        "pixel_attention_mask": rows(4, count=sum(TILES)).long() % 2,
        "spatial_shapes": rows(2, count=sum(TILES)).long(),
        "num_tiles": TILES,
    },
    # One row a rollout, padded to the most images of a batch.
    "Idefics": {
        "pixel_values": rows(3, 3, 2, 2, count=N)
        * (torch.arange(3) < torch.tensor(IMAGES)[:, None])[..., None, None, None],
        "pixel_attention_mask": (torch.arange(3) < torch.tensor(IMAGES)[:, None])[..., None, None]
        .long()
        .expand(N, 3, 2, 2),
    },
    "half precision": {"pixel_values": rows(3, 2, 2).bfloat16()},
    "token types": {"pixel_values": rows(3, 2, 2), "mm_token_type_ids": torch.arange(N * (P + C)).reshape(N, -1) % 3},
}
ALONE = {"processes": 1, "rank": 0, "seed": 0, "generation_rows": N, "recorded_with": {}}
ORIGIN = Origin(0, 0, {"temperature": 1.0}, False, (1, 0), False)


def stored(batch, draws=1):
    """What comes back of a batch through record, buffer, draw and collation: (draw, micro-batches of 4)."""
    store = ReplayStore(ReplayConfig(capacity=64, uses=2), **ALONE)
    scores = GroupScores.of(torch.arange(float(N))[:, None], torch.ones(1), 4)
    store.add(recorded(batch, scores, ORIGIN), train_step=0)
    draw = store.draw(N, train_step=1)
    return draw, micro_batches(draw, 4, pad_token_id=0, multiple_of=1, device=torch.device("cpu"))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rows_of_images_when_drawn_in_another_order_go_with_their_rollout(layout) -> None:
    """trl 4488, 6570, 6114: slices by sample of what is indexed by image or tile. 0, 1 and 3 images, other grids."""
    batch = text() | LAYOUTS[layout]
    draw, parts = stored(batch)
    order = draw.rollout_ids
    assert not (order == np.arange(N)).all()
    split = split_pixel_values_by_grid(dict(batch))
    permuted = {
        name: value
        if isinstance(value, torch.Tensor) and not value.ndim
        else value[order]
        if isinstance(value, torch.Tensor)
        else [value[i] for i in order]
        for name, value in split.items()
    }
    for part, wanted in zip(parts, map(unsplit_pixel_values_by_grid, split_tensor_dict(permuted, 2)), strict=True):
        for name in set(wanted) - {"num_items_in_batch"}:
            value, own = wanted[name], part[name]
            if isinstance(value, list):
                assert own == [int(number) for number in value]
                continue
            assert own.dtype == value.dtype
            if name in ("prompt_ids", "prompt_mask"):
                value = value[:, P - own.shape[1] :]  # narrower: padded to its own longest
            elif name.startswith(("completion", "old")):
                value = value[:, : own.shape[1]]
            elif name == "mm_token_type_ids":
                inside = torch.cat([part["prompt_mask"], part["completion_mask"]], 1).bool()
                left = P - part["prompt_mask"].shape[1]
                value = value[:, left : left + own.shape[1]] * inside
            assert torch.equal(own, value), name


def test_images_that_a_group_shares_are_stored_once() -> None:
    pixels = rows(3, 64, 64, count=1)
    batch = text() | {"num_images": [1] * N, "pixel_values": pixels.expand(N, -1, -1, -1)}
    store = ReplayStore(ReplayConfig(capacity=64, uses=2), **ALONE)
    scores = GroupScores.of(torch.arange(float(N))[:, None], torch.ones(1), 4)
    store.add(recorded(batch, scores, ORIGIN), train_step=0)
    assert store.buffer.nbytes < 2 * pixels.nbytes


def test_generations_with_and_without_images_stand_in_one_buffer() -> None:
    """A data set where only some prompts have images: a generation may have none, and TRL then gives no pixels."""
    store = ReplayStore(ReplayConfig(capacity=64, uses=2), **ALONE)
    scores = GroupScores.of(torch.arange(float(N))[:, None], torch.ones(1), 4)
    plain = {name: value for name, value in text().items() if name != "num_images"}
    store.add(recorded(plain, scores, ORIGIN), train_step=0)
    store.add(recorded(text() | LAYOUTS["Qwen"], scores, ORIGIN), train_step=0)
    draw = store.draw(16, train_step=0)
    (part,) = micro_batches(draw, 16, pad_token_id=0, multiple_of=8, device=torch.device("cpu"))
    wanted = [IMAGES[i - N] if i >= N else 0 for i in draw.rollout_ids]
    assert part["num_images"] == wanted and part["image_grid_thw"].shape[0] == sum(IMAGES)
    assert part["completion_ids"].shape[1] == 8 and part["prompt_ids"].shape[1] == 8
    alone = [i for i in range(16) if draw.rollout_ids[i] < N][:4]
    rollouts = draw.rollouts.select(alone)
    assert "pixel_values" not in micro_batches(
        type(draw)(rollouts, *(getattr(draw, name)[alone] for name in draw.__dataclass_fields__ if name != "rollouts")),
        4, pad_token_id=0, multiple_of=1, device=torch.device("cpu"),
    )[0]  # fmt: skip


def test_fields_that_nobody_knows_survive() -> None:
    """Subclasses add fields: one a token, one a rollout, one of any shape; half precision and integers stay so."""
    unknown = {
        "token_weights": torch.arange(N * C, dtype=torch.bfloat16).reshape(N, C),
        "judge": torch.arange(N) * 10,
        "embedding": torch.arange(N * 21.0).reshape(N, 3, 7),
        "advantages": torch.arange(N * C * 1.0).reshape(N, C),
    }
    draw, parts = stored(text() | unknown)
    for index, part in enumerate(parts):
        for row in range(4):
            own, length = draw.rollout_ids[4 * index + row], COMPLETION[draw.rollout_ids[4 * index + row]]
            for name in ("token_weights", "advantages"):
                assert torch.equal(part[name][row, :length], unknown[name][own, :length])
                assert (part[name][row, length:] == 0).all() and part[name].dtype == unknown[name].dtype
            assert part["judge"][row] == own * 10 and torch.equal(part["embedding"][row], unknown["embedding"][own])
    for advantage, own in zip(draw.rollouts.advantage, draw.rollout_ids, strict=True):
        assert advantage == unknown["advantages"][own, : COMPLETION[own]].mean()


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ({"judge": ["a"] * 3}, "'judge' is no tensor or list with a row for each of 8 rollouts"),
        ({"judge": torch.tensor(1.0)}, "'judge' is no tensor"),
        ({"completion_mask": torch.tensor([[1, 0, 1, 0, 0, 0]] * N)}, "completion_mask has holes"),
        ({"prompt_mask": torch.tensor([[1, 1, 1, 0, 0]] * N)}, "prompt_mask has holes"),
    ],
)
def test_batches_that_cannot_be_recorded_are_refused(broken, message) -> None:
    with pytest.raises(DataError, match=message):
        stored(text() | {"num_images": None} | broken)
