"""What a saved buffer draws next, as one number. Run as a script in another process: `saved_draws.py DIRECTORY`."""

import hashlib
import json
import sys
from pathlib import Path

import numpy as np
from families import SAMPLERS
from rollout_makers import groups

from ostinato.buffer import MinSize, ReplayBuffer
from ostinato.errors import DataError
from ostinato.rollouts import TOKEN_COLUMNS

CAPACITY = 60


def empty_buffer(sampler: str, kernels: str) -> ReplayBuffer:
    """A buffer for the named family of `SAMPLERS`."""
    return ReplayBuffer(CAPACITY, sampler=SAMPLERS[sampler][0](), limiter=MinSize(1), kernels=kernels)


def next_draws(buffer: ReplayBuffer, rng: np.random.Generator, draws: int = 1000) -> str:
    """A digest of the next draws, eight at a time, with adds, write-backs and growing steps between them."""
    digest, step = hashlib.sha256(), buffer.train_step
    for number in range(draws // 8):
        if number % 10 == 9:
            step += 1
            buffer.add(groups(rng, [3, 3], first_group=10_000 + 2 * number, version=step), train_step=step)
        try:
            draw = buffer.sample(6 if number % 2 else 9, train_step=step, rng=rng)
        except DataError as error:  # buckets and whole groups may have too few: then that must be the same
            digest.update(str(error).encode())
            continue
        for array in (draw.rollout_ids, draw.importance_weights, draw.uses, draw.staleness, draw.rollouts.reward):
            digest.update(array.tobytes())
        for name in TOKEN_COLUMNS:
            digest.update(getattr(draw.rollouts, name).tobytes())
        buffer.update_priorities(draw.rollout_ids, rng.random(len(draw)))
    return digest.hexdigest()


def main(directory: Path, kernels: str) -> None:
    """Print the digest of every file in the directory, by the name of its sampler."""
    digests = {}
    for path in sorted(directory.iterdir()):
        buffer = empty_buffer(path.name, kernels)
        digests[path.name] = next_draws(buffer, buffer.load(path)["draws"])
    print(json.dumps(digests))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
