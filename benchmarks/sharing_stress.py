"""Producers and consumers over shared memory, flat out, a checksum on every row, and a producer killed now and then.

    python benchmarks/sharing_stress.py [--seconds 60] [--producers 4] [--consumers 2] [--sync auto] [--json FILE]

Prints rates, rows drawn anew and torn rows. The exit code is 1 when a row was torn, came twice, out of order or not at
all, or when anybody failed. The rings are small, so that rows are overwritten under the readers all the time.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ostinato.buffer.workspace import Workspace
from ostinato.ragged import offsets_of
from ostinato.rollouts import Rollouts
from ostinato.sharing import EndOfStream, ProducerDied, SharedProducer, SharedReader, shared_directory
from ostinato.sharing.directory import MAX_RINGS

GROUP, BATCH, POOL = 16, 128, 64
PATIENCE_S = 60.0
READY = "ready\n"


def main() -> int:
    arguments = _arguments()
    if arguments.role is not None:
        return {"produce": produce, "draw": draw, "drain": drain}[arguments.role](arguments)
    with shared_directory() as directory:
        result = orchestrate(arguments, directory)
    for name, value in result.items():
        print(f"{name:24} {value:,.0f}" if isinstance(value, (int, float)) else f"{name:24} {value}")
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(result))
    return int(bool(result["torn"] or result["missing"] or result["failed"] or not result["checked"]))


def orchestrate(arguments: argparse.Namespace, directory: Path) -> dict[str, Any]:
    """Start everybody, kill a producer now and then, and add up what they report."""
    roles = ["draw" if k % 2 == 0 else "drain" for k in range(arguments.consumers)]
    consumers = [_start(arguments, directory, role, f"consumer-{k}") for k, role in enumerate(roles)]
    names = [f"producer-{k}" for k in range(arguments.producers)]
    for consumer in consumers:
        _await(consumer)
    producers = {name: _start(arguments, directory, "produce", name) for name in names}
    for producer in producers.values():
        _await(producer)
    begin = time.monotonic()
    deadline = begin + arguments.seconds
    for producer in producers.values():
        _tell(producer, deadline)
    kills = 0
    while arguments.kill_every_s and time.monotonic() + arguments.kill_every_s < deadline - 1:
        time.sleep(arguments.kill_every_s)
        victim = names[kills % len(names)]
        producers[victim].kill()
        producers[victim].wait()
        producers[victim] = _start(arguments, directory, "produce", victim)
        _tell(producers[victim], deadline)
        kills += 1
    reports = [_report(process, arguments.seconds) for process in (*producers.values(), *consumers)]
    with SharedReader(directory) as reader:
        written = sum(status.written for status in reader.producers())
    total = {
        key: sum(report.get(key, 0) for report in reports)
        for key in ("checked", "torn", "missing", "failed", "drawn", "drained", "lost", "redrawn", "retries", "deaths")
    }
    seconds = time.monotonic() - begin
    rates = {f"{key} a second": total[key] / seconds for key in ("drawn", "drained")}
    return {"written a second": written / seconds, **rates, "kills": kills, **total}


def produce(arguments: argparse.Namespace) -> int:
    """Add groups until the deadline. Row number, prompt id and group mean say the same, the reward is a checksum."""
    owner = int(arguments.name.rpartition("-")[2])
    rng = np.random.default_rng(owner)
    pool = [_group(rng, owner) for _ in range(POOL)]
    producer = SharedProducer(
        arguments.directory, arguments.name, capacity=arguments.capacity, capacity_bytes=2 << 20, sync=arguments.sync
    )
    print(READY, end="", flush=True)
    deadline = float(sys.stdin.readline())
    while time.monotonic() < deadline:
        serial = np.arange(producer.written, producer.written + GROUP)
        group = pool[int(serial[0] // GROUP) % POOL]
        producer.add(group.replace(prompt_id=serial, group_reward_mean=serial / 2), train_step=0)
    producer.close()
    print("{}")
    return 0


def draw(arguments: argparse.Namespace) -> int:
    """Draw batches until all producers have closed."""
    rng, memory, report = np.random.default_rng(0), Workspace(), _empty_report()
    with SharedReader(arguments.directory, min_size=1) as reader:
        print(READY, end="", flush=True)
        while True:
            try:
                batch = reader.sample(BATCH, train_step=0, rng=rng, out=memory, timeout_s=PATIENCE_S)
            except ProducerDied as death:
                reader.forgive(death.producer)
                report["deaths"] += 1
                continue
            except EndOfStream:
                break
            report["torn"] += int(np.count_nonzero(wrong(batch.rollouts, batch.rollout_ids // MAX_RINGS)))
            report["drawn"] += BATCH
            if report["drawn"] % (64 * BATCH) == 0 and all(status.closed for status in reader.producers()):
                break
        report |= {"redrawn": int(reader.metrics()["torn_rows_redrawn"])}
        report |= {"retries": int(reader.metrics()["batches_redrawn"]), "checked": report["drawn"]}
    print(json.dumps(report))
    return 0


class Checked:
    """A store that looks at what it is given and keeps nothing: each producer's rows must come once and in order."""

    def __init__(self) -> None:
        self.torn = self.drained = self.out_of_order = 0
        self._next: dict[int, int] = {}

    def can_add(self, n: int) -> bool:
        return True

    def add(self, rollouts: Rollouts, *, train_step: int) -> NDArray[np.int64]:
        serials = rollouts.prompt_id
        owner = int(rollouts.birth_step[0])
        self.torn += int(np.count_nonzero(wrong(rollouts, serials)))
        good = np.all(np.diff(serials) == 1) and serials[0] >= self._next.get(owner, 0)
        self.out_of_order += int(not (good and np.all(rollouts.birth_step == owner)))
        self._next[owner] = int(serials[-1]) + 1
        self.drained += len(rollouts)
        return serials


