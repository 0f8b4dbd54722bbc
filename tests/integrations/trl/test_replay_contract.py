"""Faults that were reported of other trainers' replay, through the real trainer: rollouts and groups."""

import numpy as np
import pytest
import torch

pytest.importorskip("trl")

import trl
from replaying import EOS, Rewards, Scripted, log_of, run, trainer

from ostinato.buffer import FreshAnchored, Groups, NeverUsedFirst
from ostinato.errors import DataError, RunError
from ostinato.integrations.trl import ReplayConfig
from ostinato.integrations.trl.recording import GroupScores

LENGTHS = (1, 6, 3, 5, 2, 4, 6, 1)


def varied(call: int, row: int) -> list[int]:
    """A completion of its own for each call and row, of 1 to 6 tokens."""
    return [10 + call, *([20 + row] * (LENGTHS[row % 8] - 1))][: LENGTHS[row % 8]]


def tools(call: int, row: int, ids: list[int]) -> dict[str, list[int]]:
    """The second token and every second one after it come from a tool."""
    return {"env_mask": [1 - i % 2 for i in range(len(ids))]}


@pytest.fixture(scope="module")
def scripted(model_directory, tmp_path_factory):
    """12 steps, a group of 4 twice a generation, lengths and prompts that vary, tokens of tools."""
    replay = ReplayConfig(capacity=24, uses=3, sampler=NeverUsedFirst())
    given = {"rollouts": Scripted(varied, tools), "max_steps": 12}
    return run(model_directory, tmp_path_factory.mktemp("run"), replay, **given)


def real(batch, i):
    """Prompt and completion of a row without padding."""
    prompt = batch["prompt_ids"][i][batch["prompt_mask"][i].bool()].tolist()
    return tuple(prompt), tuple(batch["completion_ids"][i][batch["completion_mask"][i].bool()].tolist())


def fields_of(batches):
    """What each batch says of a rollout, by its prompt and completion, without padding."""
    said = {}
    for batch in batches:
        for i in range(len(batch["completion_ids"])):
            mask = batch["completion_mask"][i].bool()
            said.setdefault(real(batch, i), []).append(
                {
                    "old": batch["old_per_token_logps"][i][mask].tolist(),
                    "sampling": batch["sampling_per_token_logps"][i][mask].tolist(),
                    "tool": batch["tool_mask"][i][mask].tolist(),
                    "advantage": batch["advantages"][i].item(),
                }
            )
    return said


def test_every_group_of_a_generation_is_held_with_its_own_rewards(scripted) -> None:
    """trl 6804, 6821: only group 0 was ever buffered, and one row of advantages overwritten."""
    columns, scored = scripted.replay_store.buffer.columns, scripted.reward_funcs[0].seen
    assert len(columns) == 24  # the last three generations: six groups
    groups, counts = np.unique(columns["group_id"], return_counts=True)
    assert groups.tolist() == [2, 3, 4, 5, 6, 7] and counts.tolist() == [4] * 6
    for row, identity in enumerate(columns["rollout_id"]):
        assert columns["reward"][row] == float((int(identity) * 7) % 16)  # that of the same place in order of scoring
    for group in groups:
        own = columns["group_id"] == group
        rewards = columns["reward"][own]
        np.testing.assert_allclose(columns["group_reward_mean"][own], rewards.mean(), rtol=1e-12)
        np.testing.assert_allclose(columns["group_reward_std"][own], rewards.std(ddof=1), rtol=1e-12)
        wanted = (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-4)
        np.testing.assert_allclose(columns["advantage"][own], wanted, rtol=1e-5)
    draw = scripted.drawn[-1].rollouts
    for i in range(len(draw)):
        prompt = scripted.processing_class.decode(draw.prompt(i))
        assert (prompt, tuple(draw.completion(i).tolist())) in scored


def test_fields_when_replayed_are_those_of_the_generation(scripted) -> None:
    """trl 6439: replayed rows lost their tool mask. Padding varies from batch to batch, what it pads does not."""
    made, drawn = fields_of(scripted.generated), fields_of(scripted.batches)
    assert len(drawn) > 20 and sum(map(len, drawn.values())) == 12 * 8
    assert len({batch["completion_ids"].shape[1] for batch in scripted.batches}) > 1
    assert any(0 in said[0]["tool"] for said in drawn.values())
    for rollout, said in drawn.items():
        for one in said:
            assert one in made[rollout]


def test_padding_stands_before_prompts_and_behind_completions(scripted) -> None:
    for batch in scripted.batches:
        prompts, completions = batch["prompt_mask"], batch["completion_mask"]
        assert (prompts.diff(dim=1) >= 0).all() and (completions.diff(dim=1) <= 0).all()
        assert (batch["prompt_ids"][prompts == 0] == 0).all() and (batch["completion_ids"][completions == 0] == 0).all()


