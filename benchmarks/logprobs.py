"""Memory and time of log-probs at a large vocabulary, forward and backward: `python -m benchmarks.logprobs`.

    python -m benchmarks.logprobs [--tokens 4096] [--types float32,bf16] [--rounds 3] [--markdown docs/logprobs.md]

Every contestant computes log-probs of the same tokens from the same hidden states and output layer (that of Qwen3-0.6B:
151,936 x 1,024) and the gradient of their weighted sum for both; bf16 is autocast over float32 weights. Each
measurement is one call in a process of its own, warmed up on 8 positions; processes take turns, ratios are formed
within a round. Memory is the peak of resident (on CUDA: allocated) memory above what stood before the call, gradients
included. Time is that of the processor, which other work disturbs least; on CUDA that of the clock. The exit code is 0,
with --strict it is 1 after a MISS.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from benchmarks.buffer.machine import default_environment, forget_peak, peak_resident_bytes, resident_bytes
from torch import Tensor

from ostinato.logprobs import linear_logprobs, selected_logprobs

ROOT = Path(__file__).parents[1]
MARK = "<!-- measured -->"
WARM_UP_POSITIONS, CHECKED_POSITIONS = 8, 128
MEMORY_BOUND, TIME_BOUND, GRADIENT_BOUND = 0.2, 1.5, 1e-5
OURS, PLAIN = "ostinato linear_logprobs", "plain: log_softmax, gather"


def plain(hidden_ND: Tensor, weight_VD: Tensor, tokens_N: Tensor) -> Tensor:
    logits_NV = torch.nn.functional.linear(hidden_ND, weight_VD)
    return logits_NV.log_softmax(-1, dtype=torch.float32).gather(-1, tokens_N[:, None]).squeeze(-1)


def plain_with_entropy(hidden_ND: Tensor, weight_VD: Tensor, tokens_N: Tensor) -> Tensor:
    return selected_logprobs(torch.nn.functional.linear(hidden_ND, weight_VD)[None], tokens_N[None], 1.0)[0][0]


def ours(hidden_ND: Tensor, weight_VD: Tensor, tokens_N: Tensor) -> Tensor:
    return linear_logprobs(hidden_ND, weight_VD, tokens_N, 1.0)[0]


def trl_selective(hidden_ND: Tensor, weight_VD: Tensor, tokens_N: Tensor) -> Tensor:
    function = importlib.import_module("trl.trainer.utils").selective_log_softmax_and_entropy
    logits_1NV = torch.nn.functional.linear(hidden_ND, weight_VD)[None]
    found: Tensor = function(logits_1NV, tokens_N[None], entropy_requires_grad=False)[0][0]
    return found


def trl_fused(hidden_ND: Tensor, weight_VD: Tensor, tokens_N: Tensor) -> Tensor:
    function = importlib.import_module("trl.kernels.chunked_logprob").ChunkedLogProbFunction
    block = importlib.import_module("trl.trainer.utils")._CHUNKED_LOGPROB_CHUNK_SIZE
    found: Tensor = function.apply(hidden_ND, weight_VD, None, tokens_N, 1.0, block, None, 1.0, ("entropy",))[0]
    return found


def torch_chunked(hidden_ND: Tensor, weight_VD: Tensor, tokens_N: Tensor) -> Tensor:
    if not hasattr(torch.nn, "LinearCrossEntropyOptions"):
        raise ImportError("torch has no chunked linear_cross_entropy")
    # The size it would choose by itself is a fraction of this and several times slower.
    options = torch.nn.LinearCrossEntropyOptions(batch_chunk_size=512, chunking_method=None)
    function: Callable[..., Tensor] = torch.nn.functional.linear_cross_entropy
    return -function(hidden_ND, weight_VD, tokens_N, reduction="none", options=options)


def liger(hidden_ND: Tensor, weight_VD: Tensor, tokens_N: Tensor) -> Tensor:
    if not hidden_ND.is_cuda:
        raise ImportError("needs CUDA")
    parent = importlib.import_module("liger_kernel.chunked_loss.fused_linear_ppo").LigerFusedLinearPPOBase
    found: Tensor = parent.chunk_forward(hidden_ND[None], weight_VD, tokens_N[None])[0]
    return found


CONTESTANTS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    PLAIN: plain,
    OURS: ours,
    "ostinato selected_logprobs": plain_with_entropy,
    "TRL selective_log_softmax_and_entropy": trl_selective,
    "TRL fused head": trl_fused,
    "torch linear_cross_entropy, chunked": torch_chunked,
    "liger": liger,
}


def main() -> None:
    """Measure, print a line a contestant, write the table."""
    arguments = _arguments()
    if arguments.child:
        torch.set_num_threads(arguments.threads)
        warnings.simplefilter("ignore")
        print(json.dumps(_differences(arguments) if arguments.child == "check" else _call(arguments)))
        return
    lines = ["| type | contestant | peak memory, MiB | of plain | seconds | of plain | verdict |", "|---|" + "---|" * 6]
    print(*lines, sep="\n", flush=True)
    missed = False
    for kind in arguments.types.split(","):
        for line in _table(arguments, kind):
            print(line, flush=True)
            lines.append(line)
            missed |= "MISS" in line
    check = _child(arguments, "check", "float32")
    worst = max(check["differences"].values())
    missed |= worst > GRADIENT_BOUND
    verdict = "MISS" if worst > GRADIENT_BOUND else "pass"
    differences = ", ".join(f"{name} {value:.1e}" for name, value in check["differences"].items())
    note = (
        f"Largest difference from plain in float32, {CHECKED_POSITIONS} positions: {differences} "
        f"(at most {GRADIENT_BOUND:.0e}: {verdict})."
    )
    print(note)
    if arguments.markdown:
        _write(arguments, check["device"], lines, note)
    sys.exit(int(arguments.strict and missed))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.logprobs", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--tokens", type=int, default=4096, help="positions")
    parser.add_argument("--vocabulary", type=int, default=151_936)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--types", default="float32,bf16")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", help="names that contain this, beside plain")
    parser.add_argument("--markdown", type=Path, help="write the table here, behind the mark of a file that has one")
    parser.add_argument("--strict", action="store_true", help="exit code 1 when a goal is missed")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    return parser.parse_args()


def _table(arguments: argparse.Namespace, kind: str) -> list[str]:
    """A line a contestant: medians over the rounds, in which all take turns."""
    names = [name for name in CONTESTANTS if name == PLAIN or (arguments.only or "") in name]
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    failures: dict[str, str] = {}
    for _ in range(arguments.rounds):
        for name in names:
            if name not in failures:
                found = _child(arguments, name, kind)
                if "failure" in found:
                    failures[name] = found["failure"]
                else:
                    rounds[name].append(found)
    lines = []
    for name in names:
        if name in failures:
            lines.append(f"| {kind} | {name} | | | | | skipped: {failures[name]} |")
            continue
        bytes_, seconds = (statistics.median(each[key] for each in rounds[name]) for key in ("bytes", "seconds"))
        memory, duration = (_ratio(rounds, name, key) for key in ("bytes", "seconds"))
        verdict = ""
        if name == OURS:
            verdict = "pass" if memory <= MEMORY_BOUND and duration <= TIME_BOUND else "MISS"
            verdict += f" (memory at most {MEMORY_BOUND}, time at most {TIME_BOUND})"
        lines.append(
            f"| {kind} | {name} | {bytes_ / 2**20:,.0f} | {memory:.3f} | {seconds:.2f} | {duration:.2f} | {verdict} |"
        )
    return lines


def _ratio(rounds: dict[str, list[dict[str, float]]], name: str, key: str) -> float:
    return statistics.median(own[key] / base[key] for own, base in zip(rounds[name], rounds[PLAIN], strict=True))


def _child(arguments: argparse.Namespace, name: str, kind: str) -> dict[str, Any]:
    sizes = ("tokens", "vocabulary", "width", "threads")
    options = [f"--{size}={getattr(arguments, size)}" for size in sizes]
    command = [sys.executable, "-m", "benchmarks.logprobs", f"--child={name}", f"--types={kind}", *options]
    done = subprocess.run(
        command, cwd=ROOT, env=dict(default_environment()), capture_output=True, text=True, check=False
    )
    if done.returncode:
        return {"failure": (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _call(arguments: argparse.Namespace) -> dict[str, float]:
    """Peak memory and time of one forward and backward pass of one contestant."""
    contestant = CONTESTANTS[arguments.child]
    bf16 = arguments.types == "bf16"
    inputs = _inputs(arguments, arguments.tokens)
    _forward_and_backward(contestant, _inputs(arguments, WARM_UP_POSITIONS, inputs[1]), bf16)
    inputs[1].grad = None
    cuda = inputs[0].is_cuda
    if cuda:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before, start = torch.cuda.memory_allocated(), time.perf_counter()
        _forward_and_backward(contestant, inputs, bf16)
        torch.cuda.synchronize()
        return {"bytes": torch.cuda.max_memory_allocated() - before, "seconds": time.perf_counter() - start}
    before = resident_bytes()
    forget_peak()
    start = time.process_time()
    _forward_and_backward(contestant, inputs, bf16)
    return {"bytes": peak_resident_bytes() - before, "seconds": time.process_time() - start}


def _inputs(
    arguments: argparse.Namespace, positions: int, weight: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states of about unit size, weights of the size of an initialized layer, tokens."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = torch.Generator().manual_seed(0)
    hidden_ND = torch.randn(positions, arguments.width, generator=generator).to(device).requires_grad_()
    if weight is None:
        weight = torch.randn(arguments.vocabulary, arguments.width, generator=generator).mul_(0.05).to(device)
    return hidden_ND, weight.requires_grad_(), torch.randint(len(weight), (positions,), generator=generator).to(device)


def _forward_and_backward(contestant: Callable[..., Tensor], inputs: tuple[Tensor, ...], bf16: bool) -> Tensor:
    with torch.autocast(inputs[0].device.type, torch.bfloat16, enabled=bf16):
        logprobs_N = contestant(*inputs)
    coefficients_N = torch.linspace(-1, 1, len(logprobs_N), device=logprobs_N.device)
    (logprobs_N * coefficients_N).sum().backward()
    return logprobs_N.detach()


def _differences(arguments: argparse.Namespace) -> dict[str, Any]:
    """Largest absolute differences between ours and plain."""
    found = []
    for contestant in (ours, plain):
        hidden_ND, weight_VD, tokens_N = _inputs(arguments, CHECKED_POSITIONS)
        logprobs_N = _forward_and_backward(contestant, (hidden_ND, weight_VD, tokens_N), bf16=False)
        found.append({"log-probs": logprobs_N, "gradient of hidden": hidden_ND.grad, "of weight": weight_VD.grad})
    differences = {name: float((found[0][name] - found[1][name]).abs().max()) for name in found[0]}
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"{arguments.threads} threads of a CPU"
    return {"differences": differences, "device": device}


def _write(arguments: argparse.Namespace, device: str, lines: list[str], note: str) -> None:
    """Into a file of its own, or behind the mark of one that exists."""
    path: Path = arguments.markdown
    before, mark, _ = path.read_text(encoding="utf-8").partition(MARK) if path.exists() else ("", "", "")
    versions = ", ".join(f"{name} {_version(name)}" for name in ("ostinato", "torch", "trl", "liger-kernel"))
    sizes = f"{arguments.tokens:,} positions, vocabulary {arguments.vocabulary:,}, width {arguments.width:,}"
    head = f"`python -m benchmarks.logprobs`, {device}, {sizes}, medians of {arguments.rounds} rounds; {versions}."
    path.write_text(
        "\n".join([f"{before if mark else ''}{MARK}", "", head, "", *lines, "", note, ""]), encoding="utf-8"
    )


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"


if __name__ == "__main__":
    main()
