"""What the trainers of one optimizer step say to each other: T processes of a torch.distributed group.

    torch.distributed.init_process_group("cpu:gloo,cuda:nccl", ...)  # or "gloo" without a GPU; one process a GPU
    trainer = HFTrainer(..., replicas=Replicas.of_group())           # or HFBackend(config, cache).trainer(replicas)
    trained = trainer.step(share)                                    # a `protocols.Draw`, on every rank

How to call a trainer with replicas:

* Every rank makes the same calls in the same order (`step`, `weights`, `save`, `load`), with the same settings.
* `step` takes the share of this rank. The batch of the step is the concatenation of the shares in the order of ranks:
  either each rank drew its own from its shard of the buffer, or one draw was split by `ostinato.shares.token_shares`
  and `select_draw`. A share may be of any size, empty too. No rank needs the rollouts of another.
* `Trained` is that of the batch, equal on all ranks, its figures in the order of the concatenation; for a draw that was
  split, `ostinato.shares.in_draw_order` puts them back into the order of the draw.
* `weights` returns the policy on rank 0 and an empty mapping elsewhere; `save` writes on rank 0; `load` reads on rank 0
  and sends what it read, so that no other rank needs to see the directory.
* An error of this package on one rank (rollouts that cannot be used, a disk that is full) is raised on all of them, on
  the others as `RunError` naming the rank; the group can go on. After any other error (memory, a process that died) the
  ranks no longer stand at the same call: end them, and load a checkpoint. The timeout of the group bounds the wait.

Equal to one process with the whole batch but for the order in which sums are rounded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed
from torch import Tensor

from ostinato.errors import ConfigError, OstinatoError, RunError

T = TypeVar("T")

BUCKET_BYTES = 2**25
"""Gradients that are sent together."""


@dataclass(frozen=True, slots=True)
class Replicas:
    """This process among the `world_size` ranks of `group` (None: the default one). Alone: every method is local."""

    rank: int = 0
    world_size: int = 1
    group: Any = None

    @classmethod
    def of_group(cls, group: Any = None) -> Replicas:
        """The replicas of an initialized process group. Raises `ConfigError` when there is none."""
        if not torch.distributed.is_available() or not torch.distributed.is_initialized():
            raise ConfigError("replicas need a process group: call torch.distributed.init_process_group first")
        return cls(torch.distributed.get_rank(group), torch.distributed.get_world_size(group), group)

    @property
    def alone(self) -> bool:
        """Whether there is no other rank."""
        return self.world_size == 1

    @property
    def _first(self) -> int:
        """The number of rank 0 among all processes."""
        return 0 if self.group is None else torch.distributed.get_global_rank(self.group, 0)

    def gather(self, value: Any) -> list[Any]:
        """The values of all ranks, in their order, on each of them: small things, no tensors on a GPU."""
        if self.alone:
            return [value]
        values: list[Any] = [None] * self.world_size
        torch.distributed.all_gather_object(values, value, group=self.group)
        return values

    def agree(self, work: Callable[[], T]) -> T:
        """`work()` of this rank, once it has succeeded on all of them.

        Raises this rank's own `OstinatoError` or `OSError`; `RunError` where only another rank has failed.
        """
        if self.alone:
            return work()
        result, failure = None, None
        try:
            result = work()
        except (OstinatoError, OSError) as error:
            failure = error
        said = self.gather(None if failure is None else str(failure))
        if failure is not None:
            raise failure
        for rank, reason in enumerate(said):
            if reason is not None:
                raise RunError(f"trainer {rank} of {self.world_size}: {reason}")
        return result  # type: ignore[return-value]

    def from_first(self, value: Any) -> Any:
        """The value of rank 0, on every rank: small things, no tensors on a GPU."""
        if self.alone:
            return value
        box = [value]
        torch.distributed.broadcast_object_list(box, self._first, group=self.group)
        return box[0]

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Overwrite the tensors of every rank by those of rank 0."""
        if not self.alone:
            for tensor in tensors:
                torch.distributed.broadcast(tensor, self._first, group=self.group)

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        """Overwrite the tensors of every rank by their sums over ranks: the same bits everywhere."""
        if self.alone:
            return
        for bucket in _buckets(tensors):
            flat = torch.cat([tensor.flatten() for tensor in bucket])
            torch.distributed.all_reduce(flat, group=self.group)
            for tensor, part in zip(bucket, flat.split([tensor.numel() for tensor in bucket]), strict=True):
                tensor.copy_(part.view_as(tensor))


def _buckets(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    """Neighbors of one type, together not much above `BUCKET_BYTES`."""
    buckets: list[list[Tensor]] = []
    size = 0
    for tensor in tensors:
        if not buckets or size >= BUCKET_BYTES or tensor.dtype != buckets[-1][0].dtype:
            buckets.append([])
            size = 0
        buckets[-1].append(tensor)
        size += tensor.nbytes
    return buckets