def test_tokens_in_a_step_are_counted_anew_for_each_draw(scripted) -> None:
    """axolotl kept the count of the generation: the loss of a step was divided by the tokens of another batch."""
    counts = []
    for first, second in zip(scripted.batches[::2], scripted.batches[1::2], strict=True):
        tokens = sum(int((b["completion_mask"] * b["tool_mask"]).sum()) for b in (first, second))
        assert first["num_items_in_batch"].item() == second["num_items_in_batch"].item() == tokens
        counts.append(tokens)
    assert len(set(counts)) > 2


def test_gradient_at_tokens_of_tools_is_zero(scripted) -> None:
    batch = dict(scripted.batches[-1])
    logprobs = torch.zeros_like(batch["old_per_token_logps"], requires_grad=True)
    entropy = torch.zeros_like(logprobs)
    scripted._get_per_token_logps_and_entropies = lambda *args, **kwargs: (logprobs, entropy, None)
    try:
        loss = trl.GRPOTrainer._compute_loss(scripted, scripted.model.train(), batch)
    finally:
        del scripted._get_per_token_logps_and_entropies
    (slope,) = torch.autograd.grad(loss, logprobs)
    own = (batch["completion_mask"] * batch["tool_mask"]).bool()
    assert (slope[~own] == 0).all() and (slope[own] != 0).any()


def test_duplicate_prompts_and_a_prompt_that_returns_stay_groups_of_their_own(model_directory, tmp_path) -> None:
    """Search-R1 88: one prompt twice in a batch, and again later, is no group of 8 and no group of 16."""
    replay = ReplayConfig(capacity=32, uses=2, sampler=Groups())
    done = run(model_directory, tmp_path, replay, prompts=[{"prompt": "1+1="}] * 4)
    columns = done.replay_store.buffer.columns
    assert len(np.unique(columns["prompt_id"])) == 1
    groups, counts = np.unique(columns["group_id"], return_counts=True)
    assert len(groups) == 6 and (counts == 4).all() and len(columns) == 24
    for draw in done.drawn:
        assert all(np.unique(draw.rollouts.group_id, return_counts=True)[1] % 4 == 0)


def test_scores_of_groups_with_missing_rewards_use_those_that_are_there() -> None:
    """NeMo-RL 3665: groups of 3 and of 1 scored rollouts. Worked: (1 + 2 + 6) / 3 = 3, std sqrt((4 + 1 + 9) / 2)."""
    nan = float("nan")
    given = torch.tensor(
        [[1.0, nan], [2.0, 0.0], [nan, nan], [nan, 3.0], [5.0, nan], [nan, nan], [nan, nan], [nan, nan]]
    )
    scores = GroupScores.of(given, torch.tensor([1.0, 2.0]), 4)
    np.testing.assert_allclose(scores.reward, [1, 2, nan, 6, 5, nan, nan, nan])
    np.testing.assert_allclose(scores.mean, [3] * 4 + [5] * 4)
    np.testing.assert_allclose(scores.std, [7**0.5] * 4 + [0] * 4)
    assert scores.group.tolist() == [0] * 4 + [1] * 4


def test_rollouts_without_a_reward_are_not_replayed_and_counted(model_directory, tmp_path) -> None:
    rewards = Rewards(lambda number, ids: None if number % 4 == 0 else float(number % 3))
    done = run(model_directory, tmp_path, ReplayConfig(capacity=64, uses=2), rewards=rewards, max_steps=4)
    columns = done.replay_store.buffer.columns
    # 6 of 8 were scored, too few for a step: the first borrows, the second generates out of turn.
    assert log_of(done, "replay/borrowed_batches") == [1] * 4 and log_of(done, "replay/generations") == [1, 2, 3, 3]
    assert len(columns) == 18 and (columns["group_reward_mean"] > 0).all()
    assert log_of(done, "replay/refused.nonfinite_score")[-1] == 6


def test_rollouts_with_logprobs_that_are_no_numbers_are_refused_or_borrowed_of(model_directory, tmp_path) -> None:
    """trl 6166, 6693: NaN behavior log-probs. Of the model itself: such rollouts never reach a loss."""
    broken = trainer(model_directory, tmp_path, ReplayConfig(capacity=64, uses=2), max_steps=4)
    generate = broken._generate_and_score_completions

    def spoiled(inputs):
        batch = generate(inputs)
        batch["old_per_token_logps"][0, 0], batch["old_per_token_logps"][3, 0] = float("nan"), float("-inf")
        return batch

    broken._generate_and_score_completions = spoiled
    broken.train()
    assert np.isfinite(broken.losses).all()
    assert log_of(broken, "replay/refused.nonfinite_logprobs") == [2, 4, 6, 6]
    for batch in broken.batches:
        assert torch.isfinite(batch["old_per_token_logps"]).all()


