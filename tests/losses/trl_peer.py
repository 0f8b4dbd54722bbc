"""TRL's own loss on inputs of ours: a real `GRPOTrainer`, and the gradient of every parameter of a tiny model."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import datasets
import torch
import trl
from cases import Inputs
from torch import Tensor

from ostinato.backends.hf.models import build_model
from ostinato.backends.hf.tokenizer import character_tokenizer
from ostinato.config import ModelConfig

torch.set_num_threads(1)

PROMPTS = (2, 5, 3, 3, 1, 4, 2, 3)
COMPLETIONS = (4, 7, 1, 6, 5, 3, 7, 2)
LONGEST = 9
TEMPERATURE = 0.7
EMPTY, WITH_A_TOOL = 5, 3  # a truncated completion that is masked out; one whose tokens 2 and 3 a tool wrote

HALVES = (slice(4), slice(4, 8))

Outcome = tuple[Tensor, dict[str, Tensor]]
"""Loss, and its gradient with respect to every parameter by name."""
Objective = Callable[[Inputs], Tensor]


@dataclass(frozen=True)
class Peer:
    """8 rollouts, a model, and policies near it; log-probs (8, 7) are of completions, padded on the right."""

    directory: Path
    model: Any
    prompts: Tensor
    prompt_mask: Tensor
    completions: Tensor
    completion_mask: Tensor
    tool_mask: Tensor
    given: Inputs

    def trainer(self, **settings: Any) -> Any:
        """TRL's trainer, by default with 2 micro-batches of 4 rollouts a step, on a copy of the model."""
        accumulation = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "num_generations": 4}
        trainer = trl.GRPOTrainer(
            model=str(self.directory),
            reward_funcs=lambda completions, **_: [0.0] * len(completions),
            args=trl.GRPOConfig(
                output_dir=str(self.directory / "run"),
                max_completion_length=LONGEST,
                temperature=TEMPERATURE,
                report_to="none",
                use_cpu=True,
                bf16=False,
                gradient_checkpointing=False,
                **accumulation | settings,
            ),
            train_dataset=datasets.Dataset.from_list([{"prompt": "1+1="}]),
        )
        trainer.current_gradient_accumulation_steps = trainer.args.gradient_accumulation_steps
        trainer.model.train()
        return trainer

    def theirs(self, trainer: Any, *, rows: tuple[slice, ...] = HALVES, **more: Tensor | None) -> Outcome:
        """Loss and gradients of `_compute_loss`, added up over micro-batches; `more`: inputs (8, ...) besides."""
        x = self.given
        whole = {
            "prompt_ids": self.prompts,
            "prompt_mask": self.prompt_mask,
            "completion_ids": self.completions,
            "completion_mask": self.completion_mask,
            "tool_mask": self.tool_mask,
            "advantages": x.advantages,
            "old_per_token_logps": x.proximal,
            "ref_per_token_logps": x.ref,
            **more,
        }
        losses = []
        for part in rows:
            inputs = {name: value[part] for name, value in whole.items() if value is not None}
            losses.append(trainer._compute_loss(trainer.model, inputs | {"num_items_in_batch": x.mask.sum()}))
        return with_gradients(sum(losses), trainer.model)

    def ours(self, objective: Objective) -> Outcome:
        """Loss and gradients of a function of `Inputs`, the model's log-probs among them."""
        tokens = torch.cat([self.prompts, self.completions], dim=1)
        attention = torch.cat([self.prompt_mask, self.completion_mask], dim=1)
        logits = self.model(input_ids=tokens, attention_mask=attention).logits[:, self.prompts.shape[1] - 1 : -1]
        policy = (logits / TEMPERATURE).log_softmax(-1)
        logprobs = policy.gather(-1, self.completions[:, :, None]).squeeze(-1)
        return with_gradients(objective(replace(self.given, logprobs=logprobs)), self.model)


def with_gradients(loss: Tensor, model: Any) -> Outcome:
    names, parameters = zip(*model.named_parameters(), strict=True)
    return loss.detach(), dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))


def make_peer(directory: Path) -> Peer:
    rng = torch.Generator().manual_seed(5)
    tokenizer = character_tokenizer()
    sizes = ModelConfig(hidden_size=16, layers=2, heads=2, kv_heads=1, intermediate_size=32)
    model = build_model(sizes, tokenizer, seed=1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(6.0)  # predictions that differ clearly from uniform
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    P, C = max(PROMPTS), max(COMPLETIONS)
    prompt_mask = (torch.arange(P) >= P - torch.tensor(PROMPTS)[:, None]).long()
    completion_mask = (torch.arange(C) < torch.tensor(COMPLETIONS)[:, None]).long()
    completion_mask[EMPTY] = 0
    tool_mask = torch.ones_like(completion_mask)
    tool_mask[WITH_A_TOOL, 2:4] = 0
    shape = completion_mask.shape

    def near(logprobs: Tensor, spread: float) -> Tensor:
        return logprobs + (2 * torch.rand(shape, generator=rng) - 1) * spread

    nothing = torch.zeros(shape)
    peer = Peer(
        directory=directory,
        model=model,
        prompts=torch.randint(3, 90, (8, P), generator=rng) * prompt_mask,
        prompt_mask=prompt_mask,
        completions=torch.randint(3, 90, shape, generator=rng) * completion_mask,
        completion_mask=completion_mask,
        tool_mask=tool_mask,
        given=Inputs(
            logprobs=nothing,
            behavior=nothing,
            proximal=nothing,
            ref=nothing,
            advantages=torch.tensor([1.2, -0.8, 0.5, -1.5, 0.9, 1.0, -0.6, -0.7]),
            mask=(completion_mask * tool_mask).bool(),
            weights=None,
            group=torch.arange(8) // 4,
        ),
    )
    current: list[Tensor] = []
    peer.ours(lambda x: (current.append(x.logprobs.detach()), x.logprobs.sum())[1])
    proximal = near(current[0], 0.6)
    behavior, ref = near(proximal, 0.3), near(current[0], 0.5)
    return replace(peer, given=replace(peer.given, proximal=proximal, behavior=behavior, ref=ref))
