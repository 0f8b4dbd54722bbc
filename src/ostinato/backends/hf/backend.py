"""A causal language model on a task in text: the parts of a run."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from ostinato.backends.hf.generator import HFGenerator
from ostinato.backends.hf.models import build_model, load_model
from ostinato.backends.hf.replicas import Replicas
from ostinato.backends.hf.tokenizer import character_tokenizer, decode_text
from ostinato.backends.hf.trainer import HFTrainer
from ostinato.backends.hf.warm_start import WarmStartReport, warm_start
from ostinato.backends.process import ProcessGenerator
from ostinato.config import RunConfig, SamplingConfig
from ostinato.governors import step_governor
from ostinato.protocols import Generator, Sampling
from ostinato.tasks import TaskSet, create, create_scorer


class HFBackend:
    """A `protocols.Backend`: policy, tokenizer, tasks and scorer as the configuration names them.

    `cache` keeps warm starts and converted models. The initial policy is loaded (`model.path`), or built and
    warm-started; a built one depends on `task.seed` and not on the run's seed: all runs on a task start from the same
    policy. On a GPU when torch sees one. Raises `ConfigError`, `MissingExtraError`, `DataError`, and `RunError` from a
    warm start.

    `warm_start_report` says what the warm start reached; None without one.
    """

    def __init__(self, config: RunConfig, cache: Path) -> None:
        torch.set_num_threads(config.threads)
        self._config, self._cache = config, cache
        self.tasks: TaskSet = create(config.task)
        self.warm_start_report: WarmStartReport | None = None
        if config.model.path:
            model, self.tokenizer = load_model(config.model.path, cache)
        else:
            self.tokenizer = character_tokenizer()
            model = build_model(config.model, self.tokenizer, config.task.seed)
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        # A model that several trainers spread over their devices need not fit on one.
        self._model = model if config.optimizer.fsdp else model.to(self._device)
        self.scorer = create_scorer(config.task, self.tasks, self._text)
        if not config.model.path and config.warm_start.target_accuracy > 0:
            self._warm_start(cache)

    def describe(self) -> str:
        """Architecture, size, origin."""
        parameters = sum(parameter.numel() for parameter in self._model.parameters())
        name = f"{type(self._model).__name__}, {parameters / 1e6:.3g} M parameters"
        report = self.warm_start_report
        if report is None:
            return f"{name}, {self._config.model.path or 'untrained'}"
        return f"{name}, {report.accuracy:.1%} sampled accuracy after {report.steps} supervised steps"

    def trainer(self, replicas: Replicas | None = None) -> HFTrainer:
        """A trainer at the initial weights, with a model of its own; `replicas`: one of several processes."""
        config = self._config
        return HFTrainer(
            self._model,
            self.tokenizer,
            loss=config.loss,
            optimizer=config.optimizer,
            bf16=config.model.bf16,
            max_new_tokens=config.sampling.max_new_tokens,
            governor=step_governor(config),
            lora=config.lora if config.lora.rank else None,
            seed=config.seed,
            replicas=replicas,
        )

    def generator(self) -> Generator:
        """A generator at the initial weights, with a model of its own.

        With generator = vllm it is vLLM's engine where that serves evaluations too: in turns, and in the generator
        processes of runtime = ray. Beside W engines in real time, which are busy, transformers evaluates.
        """
        if self._config.generator == "vllm" and (self._config.loop.clock == "turns" or self._config.runtime == "ray"):
            return self._vllm()
        lora = self._config.lora
        return HFGenerator(
            self._model,
            self.tokenizer,
            bf16=self._config.model.bf16,
            lora=lora if lora.rank and lora.sync == "adapter" else None,
            device=self._device,
        )

    def concurrent_generator(self) -> Generator:
        """A generator in a process of its own, which starts now (hf) or at first use (vllm)."""
        if self._config.generator == "vllm":
            return self._vllm()
        return ProcessGenerator(partial(_generator_of, self._config, self._cache))

    def _vllm(self) -> Generator:
        from ostinato.backends.vllm.initial_model import recipe_generator

        return recipe_generator(self._config, self._model, self.tokenizer, self._cache)

    def _text(self, tokens: NDArray[np.int32]) -> str:
        return decode_text(self.tokenizer, tokens)

    def _warm_start(self, cache: Path) -> None:
        config = self._config
        self._model, self.warm_start_report = warm_start(
            self._model,
            self.tokenizer,
            self.tasks,
            self.scorer,
            config.warm_start,
            sampling=sampling_of(config.sampling),
            seed=config.task.seed,
            cache=cache,
        )


def _generator_of(config: RunConfig, cache: Path) -> Generator:
    return HFBackend(config, cache).generator()


def sampling_of(config: SamplingConfig) -> Sampling:
    """The `sampling` section of a recipe as what a request carries."""
    return Sampling(temperature=config.temperature, max_new_tokens=config.max_new_tokens)
