"""The transformer blocks of a model of transformers: computed again in the backward pass, or spread over trainers."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from ostinato.backends.hf.replicas import Replicas
from ostinato.errors import ConfigError


def blocks_of(model: Any) -> list[torch.nn.Module]:
    """The repeated layers. Raises `ConfigError` for an architecture that does not name them."""
    blocks: list[torch.nn.Module] = [
        module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)
    ]
    if not blocks:
        raise ConfigError(
            f"{type(model).__name__} does not say which of its layers repeat: set optimizer.fsdp and "
            "optimizer.activation_checkpointing to false"
        )
    return blocks


def compute_again(model: Any) -> None:
    """From now on the backward pass computes the inside of each block again, and only its inputs are kept.

    transformers' own switch works in training mode alone, where dropout would tell the trainer's log-probs from the
    generator's. Source: Chen et al. 2016, arXiv 1604.06174.
    """
    for block in blocks_of(model):
        again = partial(checkpoint, block.forward, use_reentrant=False, preserve_rng_state=False)
        block.forward = again


def shard(model: Any, replicas: Replicas, *, bf16: bool) -> None:
    """Spread the parameters over the replicas, in place: each holds 1 / world_size of every one, in its own precision.

    A block is whole on a replica only while it computes; what is outside the blocks (embedding, output layer) stays
    whole from the forward to the backward pass. `bf16`: blocks are sent in bf16, which is what autocast would make of
    their linear weights; the residual stream stays float32, as in a generator under autocast, and so do the parts,
    their gradients and the sums of these over replicas.
    Source: torch FSDP2, `torch.distributed.fsdp.fully_shard`.
    """
    # It warns of changing an output in place, which nothing here does.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module", category=UserWarning)
    # On a GPU the parts move there one block at a time: the whole model need not fit.
    device = "cuda" if torch.cuda.is_available() else "cpu"
    mesh = (
        init_device_mesh(device, (replicas.world_size,))
        if replicas.group is None
        else DeviceMesh.from_group(replicas.group, device)
    )
    sent = MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False)
    blocks = blocks_of(model)
    for block in blocks:
        fully_shard(block, mesh=mesh, mp_policy=sent if bf16 else MixedPrecisionPolicy())
    fully_shard(model, mesh=mesh, reshard_after_forward=False)
    for module in (*blocks, model):
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)  # gloo has no other


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """The whole tensor of which this may be the part of one replica: every replica must ask."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def part(tensor: torch.Tensor) -> torch.Tensor:
    """What this replica holds of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def part_like(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A whole tensor, there on every replica, spread as `like` is."""
    if not isinstance(like, DTensor):
        return tensor
    return distribute_tensor(tensor, like.device_mesh, like.placements, src_data_rank=None)
