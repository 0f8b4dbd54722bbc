"""The state of an optimizer as one process would have it: gathered from replicas, and given back to them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ostinato.backends.hf.blocks import part_like, whole
from ostinato.backends.hf.replicas import Replicas
from ostinato.errors import DataError

State = Mapping[str, Any]
"""As `torch.optim.Optimizer.state_dict` gives it: `state` by the number of the parameter, and `param_groups`."""


def whole_state(optimizer: torch.optim.Optimizer, replicas: Replicas) -> State:
    """The state with whole tensors: in main memory and on the first replica, where they are parts; all must ask."""
    state = optimizer.state_dict()
    if replicas.alone:
        return state
    first, entries = replicas.rank == 0, {}
    for number, entry in state["state"].items():
        # One at a time: only the first replica keeps them.
        gathered = ((name, whole(value)) for name, value in entry.items())
        entries[number] = {name: value.to("cpu", copy=True) for name, value in gathered if first}
    return {"state": entries, "param_groups": state["param_groups"]}


def check_state(optimizer: torch.optim.Optimizer, state: State) -> None:
    """Raise `DataError` when a state is of other parameters."""
    parameters = _parameters(optimizer)
    sizes = [len(group["params"]) for group in state["param_groups"]]
    if sizes != [len(group["params"]) for group in optimizer.param_groups]:
        raise DataError(f"the optimizer has {len(parameters)} parameters, got {sizes}")
    for number, entry in state["state"].items():
        for name, value in entry.items():
            if value.ndim and value.shape != parameters[number].shape:
                expected = tuple(parameters[number].shape)
                raise DataError(f"{name} of parameter {number} has shape {tuple(value.shape)}, expected {expected}")


def put_state(optimizer: torch.optim.Optimizer, state: State | None, replicas: Replicas) -> None:
    """Inverse of `whole_state`: the state of the first replica counts, the others may have None."""
    layout = None
    if state is not None:
        entries = state["state"].items()
        shapes = {
            number: {name: (value.shape, value.dtype) for name, value in entry.items()} for number, entry in entries
        }
        layout = shapes, state["param_groups"]
    shapes, groups = replicas.from_first(layout)
    parameters = _parameters(optimizer)
    mine: dict[int, dict[str, Tensor]] = {}
    for number, entry in shapes.items():
        like = parameters[number]
        mine[number] = {}
        for name, (shape, dtype) in entry.items():
            value = torch.empty(shape, dtype=dtype, device=like.device)
            if state is not None:
                value.copy_(state["state"][number][name])
            replicas.broadcast([value])
            mine[number][name] = part_like(value, like) if shape == like.shape else value
    optimizer.load_state_dict({"state": mine, "param_groups": groups})


def _parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
