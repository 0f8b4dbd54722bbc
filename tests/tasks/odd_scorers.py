"""Reward functions that misbehave, imported by the scoring processes of the tests."""

import os
import signal
import subprocess
import sys
import time


def measured(prompt: str, completion: str, answer: str, details: dict) -> float:
    """The length of the completion; some words make it misbehave."""
    word, _, rest = completion.partition(" ")
    if word == "sleep":
        time.sleep(float(rest))
    elif word == "hang":
        time.sleep(1e6)
    elif word == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    elif word == "exit":
        sys.exit(3)
    elif word == "raise":
        raise KeyError(rest)
    elif word == "spawn":
        child = subprocess.Popen(["sleep", "1000"])
        with open(rest, "w") as file:
            file.write(str(child.pid))
        time.sleep(1e6)
    elif word == "lock":
        # C code that never lets go of the interpreter's lock.
        import re

        re.match(r"(a+)+$", "a" * 60 + "b")
    elif word == "process":
        return float(os.getpid())
    elif word == "torch":
        return float("torch" in sys.modules)
    elif word == "print":
        print("a scorer that talks")
    elif word == "nan":
        return float("nan")
    return len(completion) / 100


def named(*, completion: str, answer: str = "") -> int:
    return int(completion == answer)


def everything(**known) -> float:
    return float(sorted(known) == ["answer", "completion", "details", "prompt"] and known["details"]["level"] == 3)


def positional(completion: str, /) -> float:
    return 0.0


def batched(completions: list, prompts: list) -> list:
    return [0.0]


def textual(completion: str) -> str:
    return "high"


async def later(completion: str) -> float:
    return 0.0
