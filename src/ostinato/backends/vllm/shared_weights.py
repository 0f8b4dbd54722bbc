"""Weights from this process to vLLM's workers through memory that they share: a transport of vLLM's weight-transfer
interface beside its own NCCL and CUDA IPC, which need GPUs.

vLLM's worker processes import this module too (`WorkerExtension`).
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import tempfile
import threading
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from vllm.config.weight_transfer import WeightTransferConfig
from vllm.distributed.weight_transfer import WeightTransferEngine, WeightTransferEngineFactory
from vllm.distributed.weight_transfer.base import WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

BACKEND = "ostinato_shared"
MEMORY = Path("/dev/shm")


@dataclass
class SharedInit(WeightTransferInitInfo):
    """Where the weights stand: a file of float32, `shapes` by name one after the other."""

    path: str
    shapes: dict[str, list[int]]


@dataclass
class SharedUpdate(WeightTransferUpdateInfo):
    """Nothing: all weights are there."""


class SharedReceiver(WeightTransferEngine):
    """The worker's end."""

    init_info_cls = SharedInit
    update_info_cls = SharedUpdate

    def __init__(self, config: WeightTransferConfig, vllm_config: Any, device: torch.device, model: Any) -> None:
        super().__init__(config, vllm_config, device, model)
        self._weights: dict[str, Tensor] = {}
        self._expected: set[str] = set()

    def init_transfer_engine(self, init_info: SharedInit) -> None:
        """Map the file, which loses its name afterwards."""
        self._weights = mapped(Path(init_info.path), init_info.shapes)

    def start_weight_update(self) -> None:
        """Expect weights in the format of a checkpoint."""
        # Those that are tied are one now and look like two while they are loaded.
        self._expected = {name for name, _ in self.model.named_parameters()}
        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: SharedUpdate) -> None:
        """Copy all weights into the model. Raises `RuntimeError` where one of the model's own got none."""
        loaded = self.model.load_weights(self._weights.items())
        if loaded is not None and (missing := self._expected - loaded):
            raise RuntimeError(f"no weights came for {sorted(missing)[:3]}")

    def finish_weight_update(self) -> None:
        """Bring what was loaded into the layout that the kernels want."""
        finalize_layerwise_reload(self.model, self.model_config)
        process_tied(self.model)

    def shutdown(self) -> None:
        """Let go of the file."""
        self._weights = {}


def process_tied(model: Any) -> None:
    """Bring layers up to date that share another's weight, as a head does the embedding's. vLLM 0.32 passes them over
    while it reloads, though on a CPU they compute with a packed copy, which is then the old one."""
    own = {name for name, _ in model.named_parameters()}
    for name, _ in model.named_parameters(remove_duplicate=False):
        if name not in own:
            layer = model.get_submodule(name.rpartition(".")[0])
            layer.quant_method.process_weights_after_loading(layer)


class WorkerExtension:
    """What a worker can be asked besides vLLM's own."""

    model_runner: Any

    def end_with_parent(self) -> None:
        """End when the process that started this one does, however it ends: vLLM 0.32 stays and keeps its memory."""
        threading.Thread(target=_wait_and_end, name="ostinato-parent", daemon=True).start()

    def vector_checksums(self) -> dict[str, tuple[str, int, int]]:
        """(dtype, length, `checksum`) of each one-dimensional weight by name: norms, biases. Kernels leave their layout
        alone, and every worker holds them whole; of a matrix that a kernel has packed away an empty one is left."""
        return {
            name: (str(weight.dtype).removeprefix("torch."), len(weight), checksum(weight))
            for name, weight in self.model_runner.get_model().named_parameters()
            if weight.ndim == 1
        }


def _wait_and_end() -> None:
    if parent := multiprocessing.parent_process():
        parent.join()
        os._exit(1)


class SharedSender:
    """This process's end: the file, and what workers need to find it. Raises `OSError` where there is no room."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self._shapes = {name: list(shape) for name, shape in shapes.items()}
        size = 4 * sum(prod(shape) for shape in shapes.values())
        room = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > size
        handle, path = tempfile.mkstemp(prefix="ostinato-weights-", dir=MEMORY if room else None)
        self._path = Path(path)
        try:
            os.posix_fallocate(handle, 0, size)
            self._weights = mapped(self._path, self._shapes)
        except BaseException:
            self.forget_name()
            raise
        finally:
            os.close(handle)

    @property
    def init_info(self) -> dict[str, Any]:
        """`SharedInit` as vLLM sends it."""
        return {"path": str(self._path), "shapes": self._shapes}

    def forget_name(self) -> None:
        """Once all have mapped the file: it then ends with the last process, however that ends."""
        self._path.unlink(missing_ok=True)

    def write(self, weights: Mapping[str, Any]) -> None:
        """Put these weights, tensors or arrays, where the workers read them."""
        for name, place in self._weights.items():
            place.copy_(torch.as_tensor(weights[name]))


def mapped(path: Path, shapes: Mapping[str, list[int]]) -> dict[str, Tensor]:
    """The weights in the file, by name: float32 views that share its memory."""
    return dict(_views(path, shapes))


def _views(path: Path, shapes: Mapping[str, list[int]]) -> Iterator[tuple[str, Tensor]]:
    total = sum(prod(shape) for shape in shapes.values())
    flat, start = torch.from_file(str(path), shared=True, size=total, dtype=torch.float32), 0
    for name, shape in shapes.items():
        yield name, flat[start : start + prod(shape)].view(shape)
        start += prod(shape)


def checksum(weight: Tensor) -> int:
    """CRC-32 of the bytes."""
    return zlib.crc32(weight.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())


WeightTransferEngineFactory.register_engine(BACKEND, SharedReceiver)
