"""What Ray raises, told in the errors of this package."""

from __future__ import annotations

from typing import Any

import ray
from ray.exceptions import (
    ActorDiedError,
    ActorUnavailableError,
    GetTimeoutError,
    NodeDiedError,
    ObjectLostError,
    ObjectStoreFullError,
    OutOfDiskError,
    OutOfMemoryError,
    RayError,
    RayTaskError,
    WorkerCrashedError,
)

from ostinato.errors import OstinatoError, RunError

DEATHS = (ActorDiedError, ActorUnavailableError, NodeDiedError, WorkerCrashedError, OutOfMemoryError, ObjectLostError)
"""The process, its node or what it had made is gone: the work can be done again elsewhere."""

TOO_SLOW = GetTimeoutError


def raised(error: RayTaskError, who: str) -> Exception:
    """What a method of an actor raised, as it would have been raised here; in one line what nobody foresaw."""
    cause = error.cause
    if isinstance(cause, OstinatoError | OSError | MemoryError):
        return cause
    what = f"{type(cause).__name__}: {one_line(cause)}"
    if type(cause).__name__ == "OutOfMemoryError":
        what += "; lower optimizer.tokens_per_microbatch (trainer) or loop.groups_per_request (generator)"
    return RunError(f"{who} failed: {what}")


def into_store(value: Any) -> ray.ObjectRef[Any]:
    """`ray.put`. Raises `RunError` when there is room neither in shared memory nor on the disk that Ray spills to."""
    try:
        return ray.put(value)
    except (ObjectStoreFullError, OutOfDiskError) as error:
        raise RunError(
            f"Ray's object store is full: {one_line(error)}; raise ray.object_store_bytes, make room on the disk of "
            "Ray's temporary directory, or lower loop.batch_size or loop.groups_per_request"
        ) from error


def is_loss(error: RayTaskError) -> bool:
    """Whether the method failed because what it was given is gone with the process that had made it."""
    return isinstance(error.cause, DEATHS)


def one_line(error: BaseException) -> str:
    """The first line of a message, which in Ray's may be followed by pages."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reason = next((line for line in lines if line.startswith("The actor is dead because")), lines[0] if lines else "")
    return reason.partition(" Some common causes")[0] or type(error).__name__


def reason_of(error: RayError) -> str:
    """Why a process is gone, with what to do about it where that is known."""
    reason = one_line(error)
    if isinstance(error, OutOfMemoryError) or "OOM" in str(error).partition("Some common causes")[0]:
        reason += "; out of memory: fewer processes a node, a smaller loop.groups_per_request or buffer.capacity"
    return reason
