"""Replay under TRL's asynchronous trainer: the trainer itself, on a CPU; `async_stand_ins` says what is not its own."""

import json
import queue
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from async_stand_ins import EOS, PAD, SYMBOLS, CompletionsServer, Engine, InProcessWorker, Kernel, digits_in_order

pytest.importorskip("trl")

from ostinato.buffer import SamplesPerInsert
from ostinato.errors import CheckpointError, ConfigError, DataError, RunError
from ostinato.integrations.trl import async_worker
from ostinato.integrations.trl.async_samples import rollouts_of, sample_of
from ostinato.integrations.trl.async_worker import ReplayRolloutWorker, add_replay

pytestmark = [
    # trl.experimental says on import that it is experimental, and that it was tested with another vLLM.
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


def args(**given):
    settings = {
        "max_staleness": 4,
        "num_generations": 4,
        "weight_sync_steps": 1,
        "heartbeat_stale_after_s": 60.0,
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 1,
        "world_size": 1,
        "report_to": [],
    }
    return SimpleNamespace(**settings | given)


class FakeWorker:
    """A worker whose queue the test fills by hand."""

    def __init__(self):
        self.rollout_buffer, self.metrics_queue = queue.Queue(), queue.Queue()
        self.versions, self.started, self.stopped, self.broken = [], 0, 0, None

    def start(self):
        self.started += 1

    def stop(self):
        self.stopped += 1

    def update_model_version(self, model_version):
        self.versions.append(model_version)

    def check_health(self, stale_after_s):
        if self.broken is not None:
            raise self.broken

    def push(self, n, *, version, group=0, **changes):
        for i in range(n):
            self.rollout_buffer.put_nowait(sample(version=version, group=group, mark=i, **changes))


def sample(*, version=0, group=0, mark=0, **changes):
    from trl.experimental.async_grpo.async_rollout_worker import RolloutSample

    values = {
        "prompt": [{"role": "user", "content": "é"}],
        "completion": [{"role": "assistant", "content": str(mark)}],
        # a multi-turn trajectory: two prompt tokens, one of the policy, two of a tool, two of the policy
        "input_ids": np.array([5, 6, 10 + mark, 7, 7, 11, 12], np.int64),
        "completion_mask": np.array([0, 0, 1, 0, 0, 1, 1], np.int64),
        "old_log_probs": np.array([0, 0, -0.5, 0, 0, -0.1, -0.3], np.float32),
        "advantage": 0.1 + mark,
        "model_version": version,
        "group_id": group,
        "metrics": {"reward": 0.5, "reward_std": 0.25, "rewards/f": float("nan")},
        "enqueued_at": None,
    }
    return RolloutSample(**values | changes)


def drained(worker):
    found = []
    while True:
        try:
            found.append(worker.rollout_buffer.get_nowait())
        except queue.Empty:
            return found


def replay(inner=None, arguments=None, **settings):
    inner = inner or FakeWorker()
    return inner, ReplayRolloutWorker(inner, arguments or args(), **{"min_size": 4, "uses": 1, **settings})


# -------------------------------------------------------------------- samples


@pytest.mark.parametrize("keep", [True, False])
def test_sample_when_stored_and_drawn_is_the_one_that_was_put_in(keep):
    given = [sample(version=3, group=9, mark=i, enqueued_at=100.0 + i) for i in range(3)]
    rollouts = rollouts_of(given, version_shift=5, group_shift=20, keep_messages=keep, group_size=3)
    assert rollouts.prompt_length.tolist() == [2, 2, 2]
    assert rollouts.policy_version_min.tolist() == [8, 8, 8]
    # mean = reward - advantage * std; the deviation with ddof=1 is that with ddof=0 times sqrt(3 / 2)
    np.testing.assert_allclose(rollouts.group_reward_mean, [0.5 - (0.1 + i) * 0.25 for i in range(3)], rtol=1e-6)
    np.testing.assert_allclose(rollouts.group_reward_std, 0.25 * np.sqrt(1.5))
    for i, before in enumerate(given):
        after = sample_of(rollouts, i, version_shift=5)
        for name in ("input_ids", "completion_mask", "old_log_probs"):
            np.testing.assert_array_equal(getattr(after, name), getattr(before, name))
            assert getattr(after, name).dtype == getattr(before, name).dtype
        assert after.advantage == before.advantage
        assert (after.model_version, after.group_id, after.enqueued_at) == (3, 29, 100.0 + i)
        assert after.metrics.pop("rewards/f") != after.metrics.get("rewards/f")
        assert after.metrics == {"reward": 0.5, "reward_std": 0.25}
        assert after.prompt == (before.prompt if keep else [])
        assert after.completion == (before.completion if keep else [])


def test_sample_when_no_reward_function_could_score_it_keeps_its_nan_and_its_zero_advantage():
    unscored = sample(advantage=0.0, metrics={"reward": float("nan"), "reward_std": float("nan")})
    rollouts = rollouts_of([unscored], version_shift=0, group_shift=0, keep_messages=False, group_size=4)
    assert rollouts.reward.tolist() == [0.0]
    assert rollouts.group_reward_std.tolist() == [0.0]
    assert np.isnan(sample_of(rollouts, 0, version_shift=0).metrics["reward"])


def test_sample_when_arrays_differ_in_length_is_refused_by_name():
    with pytest.raises(DataError, match="group 7 has 7 tokens, a mask of 7 and 2 log-probs"):
        rollouts_of(
            [sample(group=7, old_log_probs=np.zeros(2, np.float32))],
            version_shift=0,
            group_shift=0,
            keep_messages=False,
            group_size=4,
        )


# -------------------------------------------------------------------- queue


def test_queue_when_uses_are_three_hands_no_rollout_out_more_often():
    inner, worker = replay(uses=3)
    worker.update_model_version(1)
    inner.push(8, version=1)
    marks = [int(s.input_ids[2]) - 10 for s in drained(worker)]
    uses = np.bincount(marks, minlength=8)
    assert uses.max() == 3
    assert len(worker.buffer) == np.sum(uses < 3) < 4  # too few are left for another draw of 4
    assert sorted(marks[:8]) == list(range(8))  # never used ones come first
    for start in range(0, len(marks), 4):  # none twice in a draw, which is an optimizer step
        assert len(set(marks[start : start + 4])) == 4


def test_queue_when_versions_move_on_hands_out_age_k_and_drops_age_k_plus_one():
    inner, worker = replay(arguments=args(max_staleness=3))
    worker.update_model_version(1)
    inner.push(4, version=1)
    inner.push(4, version=2)
    worker.update_model_version(5)  # ages 4 and 3
    assert [s.model_version for s in drained(worker)] == [2] * 4
    told = [worker.metrics_queue.get_nowait() for _ in range(1)]
    assert told[0]["replay/expired_total"] == 4
    assert told[0]["replay/staleness_max"] == 3
    assert inner.versions == [1, 5]


def test_queue_when_weights_change_between_draw_and_hand_out_drops_what_became_too_old():
    inner, worker = replay(arguments=args(max_staleness=0), uses=1)
    worker.update_model_version(1)
    inner.push(4, version=1)
    assert worker.rollout_buffer.get(timeout=0).model_version == 1
    worker.update_model_version(2)
    assert drained(worker) == []
    assert worker.rollout_buffer.too_old == 3


def test_queue_when_everything_is_too_old_waits_and_says_empty_without_spinning(monkeypatch):
    inner, worker = replay(arguments=args(max_staleness=0))
    worker.update_model_version(9)
    inner.push(8, version=1)
    waits = []

    def get(block=True, timeout=None):
        waits.append(timeout)
        raise queue.Empty

    drained(worker)
    monkeypatch.setattr(inner.rollout_buffer, "get", get)
    monkeypatch.setattr(inner.rollout_buffer, "get_nowait", lambda: get(timeout="now"))
    with pytest.raises(queue.Empty):
        worker.rollout_buffer.get(timeout=2.0)
    assert waits[0] == "now" and len(waits) == 2 and 1.0 < waits[1] <= 2.0
    assert len(worker.buffer) == 0


def test_queue_when_generation_is_ahead_keeps_the_newest_and_stays_bounded():
    inner, worker = replay(capacity=8)
    for version in range(1, 5):
        worker.update_model_version(version)
        inner.push(8, version=version, group=version)
    first = worker.rollout_buffer.get(timeout=0)
    assert first.model_version == 4 and len(worker.buffer) == 4
    assert worker.metrics_queue.get_nowait()["replay/left_unused_total"] == 24


def test_queue_when_the_limiter_is_full_leaves_arrivals_to_the_worker():
    limiter = SamplesPerInsert(1.0, min_size=4, batch_size=4)
    inner, worker = replay(uses=3, min_size=None, limiter=limiter)
    worker.update_model_version(1)
    inner.push(100, version=1)
    worker.rollout_buffer.get(timeout=0)
    # floor 4, band 4: 8 may enter before the first draw, of which 4 are then drawn.
    assert worker.buffer.added == 8 and inner.rollout_buffer.qsize() == 92


def test_queue_when_a_logprob_is_not_finite_refuses_the_rollout_and_counts_it():
    inner, worker = replay()
    worker.update_model_version(1)
    inner.push(1, version=1, old_log_probs=np.array([0, 0, np.nan, 0, 0, -0.1, -0.3], np.float32))
    inner.push(4, version=1)
    assert all(np.isfinite(s.old_log_probs).all() for s in drained(worker))
    assert worker.metrics_queue.get_nowait()["replay/refused_total"] == 1


def test_draw_when_handed_out_has_the_members_of_a_group_one_after_the_other():
    inner, worker = replay(arguments=args(per_device_train_batch_size=12), min_size=12)
    worker.update_model_version(1)
    for _ in range(4):
        for group in (2, 0, 1):
            inner.push(1, version=1, group=group)
    assert [s.group_id for s in drained(worker)] == [0] * 4 + [1] * 4 + [2] * 4


def test_worker_when_it_has_died_is_named_before_the_next_draw_though_rollouts_are_held():
    inner, worker = replay(uses=3)
    worker.start()
    worker.update_model_version(1)
    inner.push(8, version=1)
    for _ in range(4):
        worker.rollout_buffer.get(timeout=0)
    inner.broken = RuntimeError("child failed")
    inner.broken.__cause__ = RuntimeError("ConnectionError: no server\nat line 3")
    with pytest.raises(RunError, match="ConnectionError: no server at line 3; 8 are held") as failure:
        worker.rollout_buffer.get(timeout=0)
    assert failure.value.__cause__ is inner.broken
    worker.stop()
    assert (inner.started, inner.stopped) == (1, 1)


def test_stop_when_the_worker_inside_never_comes_back_leaves_it_alone(monkeypatch):
    inner, released = FakeWorker(), threading.Event()
    monkeypatch.setattr(inner, "stop", released.wait)
    monkeypatch.setattr(async_worker, "STOP_DEAD_S", 0.05)  # of a dead worker; others have a minute
    worker = ReplayRolloutWorker(inner, args(), capacity=16)
    inner.broken = RuntimeError("the process is gone")
    with pytest.raises(RunError, match="the process is gone"):
        worker.check_health(1.0)
    with pytest.warns(UserWarning, match=r"did not stop within 0\.05 s"):
        worker.stop()
    released.set()


def test_metrics_when_read_are_those_of_the_queue_and_then_those_of_the_worker():
    inner, worker = replay()
    inner.metrics_queue.put_nowait({"rollout/inflight": 3.0})
    worker.update_model_version(1)
    inner.push(4, version=1)
    worker.rollout_buffer.get(timeout=0)
    assert worker.metrics_queue.get_nowait()["replay/drawn_total"] == 4
    assert worker.metrics_queue.get_nowait() == {"rollout/inflight": 3.0}
    with pytest.raises(queue.Empty):
        worker.metrics_queue.get_nowait()


# -------------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_staleness": 5}, r"max_staleness 5 is above the trainer's 4.*AsyncGRPOConfig\(max_staleness=5\)"),
        ({"capacity": 3}, "capacity 3 is below the 4 rollouts"),
        ({"uses": 6}, "uses 6 is never reached: .* 5 optimizer steps; raise max_staleness to 5"),
        ({"uses": 0}, "uses must be at least 1, got 0"),
        ({"uses": 1.5}, "uses must be an integer, got 1.5"),
        ({"min_size": 4, "limiter": SamplesPerInsert(2.0, batch_size=4)}, "min_size or a limiter, not both"),
        ({"min_size": 5000}, "min_size 5000 is never reached"),
        ({"seed": -1}, "seed must be at least 0"),
    ],
)
def test_settings_when_they_cannot_work_are_refused_with_the_fix(settings, message):
    with pytest.raises(ConfigError, match=message):
        ReplayRolloutWorker(FakeWorker(), args(), **settings)