def drain(arguments: argparse.Namespace) -> int:
    """Drain until all producers have closed: what came, what was lost and what was written must agree."""
    report, store = _empty_report(), Checked()
    with SharedReader(arguments.directory, name=arguments.name) as reader:
        print(READY, end="", flush=True)
        while True:
            try:
                reader.drain(store, train_step=0, timeout_s=PATIENCE_S)
            except ProducerDied as death:
                reader.forgive(death.producer)
                report["deaths"] += 1
            except EndOfStream:
                break
        lost, written = sum(reader.lost.values()), sum(status.written for status in reader.producers())
    report |= {"torn": store.torn, "drained": store.drained, "checked": store.drained, "lost": lost}
    report["missing"] = abs(written - store.drained - lost) + store.out_of_order
    print(json.dumps(report))
    return 0


def wrong(rollouts: Rollouts, serials: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Rows whose payload does not fit their checksum, or whose columns do not fit each other."""
    good = (checksums(rollouts) == rollouts.reward) & (rollouts.prompt_id == serials)
    return np.asarray(~(good & (rollouts.group_reward_mean == serials / 2)))


def checksums(rollouts: Rollouts) -> NDArray[np.float64]:
    """A number that changes with every token, mask and log-prob of a row, and with their places; exact in float64."""
    starts = rollouts.offsets[:-1]
    place = np.arange(len(rollouts.tokens)) - np.repeat(starts, rollouts.lengths)
    bits = rollouts.behavior_logprobs.view(np.int32).astype(np.int64)
    words = (rollouts.tokens + 3 * rollouts.loss_mask + bits % 1_000_003) * (place + 1)
    return np.add.reduceat(words, starts).astype(np.float64)


def _group(rng: np.random.Generator, owner: int) -> Rollouts:
    lengths = 32 + np.minimum(rng.lognormal(np.log(70), 0.8, GROUP).astype(np.int64), 480)
    columns = Rollouts.from_completions([[0]] * GROUP, [[]] * GROUP, [[]] * GROUP, birth_step=owner, source="stress")
    total = int(lengths.sum())
    group = columns.replace(
        tokens=rng.integers(0, 150_000, total).astype(np.int32),
        loss_mask=rng.random(total) < 0.5,
        behavior_logprobs=-rng.random(total).astype(np.float32),
        offsets=offsets_of(lengths),
    )
    return group.replace(reward=checksums(group))


def _empty_report() -> dict[str, int]:
    return dict.fromkeys(("checked", "torn", "drawn", "deaths"), 0)


def _start(arguments: argparse.Namespace, directory: Path, role: str, name: str) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, "--role", role, "--directory", str(directory), "--name", name]
    command += ["--capacity", str(arguments.capacity), "--sync", arguments.sync]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _await(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None and process.stdout.readline() == READY


def _tell(producer: subprocess.Popen[str], deadline: float) -> None:
    assert producer.stdin is not None
    producer.stdin.write(f"{deadline}\n")
    producer.stdin.flush()


def _report(process: subprocess.Popen[str], seconds: float) -> dict[str, int]:
    try:
        output, _ = process.communicate(timeout=seconds + PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return {"failed": 1}
    return json.loads(output.splitlines()[-1]) if process.returncode == 0 else {"failed": 1}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--producers", type=int, default=4)
    parser.add_argument("--consumers", type=int, default=2, help="the first draws, the second drains, and so on")
    parser.add_argument("--capacity", type=int, default=512, help="rollouts a ring holds")
    parser.add_argument("--kill-every-s", type=float, default=2.0, help="SIGKILL for a producer, 0: never")
    parser.add_argument("--sync", default="auto", help="auto, seqlock or flock")
    parser.add_argument("--json", metavar="FILE", help="write the figures there")
    for name in ("role", "directory", "name"):
        parser.add_argument(f"--{name}", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
