"""What Ray says when memory or a disk is full, told with what to change. Nothing is filled; the errors are Ray's."""

from __future__ import annotations

import errno
from typing import Any

import pytest
import ray
from ray.exceptions import ActorDiedError, ObjectStoreFullError, OutOfDiskError, OutOfMemoryError, RayTaskError

from ostinato.cluster.failures import into_store, raised, reason_of
from ostinato.errors import DataError, RunError

HELD = "Failed to put object ff in object store because it is full. Object size is 10485760 bytes.\nThe plasma store"


@pytest.mark.parametrize("kind", [ObjectStoreFullError, OutOfDiskError])
def test_full_object_store_ends_the_run_with_what_to_change(monkeypatch, kind) -> None:
    def put(value: Any) -> Any:
        raise kind(HELD)

    monkeypatch.setattr(ray, "put", put)
    with pytest.raises(RunError, match=r"Ray's object store is full: .*; raise ray.object_store_bytes") as told:
        into_store([0])
    assert "\n" not in str(told.value)
    assert "lower loop.batch_size or loop.groups_per_request" in str(told.value)


def test_process_that_ray_killed_for_memory_is_told_with_what_to_change() -> None:
    why = "Task was killed due to the node running low on memory.\nMemory on the node was 30.1GB / 32.0GB (0.95)."
    told = reason_of(OutOfMemoryError(why))
    assert told == (
        "Task was killed due to the node running low on memory.; out of memory: fewer processes a node, a smaller "
        "loop.groups_per_request or buffer.capacity"
    )
    assert "out of memory" not in reason_of(ActorDiedError())


def of_actor(cause: Exception) -> RayTaskError:
    return RayTaskError("step", "Traceback ...", cause)


def test_full_disk_arrives_as_the_actor_met_it() -> None:
    full = OSError(errno.ENOSPC, "No space left on device", "/run/optimizer.pt")
    assert raised(of_actor(full), "a trainer") is full
    wrong = DataError("line 3")
    assert raised(of_actor(wrong), "a trainer") is wrong


def test_full_memory_of_a_gpu_names_the_settings_of_its_size() -> None:
    torch = pytest.importorskip("torch")
    full = torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nOf the allocated memory")
    told = raised(of_actor(full), "a trainer")
    assert isinstance(told, RunError)
    assert str(told) == (
        "a trainer failed: OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.; lower "
        "optimizer.tokens_per_microbatch (trainer) or loop.groups_per_request (generator)"
    )