def test_parts_when_they_are_not_what_trl_has_are_refused():
    with pytest.raises(ConfigError, match="object has no rollout_buffer"):
        ReplayRolloutWorker(object(), args())
    with pytest.raises(ConfigError, match="SimpleNamespace has no max_staleness"):
        ReplayRolloutWorker(FakeWorker(), SimpleNamespace())
    with pytest.raises(ConfigError, match="already replays"):
        ReplayRolloutWorker(replay()[1], args())
    with pytest.raises(ConfigError, match="takes TRL's AsyncGRPOTrainer, got object"):
        add_replay(object())
    assert add_replay(SimpleNamespace(rollout_worker=None, rollout_queue=None)) is None  # a rank but the first


# -------------------------------------------------------------------- checkpoints


def test_state_when_restored_goes_on_with_the_same_draws_ages_and_groups(tmp_path):
    def worker_at_seven():
        inner, worker = replay(uses=3)
        worker.update_model_version(7)
        return inner, worker

    inner, worker = worker_at_seven()
    inner.push(4, version=6, group=0)
    inner.push(4, version=7, group=1)
    worker.rollout_buffer.get(timeout=0)
    worker.save(tmp_path / "state")

    other_inner, other = replay(uses=3, seed=99)
    other.load(tmp_path / "state")
    other.update_model_version(1)  # what a resumed trainer calls the same weights
    expected, found = drained(worker), drained(other)
    assert len(found) >= 19  # 3 that were drawn, and at least 16 of the 20 uses that were left
    assert [s.input_ids.tolist() for s in found] == [s.input_ids.tolist() for s in expected]
    assert [s.model_version - 1 for s in found] == [s.model_version - 7 for s in expected]
    other_inner.push(4, version=1, group=0)  # groups are numbered from 0 again in a new process
    assert {s.group_id for s in drained(other)} == {0, 1, 2}


