"""`GRPOTrainer` with a replay buffer.

What is TRL's stays TRL's: the data loader, `_generate_and_score_completions`, rewards, advantages, losses, vLLM. Replay
comes in where TRL hands a micro-batch to its loss. Every `steps_per_generation * uses` micro-batches TRL generates, and
what it made is recorded in the buffer; at the first micro-batch of each optimizer step a batch is drawn. Saying `uses`
as TRL's `num_iterations` makes its data loader wait for the next generation; that setting decides nothing else here.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object  # type: ignore[import-untyped]
from torch import Tensor
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from ostinato.errors import ConfigError
from ostinato.integrations.trl.batches import Window, micro_batches, trained, weigh
from ostinato.integrations.trl.card import ReplayCardMixin
from ostinato.integrations.trl.checks import check_generation, check_training
from ostinato.integrations.trl.config import ReplayConfig
from ostinato.integrations.trl.recording import GroupScores, Origin, kinds_of_fields, recorded
from ostinato.integrations.trl.store import ReplayStore
from ostinato.integrations.trl.telling import followed_up, over_processes
from ostinato.losses import masked_log_ratio, rollout_figures
from ostinato.losses.catalog import Objective
from ostinato.losses.inputs import LossInputs

FORWARD = (
    "pixel_values",
    "image_grid_thw",
    "num_images",
    "pixel_attention_mask",
    "spatial_shapes",
    "num_tiles",
    "image_sizes",
    "token_type_ids",
    "mm_token_type_ids",
    "image_position_ids",
)
"""What TRL's batch may hold that its forward pass takes beside tokens and their mask."""

DIRECTORY = "replay"
"""Where a checkpoint keeps the buffers of all processes."""

Mixed: Any = object
"""To a type checker: the trainer that `ReplayMixin` stands before, whose attributes it uses."""