def test_generation_when_none_of_it_can_be_trained_on_stops_the_run(model_directory, tmp_path) -> None:
    broken = trainer(model_directory, tmp_path, ReplayConfig(capacity=64, uses=2))
    generate = broken._generate_and_score_completions

    def spoiled(inputs):
        batch = generate(inputs)
        return batch | {"old_per_token_logps": batch["old_per_token_logps"] * float("nan")}

    broken._generate_and_score_completions = spoiled
    with pytest.raises(DataError, match=r"no rollout to train on at train step 0.*nonfinite_logprobs': 8"):
        broken.train()


@pytest.mark.parametrize("name", ["old_per_token_logps", "sampling_per_token_logps"])
def test_generation_without_the_logprobs_that_replay_needs_stops_the_run(model_directory, tmp_path, name) -> None:
    broken = trainer(model_directory, tmp_path, ReplayConfig(capacity=64, uses=2), rollouts=Scripted(varied))
    broken.use_vllm = name.startswith("sampling")
    broken.vllm_importance_sampling_correction, broken._last_loaded_step = False, 0
    generate = broken._generate_and_score_completions
    broken._generate_and_score_completions = lambda inputs: generate(inputs) | {name: None}
    with pytest.raises(RunError, match=f"TRL gave no {name}"):
        broken.train()


class Engine:
    """In place of vLLM, which a rollout function does not ask for completions: its weights are always in step."""

    def sync_weights(self) -> None: ...


@pytest.mark.parametrize("mode", ["sequence_mask", "token_truncate"])
def test_engine_logprobs_when_one_is_missing_count_as_those_of_the_model(model_directory, tmp_path, mode) -> None:
    """trl 6166, 6693: vLLM gives None for a token. Its ratio is 1; it is stored, replayed and never poisons."""

    def sampled(call, row, ids):
        return {"logprobs": [None if (row, i) == (1, 2) else -3.0 - 0.1 * row for i in range(len(ids))]}

    replay = ReplayConfig(capacity=64, uses=3)
    done = trainer(
        model_directory,
        tmp_path,
        replay,
        rollouts=Scripted(varied, sampled),
        vllm_importance_sampling_mode=mode,
        vllm_importance_sampling_clip_max=1e6,
    )
    done.use_vllm, done.vllm_generation, done._last_loaded_step = True, Engine(), -1
    done.train()
    assert np.isfinite(done.losses).all() and len(set(done.losses)) > 8
    whole = done.replay_store.buffer.sample(16, train_step=6, rng=np.random.default_rng(0)).rollouts
    assert np.isfinite(whole.behavior_logprobs).all()
    seen = 0
    for made in done.generated:
        for i, row in enumerate(made["sampling_per_token_logps"]):
            if torch.isnan(row).any():
                seen += 1
                rows = [k for k in range(16) if tuple(whole.completion(k)) == real(made, i)[1]]
                start = whole.offsets[rows[0]] + whole.prompt_length[rows[0]]
                np.testing.assert_array_equal(
                    whole.behavior_logprobs[start : start + 6],
                    torch.where(torch.isnan(row), made["old_per_token_logps"][i], row).numpy()[:6],
                )
    assert seen == 2
    given = {}
    for batch in done.generated:
        for i in range(8):
            length = int(batch["completion_mask"][i].sum())
            given[real(batch, i)] = batch["importance_sampling_ratio"][i][:length]
    for batch in done.batches:
        for i in range(4):
            length = int(batch["completion_mask"][i].sum())
            assert torch.equal(batch["importance_sampling_ratio"][i][:length], given[real(batch, i)])


def test_completions_that_trl_masks_out_weigh_nothing(model_directory, tmp_path) -> None:
    """All of a batch truncated and masked: a batch without a token still runs, with a loss of 0."""
    done = run(
        model_directory,
        tmp_path,
        ReplayConfig(capacity=64, uses=2),
        rollouts=Scripted(lambda call, row: [9] * 6 if call == 0 else [9, EOS]),
        mask_truncated_completions=True,
        max_steps=4,
    )
    assert done.losses[:4] == [0.0] * 4
    assert done.batches[0]["completion_ids"].shape[1] == 1
    columns = done.replay_store.buffer.columns
    assert columns["truncated"].tolist() == [True] * 8 + [False] * 8
    assert any(loss != 0 for loss in done.losses[4:])


def test_tracker_when_any_listens_is_told_numbers_that_hold(model_directory, tmp_path) -> None:
    replay = ReplayConfig(capacity=64, uses=3, sampler=FreshAnchored())
    done = run(model_directory, tmp_path, replay)
    entries = [entry for entry in done.state.log_history if "loss" in entry]
    names = [{name for name in entry if name.startswith("replay/")} for entry in entries]
    assert len(entries) == 6 and len(names[-1]) > 40 and all(" " not in name for name in names[-1])
    for entry, draw in zip(entries, done.drawn, strict=True):
        assert entry["replay/batch_staleness_mean"] == pytest.approx(draw.staleness.mean())
        assert entry["replay/batch_new_fraction"] == np.mean(draw.uses == 0)
        assert all(np.isfinite(entry[name]) for name in entry if name.startswith("replay/"))