def test_state_when_weights_were_ahead_of_those_published_is_one_version_older(tmp_path):
    inner, worker = replay()
    worker.update_model_version(3)
    inner.push(8, version=3)
    worker.rollout_buffer.get(timeout=0)
    worker.save(tmp_path / "state", weights_ahead=True)
    _, other = replay()
    other.load(tmp_path / "state")
    other.update_model_version(1)
    assert {1 - s.model_version for s in drained(other)} == {1}


def test_state_when_damaged_or_absent_is_refused(tmp_path):
    _, worker = replay()
    with pytest.raises(CheckpointError, match="holds no replay state"):
        worker.load(tmp_path / "nothing")
    worker.save(tmp_path / "state")
    (tmp_path / "state" / "state.json").write_text("{}")
    with pytest.raises(CheckpointError, match="lacks 'version'"):
        worker.load(tmp_path / "state")


# -------------------------------------------------------------------- the trainer itself


@pytest.fixture(scope="module")
def model_directory(tmp_path_factory):
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    path = str(tmp_path_factory.mktemp("model"))
    vocabulary = {token: i for i, token in enumerate(["<pad>", "<eos>", *SYMBOLS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>").save_pretrained(path)
    config = Qwen3Config(
        vocab_size=len(vocabulary),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        pad_token_id=PAD,
        eos_token_id=EOS,
        bos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        Qwen3ForCausalLM(config).save_pretrained(path)
    return path


@pytest.fixture
def trl(monkeypatch):
    from trl.experimental import async_grpo
    from trl.experimental.async_grpo import packing

    monkeypatch.setattr(packing, "_flash_attn", lambda: Kernel)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "none")
    return async_grpo


def build(trl, path, output, *, worker=None, callbacks=None, **settings):
    from datasets import Dataset

    arguments = trl.AsyncGRPOConfig(
        str(output),
        **{
            "max_steps": 9,
            "per_device_train_batch_size": 8,
            "num_generations": 4,
            "token_budget": 0,
            "bf16": False,
            "gradient_checkpointing": False,
            "use_cpu": True,
            "report_to": [],
            "max_staleness": 30,
            "learning_rate": 1e-3,
            "save_strategy": "no",
            "disable_tqdm": True,
        }
        | settings,
    )
    engine = Engine(path)
    inner = InProcessWorker(engine)
    trainer = trl.AsyncGRPOTrainer(
        path,
        args=arguments,
        train_dataset=Dataset.from_dict({"prompt": ["1"] * 4}),
        rollout_worker=worker(inner, arguments) if worker else inner,
        weight_transfer=engine,
        callbacks=callbacks,
    )
    return trainer, inner


def column(trainer, name):
    return [entry[name] for entry in trainer.state.log_history if name in entry]


def test_trainer_when_rollouts_are_used_three_times_generates_a_third_and_drops_nothing(trl, model_directory, tmp_path):
    plain, alone = build(trl, model_directory, tmp_path / "plain")
    plain.train()
    trainer, inner = build(trl, model_directory, tmp_path / "replay")
    worker = add_replay(trainer, capacity=64, uses=3, min_size=8)
    trainer.train()
    # 9 steps of 8; accelerate reads one micro-batch ahead, so 80 were asked for.
    assert alone.generated == 80
    assert inner.generated == 32  # 24 of them three times each, of the last 8 one use is left
    assert sum(column(trainer, "replay/drawn_total")) == 80
    assert sum(column(trainer, "replay/admitted_total")) == 32
    assert column(trainer, "sample/dropped_stale_total") == []
    assert max(column(trainer, "sample/staleness_max")) > 0
    assert len(column(trainer, "rollout/inflight")) > 0  # the worker's own metrics still arrive
    assert np.isfinite(column(trainer, "loss")).all()
    assert inner.stopped and worker.rollout_buffer.qsize() <= 64
    trainer.create_model_card(model_name="mine")  # as `push_to_hub` does
    card = (tmp_path / "replay" / "README.md").read_text()
    assert "| `capacity` | 64 |\n" in card and "| `uses` | 3 |\n" in card and "experience-replay" in card


def test_trainer_when_each_rollout_is_used_once_has_the_losses_of_the_plain_one(trl, model_directory, tmp_path):
    """Same rollouts in the same steps: the batch is one group-sorted permutation, which the sum over it ignores."""
    plain, _ = build(trl, model_directory, tmp_path / "plain", max_steps=5)
    plain.train()
    trainer, _ = build(
        trl,
        model_directory,
        tmp_path / "replay",
        max_steps=5,
        worker=lambda inner, arguments: ReplayRolloutWorker(inner, arguments, uses=1, min_size=8),
    )
    trainer.train()
    np.testing.assert_allclose(column(trainer, "loss"), column(plain, "loss"), rtol=0, atol=1e-6)
    np.testing.assert_allclose(column(trainer, "grad_norm"), column(plain, "grad_norm"), rtol=1e-4)


def test_trainer_when_resumed_finds_what_the_buffer_held(trl, model_directory, tmp_path):
    output = tmp_path / "run"
    settings = {"save_strategy": "steps", "save_steps": 4, "save_total_limit": 1}
    first, _ = build(trl, model_directory, output, max_steps=4, **settings)
    before = add_replay(first, capacity=64, uses=3)
    first.train()
    again, inner = build(trl, model_directory, output, max_steps=6, **settings)
    after = add_replay(again, capacity=64, uses=3)
    again.train(resume_from_checkpoint=True)
    assert after.rollout_buffer.version_shift == before.rollout_buffer.version - 1 == 4
    # 24 rollouts served 5 draws of 8, one ahead of the 4 steps; what is left of their uses serves the 3 that follow,
    # but that a draw waits for 16 to be held.
    assert (before.buffer.added, after.buffer.added, inner.generated) == (24, 28, 4)
    # The oldest are of version 1, published before the first step; step 5 trains under version 5, step 6 under 6.
    assert column(again, "sample/staleness_max")[-2:] == [4.0, 5.0]


def test_trainer_when_resumed_without_a_saved_buffer_says_so(trl, model_directory, tmp_path):
    output = tmp_path / "run"
    settings = {"save_strategy": "steps", "save_steps": 2}
    first, _ = build(trl, model_directory, output, max_steps=2, **settings)
    first.train()
    again, _ = build(trl, model_directory, output, max_steps=3, **settings)
    add_replay(again, capacity=64, uses=3)
    with pytest.warns(UserWarning, match="resumes with an empty replay buffer"):
        again.train(resume_from_checkpoint=True)


def test_trainer_when_its_worker_dies_ends_with_one_line(trl, model_directory, tmp_path):
    trainer, inner = build(trl, model_directory, tmp_path / "run")
    add_replay(trainer, capacity=64, uses=3)
    start = inner.start
    inner.start = lambda: (start(), setattr(inner, "broken", "out of memory"))
    with pytest.raises(RunError, match="brings no more rollouts: out of memory; 0 are held"):
        trainer.train()
    assert inner.stopped


def test_trainer_when_its_bound_is_below_the_workers_is_refused_before_anything_starts(trl, model_directory, tmp_path):
    def worker(inner, arguments):
        return ReplayRolloutWorker(inner, SimpleNamespace(**vars(arguments) | {"max_staleness": 40, "world_size": 1}))

    trainer, inner = build(trl, model_directory, tmp_path / "run", worker=worker)
    trainer.callback_handler.callbacks.insert(0, trainer.rollout_worker.callback())
    with pytest.raises(ConfigError, match="max_staleness 30 is below the replay worker's 40"):
        trainer.train()
    assert not inner.started
    with pytest.raises(ConfigError, match="already has a replay buffer"):
        add_replay(trainer)


def test_trainer_when_its_worker_is_trls_own_process_replays_and_resumes_its_prompts(trl, model_directory, tmp_path):
    """TRL's worker, process and HTTP client; only the server that answers is a stand-in."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_directory)
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }}={% endfor %}"
    content = {"close_pattern": r"<eos>|$", "content": "text"}
    tokenizer.response_template = {
        "defaults": {"role": "assistant"},
        "start_anchor": "=",
        "fields": {"content": content},
    }
    engine = Engine(model_directory)
    server = CompletionsServer(engine)
    prompts = [[{"role": "user", "content": f"{i:02d}"}] for i in range(60)]
    settings = {
        "per_device_train_batch_size": 8,
        "num_generations": 4,
        "max_completion_length": 3,
        "max_inflight_tasks": 8,
        "queue_maxsize": 8,
        "token_budget": 256,
        "vllm_server_base_url": server.url,
        "bf16": False,
        "gradient_checkpointing": False,
        "use_cpu": True,
        "report_to": [],
        "max_staleness": 30,
        "save_strategy": "steps",
        "save_steps": 3,
        "disable_tqdm": True,
    }

    def make(max_steps):
        from datasets import Dataset

        return trl.AsyncGRPOTrainer(
            model_directory,
            reward_funcs=digits_in_order,
            args=trl.AsyncGRPOConfig(str(tmp_path), max_steps=max_steps, **settings),
            train_dataset=Dataset.from_dict({"prompt": prompts}),
            processing_class=tokenizer,
            weight_transfer=engine,
        )

    try:
        trainer = make(3)
        worker = add_replay(trainer, capacity=64, uses=3)
        trainer.train()
    finally:
        server.close()
    assert server.requests >= worker.buffer.added >= 16
    assert len(column(trainer, "replay/size")) == len(column(trainer, "loss")) == 3
    assert max(column(trainer, "rollout/inflight")) <= 8
    assert np.isfinite(column(trainer, "loss")).all()

    again = make(4)
    resumed = add_replay(again, capacity=64, uses=3)
    resumed.load(tmp_path / "checkpoint-3" / "ostinato_replay")
    arrived = resumed.buffer.added // 4
    start = resumed.worker._loop_kwargs["dataset_start_index"]
    # Whole groups up to the first that had not arrived; one whose request was tried again may come much later.
    saved = json.loads((tmp_path / "checkpoint-3" / "ostinato_replay" / "state.json").read_text())
    assert start == saved["prompt_index"] <= min(arrived, worker.rollout_buffer.groups.first_missing)