class ReplayMixin(ReplayCardMixin, Mixed):  # type: ignore[misc]
    """Replay for any subclass of `GRPOTrainer`: `class Replaying(ReplayMixin, GMPOTrainer): ...`, itself first.

    `replay`: what and how; every other argument is the subclass's, `args` (a `GRPOConfig`) the third or by name.
    Overrides `_prepare_inputs` (record, draw), `_calculate_rewards` (raw rewards), the two checkpoint hooks, for a loss
    of ours `_compute_loss`, and listens to `_get_per_token_logps_and_entropies`, whose results TRL does not keep. A
    subclass that overrides anything else is heard; its own `_prepare_inputs` is used in evaluation alone.

    `replay_store.buffer` is the buffer of this process: a judge may write priorities to it by rollout id, at any time
    between two micro-batches. Policy version and train step are `state.global_step`. Old log-probs are those of the
    policy that generated and are never recomputed; advantages are those that TRL computed then.

    An optimizer step that finds too little in the buffer (all too old, warming up) generates out of turn, on the
    prompts at hand, and takes what was just generated if even then the buffer gives no batch: `extra_generations` and
    `borrowed_batches` under `replay/` count these. A sampler's importance weights multiply the advantages.

    Checkpoints hold the buffer. A run resumed from any of them, between two generations too, goes on as if it had not
    stopped, as far as TRL restores the rest: it resumes a later epoch with the data order of the first, so prompts
    differ from there on; and the random state of a vLLM engine is not saved.

    Raises `ConfigError` at construction for what cannot work (`ostinato.integrations.trl.checks`).
    """

    _window: Window | None = None
    _trained_state: Any = None
    _loaded_state: Any = None
    replay_store: ReplayStore | None = None

    def __init__(self, *positional: Any, replay: ReplayConfig, **named: Any) -> None:
        if not isinstance(replay, ReplayConfig):
            raise ConfigError(f"replay is {type(replay).__name__}, expected ReplayConfig(capacity=...)")
        given = positional[2] if len(positional) > 2 else named.get("args")
        if given is not None:
            if not isinstance(given, GRPOConfig):
                raise ConfigError(f"args is {type(given).__name__}, expected a GRPOConfig")
            check_training(given, replay)
            prepared = copy.copy(given)
            prepared.num_iterations = replay.generation_uses
            if len(positional) > 2:
                positional = (*positional[:2], prepared, *positional[3:])
            else:
                named["args"] = prepared
        super().__init__(*positional, **named)
        if given is None:  # TRL has made one
            check_training(self.args, replay)
            self.args.num_iterations = self.num_iterations = replay.generation_uses
        if replay.replays and not self.use_vllm and self.rollout_func is None:
            check_generation(self.model.generation_config, self.generation_kwargs)
        self.replay = replay
        self._objective: Objective | None = replay.make_objective(self.beta)
        self.replay_store = self._new_store() if replay.draws else None

    def _new_store(self) -> ReplayStore:
        return ReplayStore(
            self.replay,
            processes=self.accelerator.num_processes,
            rank=self.accelerator.process_index,
            seed=self.args.seed,
            generation_rows=self.args.per_device_train_batch_size * self.args.steps_per_generation,
            recorded_with=kinds_of_fields(self),
        )

    # ---------------------------------------------------------------- record and draw

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        if self.replay_store is None or not self.model.training:
            return super()._prepare_inputs(generation_batch)
        if self._trained_state is not self.state:
            self._begin()
        if self._part == 0:
            self._window = self._next_window(generation_batch)
        assert self._window is not None
        return self._window.parts[self._part]

    def _begin(self) -> None:
        """`train` was called, which makes a new state: at its step micro-batches are counted from there."""
        assert self.replay_store is not None
        if self._loaded_state is not self.state and self.replay_store.counters["generations"]:
            self.replay_store = self._new_store()
        self._trained_state, self._window = self.state, None
        self._step = self.state.global_step * self.args.gradient_accumulation_steps

    @property
    def _part(self) -> int:
        """Number of the current micro-batch within its optimizer step."""
        return int(self._step % self.args.gradient_accumulation_steps)

    def _next_window(self, generation_batch: Any) -> Window:
        """The batch of the optimizer step that begins, generating first when it is time, or when there is no other."""
        args, step, device, store = self.args, self.state.global_step, self.accelerator.device, self.replay_store
        assert store is not None
        n = args.per_device_train_batch_size * args.gradient_accumulation_steps
        in_turn = self._step % (args.steps_per_generation * self.num_iterations) == 0
        generated = in_turn and not self._any_process(store.holds_back())
        if generated:
            self._record(store, generation_batch)
        elif in_turn:
            store.counters["held_back_generations"] += 1
        draw = store.draw(n, train_step=step)
        if not generated and self._any_process(draw is None):
            store.count_extra_generation(step)
            self._record(store, generation_batch)
            draw = draw or store.draw(n, train_step=step)
        borrowed = draw is None
        if draw is None:
            draw = store.borrow(n, train_step=step)
        rows, multiple_of = args.per_device_train_batch_size, self.pad_to_multiple_of or 1
        pad = self._tokenizer.pad_token_id
        parts = micro_batches(draw, rows, pad_token_id=pad, multiple_of=multiple_of, device=device)
        tokens = self.accelerator.gather(torch.tensor(int(draw.rollouts.loss_mask.sum()), device=device)).sum()
        window = Window(draw, parts, rows, tokens, borrowed)
        # TRL divides by the tokens of a generation, scaled to those of an optimizer step; here these are known.
        spread, steps = args.steps_per_generation, args.gradient_accumulation_steps
        items = tokens if spread == steps else tokens * spread / steps
        for part in parts:
            part["num_items_in_batch"] = items
        if self._objective is None:
            weigh(window)
        elif self._objective.needs_statistics:
            with torch.no_grad():
                inputs = [self._loss_inputs(window, index, self.model, part)[0] for index, part in enumerate(parts)]
            window.statistics = self._objective.statistics(inputs)
        return window

    def _record(self, store: ReplayStore, generation_batch: Any) -> None:
        """Generate on these prompts and put it in the buffer."""
        kept = self.num_iterations
        # TRL leaves out the old log-probs where it would use a generation within one optimizer step. With this number
        # of iterations it never would.
        self.num_iterations = self.args.gradient_accumulation_steps + 1
        try:
            batch = self._generate_and_score_completions(generation_batch)
        finally:
            self.num_iterations = kept
        scores = GroupScores.of(self._rewards_per_func, self.reward_weights, self.num_generations)
        step, rank, rows = self.state.global_step, self.accelerator.process_index, len(batch["completion_ids"])
        origin = Origin.of(self, train_step=step, first_group=store.counters["groups"])
        store.counters["groups"] += len(scores.group) // self.num_generations
        store.add(recorded(batch, scores.part(rank * rows, (rank + 1) * rows), origin), train_step=step)

    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> Any:
        self._rewards_per_func: Tensor = super()._calculate_rewards(*args, **kwargs)
        return self._rewards_per_func

    def _any_process(self, here: bool) -> bool:
        """Whether it holds in any process: what one must do all do, for generating is done together."""
        if self.accelerator.num_processes == 1:
            return here
        return bool(self.accelerator.gather(torch.tensor([int(here)], device=self.accelerator.device)).any())

    # ---------------------------------------------------------------- loss

    def _compute_loss(self, model: Any, inputs: Any) -> Any:
        if self._objective is None or not self.model.training:
            return super()._compute_loss(model, inputs)
        assert self._window is not None
        window, index = self._window, self._part
        x, entropy_BL, aux_loss = self._loss_inputs(window, index, model, inputs)
        statistic = window.statistics[index] if window.statistics else None
        loss, metrics = self._objective(x, self._denominator(window), statistic)
        window.metrics.append(metrics)
        self._observe(window, x.logprobs.detach(), entropy_BL, metrics.get("clipped_B"))
        if self.aux_loss_enabled:
            loss = loss + self.router_aux_loss_coef * aux_loss / self.args.gradient_accumulation_steps
        return loss

    def _loss_inputs(self, window: Window, index: int, model: Any, inputs: Any) -> tuple[LossInputs, Tensor, Any]:
        assert self._objective is not None
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        attention = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        logprobs_BL, entropy_BL, aux_loss = super()._get_per_token_logps_and_entropies(
            model,
            ids,
            attention,
            inputs["completion_ids"].size(1),
            compute_entropy=True,
            compute_aux_loss=self.aux_loss_enabled,
            **{name: inputs[name] for name in FORWARD if name in inputs},
        )
        advantages_n = self._objective.advantages(window.draw.rollouts)
        return window.loss_inputs(index, logprobs_BL, advantages_n), entropy_BL, aux_loss

    def _denominator(self, window: Window) -> float:
        """What the sum over a process's batch is divided by; processes average their gradients."""
        assert self._objective is not None
        if self._objective.aggregation == "token_mean":
            processes: int = self.accelerator.num_processes
            return max(float(window.tokens), 1.0) / processes
        return self._objective.denominator(window.draw.rollouts, max_new_tokens=self.max_completion_length)

    # ---------------------------------------------------------------- what a step leads to

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        result = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        # With gradient, in training: the forward pass of TRL's loss over the current micro-batch.
        if self._window is not None and self.model.training and torch.is_grad_enabled():
            self._observe(self._window, result[0].detach(), result[1])
        return result

    def _observe(
        self, window: Window, logprobs_BL: Tensor, entropy_BL: Tensor | None, clipped_B: Tensor | None = None
    ) -> None:
        """Take the figures of the current micro-batch, and follow up after the last of the step."""
        part = window.parts[self._part]
        mask_BL = trained(part)
        log_ratio_BL = masked_log_ratio(logprobs_BL, part["behavior_logprobs"], mask_BL)
        entropy_BL = torch.zeros_like(logprobs_BL) if entropy_BL is None else entropy_BL.detach()
        window.figures.append(rollout_figures(log_ratio_BL, entropy_BL, mask_BL, clipped_B))
        if len(window.figures) == len(window.parts):
            self._follow_up(window)

    def _follow_up(self, window: Window) -> None:
        """After the last forward pass of a step: write priorities back and tell the trackers."""
        assert self.replay_store is not None
        numbers = [followed_up(self.replay_store, window)]
        if self.accelerator.num_processes > 1:
            numbers = gather_object(numbers)
        for name, value in over_processes(numbers).items():
            self._metrics["train"][f"replay/{name}"].append(value)

    # ---------------------------------------------------------------- checkpoints

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        # First, so that a checkpoint with its trainer state, which is written last, has its buffer too.
        if self.replay_store is not None and not self.args.save_only_model:
            folder = f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
            directory = Path(self._get_output_dir(trial=trial)) / folder / DIRECTORY
            self.replay_store.save(directory)
        super()._save_checkpoint(model, trial)

    def _load_optimizer_and_scheduler(self, checkpoint: Any) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if self.replay_store is not None and checkpoint is not None:
            resumed = self._new_store()
            resumed.load(Path(checkpoint) / DIRECTORY)
            self.replay_store, self._loaded_state = resumed, self.state


class ReplayGRPOTrainer(ReplayMixin, GRPOTrainer):
    """TRL's `GRPOTrainer` with a replay buffer: one more argument, `replay=ReplayConfig(capacity=...)`."""
