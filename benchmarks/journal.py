"""What the journal costs: `python benchmarks/journal.py [--groups 1000] [--json FILE]`.

Groups of 16 rollouts of about 9 KB. First the log alone, segments framed with lengths and CRC32 against LMDB (which has
no CRC: the same frame is its value), on the same disk in the same run: a committed append, replay with all CRCs checked
and bytes on the disk. `process` survives the end of the process, `disk` the loss of power. Then a whole
`JournaledBuffer` beside a `ReplayBuffer`: one group added, one batch of 64 drawn, and the time to reopen. Medians.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import struct
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ostinato.buffer import ReplayBuffer
from ostinato.buffer.journal import JournaledBuffer
from ostinato.buffer.journal.records import Record, encode
from ostinato.buffer.journal.segments import SegmentReader, SegmentWriter
from ostinato.rollout_arrays import to_arrays
from ostinato.rollouts import Rollouts

GROUP, TOKENS, PROMPT = 16, 985, 128


def group(seed: int) -> Rollouts:
    """16 rollouts, 9 bytes a token."""
    rng = np.random.default_rng(seed)
    completions = rng.integers(0, 32_000, (GROUP, TOKENS - PROMPT))
    logprobs = -rng.random((GROUP, TOKENS - PROMPT)).astype(np.float32)
    return Rollouts.from_completions([np.arange(PROMPT)] * GROUP, list(completions), list(logprobs), prompt_id=seed)


def timed(act: Callable[[int], object], repeats: int) -> float:
    """Median seconds of one call."""
    spent = []
    for index in range(repeats):
        begun = time.perf_counter()
        act(index)
        spent.append(time.perf_counter() - begun)
    return statistics.median(spent)


def segments(directory: Path, record: Record, groups: int, *, disk: bool) -> dict[str, float]:
    """Append and replay with segments; making the record is part of the time."""
    writer = SegmentWriter.create(directory, 0, sync=disk)
    frame = b"".join(encode(record, 0))

    def append(index: int) -> None:
        writer.reserve(len(frame) + 4096)
        writer.append(encode(record, index))

    append_s = timed(append, groups)
    nbytes = writer.position
    writer.close()
    begun = time.perf_counter()
    count = sum(1 for _ in SegmentReader(writer.path))
    assert count == groups
    return figures(append_s, time.perf_counter() - begun, nbytes, len(frame) * groups)


def lmdb_log(directory: Path, record: Record, groups: int, *, disk: bool) -> dict[str, float]:
    """The same with one LMDB transaction a group."""
    import lmdb

    frame = b"".join(encode(record, 0))
    environment = lmdb.open(str(directory), map_size=4 * len(frame) * groups + (64 << 20), sync=disk, metasync=disk)

    def append(index: int) -> None:
        with environment.begin(write=True) as transaction:
            transaction.put(struct.pack(">Q", index), b"".join(encode(record, index)), append=True)

    append_s = timed(append, groups)
    nbytes = (directory / "data.mdb").stat().st_size
    environment.close()
    begun, count = time.perf_counter(), 0
    environment = lmdb.open(str(directory), readonly=True)
    with environment.begin(buffers=True) as transaction:
        for _, value in transaction.cursor():
            assert zlib.crc32(value[8:]) == struct.unpack_from("<I", value, 4)[0]
            count += 1
    environment.close()
    assert count == groups
    return figures(append_s, time.perf_counter() - begun, nbytes, len(frame) * groups)


def figures(append_s: float, replay_s: float, nbytes: int, payload: int) -> dict[str, float]:
    """What is printed of one log."""
    return {"append_us": 1e6 * append_s, "replay_gb_per_s": payload / replay_s / 1e9, "bytes_ratio": nbytes / payload}


def whole(directory: Path, groups: int, sync: str | None) -> dict[str, float]:
    """Add and draw with a buffer, journaled or not, that holds half of the groups."""
    given = [group(seed) for seed in range(16)]
    rng, buffer = np.random.default_rng(0), ReplayBuffer(GROUP * groups // 2)
    journaled = buffer if sync is None else JournaledBuffer(buffer, directory, sync=sync)
    for step in range(8):
        journaled.add(given[step], train_step=step)
    result = {
        "add_us": 1e6 * timed(lambda index: journaled.add(given[index % 16], train_step=8), groups),
        "draw_us": 1e6 * timed(lambda index: journaled.sample(64, train_step=8, rng=rng), groups),
    }
    if isinstance(journaled, JournaledBuffer):
        journaled.close()
        with JournaledBuffer(ReplayBuffer(GROUP * groups // 2), directory) as again:
            result |= {"reopen_s": again.recovered.duration_s, "records": again.recovered.records}
    return result


def main() -> None:
    """Print everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, default=1000)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--directory", type=Path, help="on the disk to measure; default: the temporary directory")
    options = parser.parse_args()
    record = Record("add", 0, to_arrays(group(0), "rollouts."))
    results: dict[str, dict[str, float]] = {}
    for disk in (False, True):
        groups = options.groups // 4 if disk else options.groups
        for name, log in (("segments", segments), ("lmdb", lmdb_log)):
            directory = Path(tempfile.mkdtemp(dir=options.directory))
            try:
                results[f"{name}, {'disk' if disk else 'process'}"] = log(directory, record, groups, disk=disk)
            except ImportError:
                print("lmdb is not installed: skipped (pip install lmdb)")
            finally:
                shutil.rmtree(directory)
    for sync in (None, "process", "disk"):
        directory = Path(tempfile.mkdtemp(dir=options.directory))
        results[f"buffer, {sync or 'no journal'}"] = whole(
            directory, options.groups // (4 if sync == "disk" else 1), sync
        )
        shutil.rmtree(directory)
    for name, values in results.items():
        print(f"{name:20s}" + "".join(f"  {key} {value:10.3f}" for key, value in values.items()))
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
