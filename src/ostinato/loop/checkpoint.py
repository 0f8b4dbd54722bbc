"""Checkpoints: everything a run needs to go on as if it had not stopped.

    <directory>/trainer/        policy (Hugging Face format where it is one) and optimizer
    <directory>/published.npz   the weights generators hold
    <directory>/buffer.npz      the store
    <directory>/in_flight.npz   groups that are being generated, or wait before a full queue
    <directory>/loop.json       counters, clock, random states, statistics, delivery times

A checkpoint directory is whole or absent: it is written beside and renamed.
"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

from ostinato.errors import CheckpointError, DataError
from ostinato.loop.channel import MemoryChannel
from ostinato.loop.clock import Clock, InFlight
from ostinato.loop.ledger import Ledger
from ostinato.loop.loop import Generated, Loop
from ostinato.rollouts import from_arrays, to_arrays
from ostinato.telemetry import directory_in_place, read_arrays, write_arrays, write_json

FORMAT = 1


def save_checkpoint(directory: Path, loop: Loop, channel: MemoryChannel, clock: Clock, extra: dict[str, Any]) -> None:
    """Write the state of a loop that stands at a `Stepped` event with `batch_done`; `extra` is the caller's own."""
    flights: dict[int, tuple[float | None, Generated]] = {
        rank: (flight.deliver_at, flight.result) for rank, flight in clock.in_flight().items()
    }
    flights |= {rank: (None, done) for rank, done in loop.in_hand.items()}
    with directory_in_place(directory) as temporary:
        loop.parts.trainer.save(temporary / "trainer")
        channel.save(temporary / "published.npz")
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
            "draw_rng": loop.draw_rng.bit_generator.state,
            "flights": {
                rank: {"deliver_at": at, "groups": done.groups, "generate_s": done.generate_s, "score_s": done.score_s}
                for rank, (at, done) in flights.items()
            },
            "reissue": loop.groups_in_flight,
            "extra": extra,
        }
        write_json(temporary / "loop.json", state)


def load_checkpoint(
    directory: Path, loop: Loop, channel: MemoryChannel
) -> tuple[float, dict[int, InFlight | Generated], dict[str, Any]]:
    """Restore a freshly built loop; returns clock time, what generators were doing by rank, and the caller's extra.

    Raises `CheckpointError` when a file is missing, truncated or of another format.
    """
    try:
        state = json.loads((directory / "loop.json").read_text(encoding="utf-8"))
        if state["format"] != FORMAT:
            raise CheckpointError(f"{directory} has checkpoint format {state['format']}, expected {FORMAT}")
        loop.parts.trainer.load(directory / "trainer")
        channel.load(directory / "published.npz")
        loop.parts.store.load_state_arrays(read_arrays(directory / "buffer.npz"))
        arrays = read_arrays(directory / "in_flight.npz")
        loop.ledger = Ledger.from_state(state["ledger"])
        loop.statistics.load_state_dict(state["statistics"])
        loop.draw_rng.bit_generator.state = state["draw_rng"]
        resumed = {int(rank): _resumed(int(rank), kept, arrays) for rank, kept in state["flights"].items()}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise CheckpointError(f"checkpoint {directory} cannot be used: {type(error).__name__}: {error}") from error
    if not resumed:
        loop.reissue([tuple(groups) for groups in state["reissue"]])
    return state["now"], resumed, state["extra"]


def _resumed(rank: int, kept: dict[str, Any], arrays: dict[str, Any]) -> InFlight | Generated:
    try:
        rollouts = from_arrays(arrays, prefix=f"{rank}/")
    except DataError as error:
        raise CheckpointError(f"groups in flight of generator {rank - 1} are incomplete: {error}") from error
    done = Generated(rollouts, tuple(kept["groups"]), kept["generate_s"], kept["score_s"])
    return done if kept["deliver_at"] is None else InFlight(kept["deliver_at"], done)
