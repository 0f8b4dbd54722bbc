"""The trackers of a run, from its beginning to its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ostinato.config import RunConfig, config_to_dict
from ostinato.errors import RunError
from ostinato.telemetry import read_json_object, write_json
from ostinato.trackers.kinds import KINDS, Run, require
from ostinato.trackers.numbers import numbers
from ostinato.trackers.sender import Sender

IDS_FILE = "trackers.json"
"""In the run directory: the id of the run in each tracker, by which a resumed run goes on there."""

Observe = Callable[[Mapping[str, Any]], None]


@contextmanager
def tracked(
    config: RunConfig, directory: Path, *, name: str, resume: bool, tell: Callable[[str], None]
) -> Iterator[Observe]:
    """An observer of records that hands them to the trackers of `config.tracking` while the block runs.

    `name`: of the run there. `resume`: go on in the runs that `directory` remembers, where it does. `tell`: gets one
    line at a tracker's first failure and one at the end with the number of records it lacks; no failure of a tracker
    that has begun reaches the block. Raises `MissingExtraError` at once for a package that is not installed; runs are
    opened at the first record, when the directory is known to be this run's, and `RunError` is raised there when a
    tracker refuses to begin.
    """
    for kind in config.tracking.names:
        require(kind)
    senders: list[Sender] = []
    opened = not config.tracking.names
    failed = True

    def observe(record: Mapping[str, Any]) -> None:
        nonlocal opened
        if not opened:
            opened = True
            open_all(config, directory, name, senders, resume=resume, tell=tell)
        if senders:
            values = numbers(record)
            for sender in senders:
                sender.send(values, int(record["train_step"]))

    try:
        yield observe
        failed = False
    finally:
        for sender in senders:
            sender.close(failed=failed)


def open_all(
    config: RunConfig, directory: Path, name: str, senders: list[Sender], *, resume: bool, tell: Callable[[str], None]
) -> None:
    """Begin a run in every tracker, or go on with the one that `directory` remembers; appends to `senders`."""
    known = _known_ids(directory) if resume else {}
    ids = dict(known)
    for kind in config.tracking.names:
        run = Run(config.tracking.project, name, directory, config_to_dict(config), known.get(kind))
        try:
            tracker = KINDS[kind](run)
        except Exception as error:
            raise RunError(
                f"tracker {kind} cannot begin: {' '.join(str(error).split())}; mend it, or leave it out of tracking.to"
            ) from error
        ids[kind] = tracker.run_id
        senders.append(Sender(kind, tracker, tell))
    write_json(directory / IDS_FILE, ids)


def _known_ids(directory: Path) -> dict[str, str]:
    path = directory / IDS_FILE
    if not path.exists():
        return {}
    return {str(kind): str(run_id) for kind, run_id in read_json_object(path).items()}
