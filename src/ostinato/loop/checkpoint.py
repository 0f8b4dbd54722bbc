"""Checkpoints: everything a run needs to go on as if it had not stopped.

    <directory>/trainer/        policy (Hugging Face format where it is one) and optimizer
    <directory>/published.npz   the weights generators hold
    <directory>/buffer.npz      the store, unless it has a journal
    <directory>/in_flight.npz   groups that are being generated, or wait before a full queue
    <directory>/loop.json       counters, clock, random states, statistics, governors, delivery times

A checkpoint directory is whole or absent: it is written beside and renamed.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from ostinato.buffer.journal import JournaledBuffer
from ostinato.errors import CheckpointError, StateLostError
from ostinato.loop.channel import MemoryChannel
from ostinato.loop.clock import Clock, InFlight
from ostinato.loop.groups import Generated
from ostinato.loop.ledger import Ledger
from ostinato.loop.loop import Loop
from ostinato.rollout_arrays import from_arrays, to_arrays
from ostinato.telemetry import directory_in_place, read_arrays, read_json_object, write_arrays, write_json

FORMAT = 3

FLIGHT_FIELDS = tuple(item.name for item in fields(Generated) if item.name != "rollouts")
"""What is kept of a group in flight besides its rollouts."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the session stood: its next evaluation point, the bytes of metrics written, and the train step of its last
    evaluation, -1: none."""

    next_point: int = 0
    metrics_bytes: int = 0
    evaluated_step: int = -1


def save_checkpoint(directory: Path, loop: Loop, channel: MemoryChannel, clock: Clock, place: Place) -> None:
    """Write the state of a loop that stands at a `Stepped` event with `batch_done`."""
    flights: dict[int, tuple[float | None, Generated]] = {
        rank: (flight.deliver_at, flight.result) for rank, flight in clock.in_flight().items()
    }
    flights |= {rank: (None, done) for rank, done in loop.in_hand.items()}
    with directory_in_place(directory) as temporary:
        loop.parts.trainer.save(temporary / "trainer")
        channel.save(temporary / "published.npz")
        if not isinstance(loop.parts.store, JournaledBuffer):  # which is on disk, and further on than this
            write_arrays(temporary / "buffer.npz", loop.parts.store.state_arrays())
        arrays: dict[str, Any] = {}
        for rank, (_, done) in flights.items():
            arrays |= to_arrays(done.rollouts, prefix=f"{rank}/")
        write_arrays(temporary / "in_flight.npz", arrays)
        state = {
            "format": FORMAT,
            "now": clock.now,
            "ledger": loop.ledger.state_dict(),
            "statistics": loop.statistics.state_dict(),
            "follow_up": loop.follow_up.state_dict(),
            "draw_rng": loop.draw_rng.bit_generator.state,
            "flights": {
                rank: {"deliver_at": at, **{name: getattr(done, name) for name in FLIGHT_FIELDS}}
                for rank, (at, done) in flights.items()
            },
            "reissue": loop.groups_in_flight,
            "extra": asdict(place),
        }
        write_json(temporary / "loop.json", state)


def load_checkpoint(
    directory: Path, loop: Loop, channel: MemoryChannel
) -> tuple[float, dict[int, InFlight | Generated], Place]:
    """Restore a freshly built loop; returns clock time, what generators were doing by rank, and the session's place.

    Raises `CheckpointError` when a file is missing, damaged, of another format or of another model.
    """
    try:
        return _load(directory, loop, channel)
    except (CheckpointError, StateLostError):
        raise
    except Exception as error:  # a damaged file can make its reader raise anything
        raise CheckpointError(f"checkpoint {directory} cannot be used: {type(error).__name__}: {error}") from error


def _load(directory: Path, loop: Loop, channel: MemoryChannel) -> tuple[float, dict[int, InFlight | Generated], Place]:
    state = read_json_object(directory / "loop.json")
    if state["format"] != FORMAT:
        raise CheckpointError(f"{directory} has checkpoint format {state['format']}, expected {FORMAT}")
    loop.parts.trainer.load(directory / "trainer")
    channel.load(directory / "published.npz")
    loop.follow_up.load_state_dict(state["follow_up"], loop.parts.store)  # it may resize what is still empty
    if not isinstance(loop.parts.store, JournaledBuffer):
        loop.parts.store.load_state_arrays(read_arrays(directory / "buffer.npz"))
    loop.ledger = Ledger.from_state(state["ledger"])
    loop.statistics.load_state_dict(state["statistics"])
    loop.draw_rng.bit_generator.state = state["draw_rng"]
    arrays = read_arrays(directory / "in_flight.npz")
    resumed = {int(rank): _resumed(int(rank), kept, arrays) for rank, kept in state["flights"].items()}
    known = {tuple(kept["groups"]) for kept in state["flights"].values()}
    loop.reissue([groups for groups in map(tuple, state["reissue"]) if groups not in known])
    return float(state["now"]), resumed, Place(**state["extra"])


def _resumed(rank: int, kept: dict[str, Any], arrays: dict[str, Any]) -> InFlight | Generated:
    rollouts = from_arrays(arrays, prefix=f"{rank}/")
    done = Generated(rollouts, **{name: kept[name] for name in FLIGHT_FIELDS} | {"groups": tuple(kept["groups"])})
    return done if kept["deliver_at"] is None else InFlight(kept["deliver_at"], done)
