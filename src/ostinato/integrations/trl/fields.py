"""What TRL keeps of a rollout besides its tokens, in and out of two extra columns of `Rollouts`.

TRL's batch is a dict of tensors in which only the names say what stands on which axis, and which differ from one
generation to the next (no prompt of a batch may have an image). So a rollout carries its own fields: named tensors
without padding, in safetensors, which keeps every dtype. Two columns, so that completions of one prompt share its
images, which the buffer stores once.

    completion   one value a token of the completion        padded on the right
    sequence     one a token of prompt and completion       padded on both sides
    row          one a rollout, of any shape                stacked
    images       as many rows as its images need            one after the other
    count        a number of images or tiles                a list
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor
from trl.trainer.utils import split_pixel_values_by_grid

from ostinato.errors import DataError
from ostinato.ragged import Ragged
from ostinato.rollouts import Rollouts

FIELDS, IMAGES = "trl_fields", "trl_images"
"""Names of the extra columns: ragged, uint8, one safetensors file a rollout; empty without fields."""

CORE = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "num_items_in_batch")
"""Names of TRL's batch that are columns of `Rollouts`, or computed anew for each batch."""

OF_IMAGES = (
    "pixel_values",
    "pixel_attention_mask",
    "image_grid_thw",
    "image_position_ids",
    "image_sizes",
    "spatial_shapes",
    "num_images",
    "num_tiles",
)
FILL = {"tool_mask": 1}
"""What TRL pads with where it is not 0."""

TOOLS, ENGINE, OLD = "completion/tool_mask", "completion/sampling_per_token_logps", "completion/old_per_token_logps"
"""Fields that TRL gives with some generations only, as a rollout function returns them, and what stands for the second
where it is absent: then TRL's losses take it, too."""


def packed_fields(
    batch: Mapping[str, Any], prompts: Sequence[int], completions: Sequence[int], *, sequence_ratio: bool
) -> dict[str, Ragged]:
    """The two extra columns of the n rollouts of a batch as TRL generates it.

    `prompts`, `completions`: tokens of each. `sequence_ratio`: `importance_sampling_ratio` has one value a rollout.
    Raises `DataError` for a field without one row for each rollout.
    """
    named: dict[str, Any] = dict(split_pixel_values_by_grid(dict(batch)))
    n, width = batch["completion_ids"].shape
    left = batch["prompt_ids"].shape[1]
    files: dict[str, list[dict[str, Tensor]]] = {name: [{} for _ in range(n)] for name in (FIELDS, IMAGES)}
    for name, value in named.items():
        if name in CORE or value is None or (name == "advantages" and value.ndim == 1):
            continue
        if not isinstance(value, (Tensor, list)) or (isinstance(value, Tensor) and not value.ndim) or len(value) != n:
            raise DataError(f"TRL's {name!r} is no tensor or list with a row for each of {n} rollouts: not replayable")
        kind = _kind(name, value, left, width, sequence_ratio)
        for i, row in enumerate(value.detach().cpu() if isinstance(value, Tensor) else value):
            kept = torch.as_tensor(row)
            if kind == "completion":
                kept = kept[: completions[i]]
            elif kind == "sequence":
                kept = kept[left - prompts[i] : left + completions[i]]
            files[IMAGES if name in OF_IMAGES else FIELDS][i][f"{kind}/{name}"] = kept.detach().cpu().contiguous()
    return {column: Ragged.from_rows([_bytes(row) for row in rows]) for column, rows in files.items()}


def unpacked_fields(rollouts: Rollouts, widths: tuple[int, int]) -> dict[str, Any]:
    """The fields of rollouts as TRL takes them, padded to `widths` (prompt, completion).

    A batch without any image has no fields of images. Raises `DataError` when a rollout lacks a field of others.
    """
    rows = [_tensors(rollouts, FIELDS, i) for i in range(len(rollouts))]
    images = [_tensors(rollouts, IMAGES, i) for i in range(len(rollouts))]
    batch = {}
    for key in dict.fromkeys(chain.from_iterable(rows)):
        _complete(key, rows, rollouts)
        if not all(key in row for row in rows):
            raise DataError(f"only some rollouts of the batch have the field {key!r}: a buffer must not mix such")
        batch[key.partition("/")[2]] = _joined(key, [row[key] for row in rows], rollouts.prompt_length, widths)
    if any(int(image.get("count/num_images", torch.ones(()))) for image in images if image):
        batch |= _joined_images(images)
    return batch


def _complete(key: str, rows: Sequence[dict[str, Tensor]], rollouts: Rollouts) -> None:
    """Give rollouts without a field what its absence means: no token of tools, an engine that is the model."""
    some = next(row[key] for row in rows if key in row)
    for row, length in zip(rows, rollouts.completion_lengths, strict=True):
        if key == TOOLS and key not in row:
            row[key] = some.new_ones(int(length))
        elif key == ENGINE and key not in row and OLD in row:
            row[key] = row[OLD].to(some.dtype)


def _kind(name: str, value: Any, left: int, width: int, sequence_ratio: bool) -> str:
    if isinstance(value, list):
        return "count" if name in ("num_images", "num_tiles") else "images" if name in OF_IMAGES else "row"
    if name in OF_IMAGES or (name == "importance_sampling_ratio" and sequence_ratio) or value.ndim == 1:
        return "row"
    return {width: "completion", left + width: "sequence"}.get(value.shape[1], "row")


def _joined(key: str, values: Sequence[Tensor], prompts: Any, widths: tuple[int, int]) -> Tensor:
    """One tensor of a field of all rollouts."""
    kind, _, name = key.partition("/")
    if kind == "row" and len({value.shape for value in values}) == 1:
        return torch.stack(list(values))
    width = {"completion": widths[1], "sequence": sum(widths)}.get(kind, max(len(value) for value in values))
    fill = FILL.get(name, 0)
    out = values[0].new_full((len(values), width, *values[0].shape[1:]), fill)
    for row, value, prompt in zip(out, values, prompts, strict=True):
        start = widths[0] - int(prompt) if kind == "sequence" else 0
        row[start : start + len(value)] = value
    return out


def _joined_images(images: Sequence[Mapping[str, Tensor]]) -> dict[str, Any]:
    """The fields of images of a batch that has some: the rows of all rollouts, in their order."""
    batch: dict[str, Any] = {}
    for key in dict.fromkeys(chain.from_iterable(images)):
        kind, _, name = key.partition("/")
        if kind == "count":
            batch[name] = [int(image.get(key, 0)) for image in images]
        elif kind == "images":
            batch[name] = torch.cat([image[key] for image in images if key in image])
        else:  # one row a rollout, padded to the most images; without any, nothing but padding
            some = next(image[key] for image in images if key in image)
            batch[name] = _joined(key, [image.get(key, some[:0]) for image in images], [0] * len(images), (0, 0))
    return batch


def _bytes(tensors: Mapping[str, Tensor]) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.frombuffer(save(dict(tensors)), np.uint8) if tensors else np.empty(0, np.uint8)


def _tensors(rollouts: Rollouts, column: str, row: int) -> dict[str, Tensor]:
    kept = rollouts.extras[column]
    assert isinstance(kept, Ragged)
    return dict(load(kept.row(row).tobytes())) if len(kept.row(row)) else {}
