"""Two made-up streams of rollouts: reasoning chains (long) and short answers. Fixed seed, no model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

GROUP_SIZE = 16
PAYLOAD_BYTES_PER_TOKEN = 9  # int32 token, bool mask, float32 log-prob
Record = Mapping[str, Any]
"""What an engine hands over for one rollout: `tokens, mask, logprobs` (numpy rows) and plain numbers."""


@dataclass(frozen=True, slots=True)
class Profile:
    """Lengths of a stream: a fixed prompt, then lognormal(mean, sigma) tokens, `longest` tokens in all at most."""

    name: str
    prompt: int
    mean: float
    sigma: float
    longest: int


PROFILES = {"long": Profile("long", 128, 872, 0.8, 4096), "short": Profile("short", 32, 96, 0.8, 512)}


class Source:
    """n rollouts of a profile, packed; row `uid % n` is what a contestant must give back for `uid`."""

    def __init__(self, profile: Profile, n: int, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        drawn = rng.lognormal(np.log(profile.mean) - profile.sigma**2 / 2, profile.sigma, n).astype(np.int64) + 1
        self.profile = profile
        self.lengths: NDArray[np.int64] = np.minimum(profile.prompt + drawn, profile.longest)
        self.offsets: NDArray[np.int64] = np.concatenate([[0], np.cumsum(self.lengths)])
        total = int(self.offsets[-1])
        position = np.arange(total) - np.repeat(self.offsets[:-1], self.lengths)
        self.mask: NDArray[np.bool_] = position >= profile.prompt
        self.tokens: NDArray[np.int32] = rng.integers(1, 150_000, total, dtype=np.int32)
        self._share_prompts()
        self.logprobs: NDArray[np.float32] = np.where(self.mask, -rng.random(total, np.float32), np.float32(0))
        self.reward: NDArray[np.float64] = rng.integers(0, 2, n).astype(np.float64)
        self.advantage: NDArray[np.float64] = rng.normal(size=n)

    def __len__(self) -> int:
        return len(self.lengths)

    def _share_prompts(self) -> None:
        """The rollouts of a group answer one prompt."""
        first = self.offsets[:-1]
        leader = first[np.arange(len(self)) // GROUP_SIZE * GROUP_SIZE]
        columns = np.arange(self.profile.prompt)
        self.tokens[first[:, None] + columns] = self.tokens[leader[:, None] + columns]

    @property
    def payload_bytes(self) -> int:
        """Bytes of tokens, masks and log-probs of all n rollouts."""
        return int(self.offsets[-1]) * PAYLOAD_BYTES_PER_TOKEN

    def record(self, uid: int) -> dict[str, Any]:
        """One rollout as an engine would hand it over; the arrays are views."""
        row = uid % len(self)
        span = slice(self.offsets[row], self.offsets[row + 1])
        return {
            "tokens": self.tokens[span],
            "mask": self.mask[span],
            "logprobs": self.logprobs[span],
            "prompt_length": self.profile.prompt,
            "advantage": float(self.advantage[row]),
            "reward": float(self.reward[row]),
            "group": uid // GROUP_SIZE,
            "uid": uid,
            "version": 0,
        }

    def groups(self, size: int = GROUP_SIZE) -> Iterator[list[Record]]:
        """The stream, `size` records at a time, without end; uid rises from 0."""
        first = 0
        while True:
            yield [self.record(uid) for uid in range(first, first + size)]
            first += size
