"""What people get wrong first, and what they are told."""

import numpy as np
import pytest
from rollout_makers import plain

from ostinato import Ragged, Rollouts
from ostinato.advantages import score_group
from ostinato.buffer import (
    Epoch,
    KeepBest,
    MaxStaleness,
    MaxUses,
    MinSize,
    Newest,
    NewestPerPrompt,
    PositiveBias,
    Prioritized,
    ReplayBuffer,
    Reservoir,
    ShardedBuffer,
    Uniform,
    Workspace,
    repo,
)
from ostinato.errors import CheckpointError, ConfigError, DataError

RNG = np.random.default_rng


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sampler": Uniform}, r"sampler is the class Uniform, expected an instance: Uniform\(...\)"),
        ({"sampler": "uniform"}, r"sampler must be a sampler such as Uniform\(\), got 'uniform'"),
        (
            {"sampler": lambda columns, n, rng: columns.live()},
            r"must be a sampler such as Uniform\(\), got <function",
        ),
        ({"retention": MaxUses(2)}, "retention is a list of rules and at most one eviction order"),
        ({"retention": [MaxUses]}, r"retention holds the class MaxUses, expected an instance: MaxUses\(...\)"),
    ],
)
def test_part_when_it_is_no_part_is_refused_at_construction(settings, message) -> None:
    with pytest.raises(ConfigError, match=message):
        ReplayBuffer(4, **settings)


@pytest.mark.parametrize("rng", [None, 3, np.random.RandomState(0)])
def test_generator_when_it_is_none_is_named_and_nothing_happens(rng) -> None:
    buffer = ReplayBuffer(4)
    buffer.add(plain(4), train_step=0)
    for call in (
        lambda: buffer.sample(2, train_step=1, rng=rng),
        lambda: buffer.sample_padded(2, train_step=1, rng=rng),
        lambda: buffer.sample_prompts([0], 1, train_step=1, rng=rng),
    ):
        with pytest.raises(DataError, match=r"expected numpy.random.default_rng\(seed\)"):
            call()
    assert buffer.train_step == 0 and buffer.metrics()["draws"] == 0


def test_draw_when_a_rule_has_let_everything_go_says_so() -> None:
    buffer = ReplayBuffer(8, retention=[MaxStaleness(3)], limiter=MinSize(1))
    buffer.add(plain(4), train_step=0)  # policy_version_min left out: 0 for ever
    with pytest.raises(DataError, match=r"from the 0 rollouts held \(4 left by MaxStaleness so far\)"):
        buffer.sample(2, train_step=4, rng=RNG(0))
    assert buffer.metrics()["expired.MaxStaleness"] == 4


def test_prompt_id_when_left_out_tells_prompts_apart() -> None:
    buffer = repo(64)
    prompts = [[i, i + 1] for i in range(3)] * 20
    rollouts = Rollouts.from_completions(prompts, [[7]] * 60, [[-0.5]] * 60)
    assert len(set(rollouts.prompt_id.tolist())) == 3 and rollouts.prompt_id.min() >= 0
    assert rollouts.prompt_id[:3].tolist() == rollouts.prompt_id[3:6].tolist()
    buffer.add(rollouts, train_step=0)
    buffer.retain(train_step=0)
    assert len(buffer) == 48  # 16 of each of 3 prompts
    ids = rollouts.prompt_id[:2]
    draw = buffer.sample_prompts(ids, 8, train_step=0, rng=RNG(0), strategy="recent_k")
    assert np.array_equal(draw.rollouts.prompt_id, np.repeat(ids, 8))
    with pytest.raises(ConfigError, match=r"strategy must be a function or one of .*'recent_k'.*, got 'newest'"):
        buffer.sample_prompts(ids, 8, train_step=0, rng=RNG(0), strategy="newest")


def test_score_when_every_rollout_is_its_own_group_warns() -> None:
    with pytest.warns(RuntimeWarning, match="each of the 4 rollouts is a group of its own, so every advantage is 0"):
        assert score_group(plain(4), [0.0, 1.0, 0.0, 1.0]).advantage.tolist() == [0.0] * 4
    assert score_group(plain(4, group_id=3, prompt_id=5), [0.0, 1.0, 0.0, 1.0]).advantage.any()


def test_logprobs_when_a_tensor_cannot_be_read_say_what_to_do() -> None:
    torch = pytest.importorskip("torch")
    for logprobs in (torch.zeros(2, dtype=torch.bfloat16), torch.zeros(2, requires_grad=True)):
        with pytest.raises(DataError, match=r"log-probs are no rows of numbers: .*give .detach\(\).float\(\).cpu\(\)"):
            Rollouts.from_completions([[1]], [[2, 3]], [logprobs])


KERNELS = pytest.mark.parametrize("kernels", ["numpy", "numba"])


def rows(*numbers, dtype=np.int64):
    return np.array(numbers, dtype)


class Names:
    """An eviction order, or a rule, that names the given rows once it is switched on."""

    def __init__(self, named) -> None:
        self.named, self.on = named, False

    def expired(self, columns, touched):
        return self.named if self.on else np.empty(0, np.int64)


class Evicts(Names):
    expired = None

    def victims(self, columns, rows_over, n_new):
        return self.named if self.on else columns.oldest(rows_over)

    def next_victims(self, columns, n):
        return self.named if self.on else columns.oldest(n)


BAD_ROWS = [
    (rows(10**6), "gave rows from 1000000 to 1000000, expected 0 to 5"),
    (rows(-1), "gave rows from -1 to -1, expected 0 to 5"),
    (rows(1, 0, 1), "gave row 1 twice"),
    (rows(0.0, dtype=np.float64), "gave float64 \\(1,\\), expected row numbers int64"),
    ([0, 1], "gave list, expected row numbers int64"),
]


@KERNELS
@pytest.mark.parametrize(("named", "message"), BAD_ROWS)
@pytest.mark.parametrize("part", [Names, Evicts])
def test_rule_or_order_when_it_names_rows_that_are_none_is_named(kernels, named, message, part) -> None:
    rule = part(named)
    buffer = ReplayBuffer(4, retention=[rule], kernels=kernels)
    buffer.add(plain(4), train_step=0)
    rule.on = True
    with pytest.raises(DataError, match=rf"{part.__name__}\.(expired|victims) {message}"):
        buffer.add(plain(2, first=4), train_step=1)
    assert buffer.columns["rollout_id"].tolist() == [0, 1, 2, 3]
    buffer.check()


@pytest.mark.parametrize(("named", "message"), [(rows(), "gave 0 rows, expected 1"), (rows(0, 1, 2, 3), "gave 4 rows")])
def test_order_when_bytes_run_out_and_it_names_too_few_or_too_many_raises(named, message) -> None:
    order = Evicts(named)
    buffer = ReplayBuffer(4, retention=[order])
    buffer.add(plain(4), train_step=0)
    order.on, order.victims = True, lambda columns, rows_over, n_new: columns.oldest(rows_over)
    with pytest.raises(DataError, match=rf"Evicts.next_victims {message}"):
        buffer.resize(4, buffer.nbytes - 1)
    assert (buffer.capacity, buffer.capacity_bytes, len(buffer)) == (4, None, 4)


@KERNELS
def test_rollouts_when_changed_after_they_were_made_are_refused(kernels) -> None:
    buffer = ReplayBuffer(8, kernels=kernels)
    for name, place, value in (("offsets", 1, -5), ("offsets", 1, 10**9), ("offsets", 0, 1), ("prompt_length", 0, 99)):
        given = plain(4)
        getattr(given, name)[place] = value
        with pytest.raises(DataError, match=r"offsets must rise|prompt_length must lie"):
            buffer.add(given, train_step=0)
    given = plain(2, extras={"image": Ragged(np.zeros(4), np.array([0, 2, 4]))})
    given.extras["image"].offsets[1] = 10**9
    with pytest.raises(DataError, match="offsets must rise from 0 to 4"):
        buffer.add(given, train_step=0)
    assert len(buffer) == buffer.added == 0


@pytest.mark.parametrize("step", [True, 1.0, "1", None, np.float32(1), 1 << 62])
def test_train_step_when_it_is_no_whole_number_below_the_bound_is_refused(step) -> None:
    buffer = ReplayBuffer(8)
    buffer.add(plain(4), train_step=0)
    for call in (
        lambda: buffer.add(plain(4), train_step=step),
        lambda: buffer.check_add(plain(4), train_step=step),
        lambda: buffer.sample(2, train_step=step, rng=RNG(0)),
        lambda: buffer.sample_padded(2, train_step=step, rng=RNG(0)),
        lambda: buffer.sample_prompts([0], 1, train_step=step, rng=RNG(0)),
        lambda: buffer.retain(train_step=step),
    ):
        with pytest.raises(DataError, match="train step is"):
            call()
    assert buffer.train_step == 0 and len(buffer) == 4


def test_numbers_when_they_are_numpy_integers_count_as_plain_ones() -> None:
    buffer = ReplayBuffer(np.uint8(8), sampler=Newest(), retention=[MaxStaleness(10)])
    buffer.add(plain(4), train_step=np.uint32(0))
    buffer.retain(train_step=np.uint32(1))  # an unsigned 1 - 10 would be a large step
    assert len(buffer) == 4 and type(buffer.train_step) is int and type(buffer.capacity) is int
    assert buffer.sample(np.uint8(2), train_step=np.uint64(2), rng=RNG(0)).rollout_ids.tolist() == [3, 2]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda b: b.sample(2.0, train_step=1, rng=RNG(0)), "n is 2.0, expected a whole number"),
        (lambda b: b.sample(True, train_step=1, rng=RNG(0)), "n is True, expected a whole number"),
        (lambda b: b.can_sample("2"), "n is '2', expected a whole number"),
        (lambda b: b.can_add(1.5), "n is 1.5, expected a whole number"),
        (lambda b: b.sample_prompts([0], 1.5, train_step=1, rng=RNG(0)), "per_prompt is 1.5, expected a whole"),
        (lambda b: b.sample_prompts([[0], [1, 2]], 1, train_step=1, rng=RNG(0)), "prompt_ids cannot be an array"),
        (lambda b: b.remove([[0], [1, 2]]), "rollout_ids cannot be an array"),
        (lambda b: b.update_priorities([0, 1], [[1], [1, 2]]), "priorities cannot be an array"),
        (lambda b: b.add(None, train_step=1), "rollouts are NoneType, expected Rollouts"),
        (lambda b: b.sample(2, train_step=1, rng=RNG(0), out="x"), "out is str, expected a Workspace"),
        (lambda b: b.sample_padded(2, train_step=1, rng=RNG(0), layout="x"), "layout is 'x', expected RightPadded"),
        (
            lambda b: b.sample(2, train_step=1, rng=RNG(0), out=Workspace(lambda size: None)),
            r"allocate\(\d+\) gave NoneType",
        ),
    ],
)
def test_argument_when_it_is_of_another_type_is_named_and_nothing_happens(call, message) -> None:
    buffer = ReplayBuffer(8)
    buffer.add(plain(4), train_step=1)
    with pytest.raises(DataError, match=message):
        call(buffer)
    assert len(buffer) == 4 and buffer.columns["uses"].tolist() == [0] * 4


@pytest.mark.parametrize(
    "settings",
    [
        {"capacity": 10**400},
        {"capacity": None},
        {"capacity": 1 << 62},
        {"first_id": "0"},
        {"first_id": None},
        {"id_stride": 1.0},
        {"threads": None},
        {"threads": float("nan")},
        {"threads": 10**6},
        {"kernels": [1]},
        {"admission": "x"},
        {"admission": None},
        {"admission": [3]},
        {"limiter": "x"},
    ],
)
def test_setting_when_it_is_of_another_type_or_size_is_refused(settings) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings))):
        ReplayBuffer(**{"capacity": 4, **settings})


@pytest.mark.parametrize(
    "part",
    [MaxStaleness(2), NewestPerPrompt(2), KeepBest(), Reservoir(0), PositiveBias(0.5, 0.0), Epoch(), Prioritized()],
    ids=lambda part: type(part).__name__,
)
def test_part_when_it_keeps_something_belongs_to_one_buffer(part) -> None:
    own = {"sampler": part} if hasattr(part, "repeats") else {"retention": [part]}
    first = ReplayBuffer(8, **own)
    with pytest.raises(ConfigError, match=rf"this {type(part).__name__} belongs to another buffer already"):
        ReplayBuffer(8, **own)
    first.add(plain(4), train_step=0)
    del first
    assert len(ReplayBuffer(8, **own)) == 0  # the first one is gone


def test_part_when_it_keeps_nothing_may_be_shared() -> None:
    sampler, rule = Uniform(), MaxUses(1)
    assert [len(ReplayBuffer(8, sampler=sampler, retention=[rule])) for _ in range(2)] == [0, 0]


def test_shards_when_their_ids_can_collide_are_refused() -> None:
    for numbers in (((0, 1), (0, 1)), ((0, 1), (2**20, 1)), ((0, 2), (3, 3)), ((0, 4), (2, 2))):
        with pytest.raises(ConfigError, match="two shards give the same ids"):
            ShardedBuffer([ReplayBuffer(4, first_id=first, id_stride=stride) for first, stride in numbers])
    shards = [ReplayBuffer(4, first_id=i, id_stride=2) for i in range(2)]
    assert ShardedBuffer(shards).add(plain(4), train_step=0).tolist() == [0, 1, 2, 3]
    with pytest.raises(CheckpointError, match=r"first_id and id_stride are \[0, 2\], those of this buffer \[1, 2\]"):
        shards[1].load_state_arrays(shards[0].state_arrays())
    assert shards[1].columns["rollout_id"].tolist() == [1, 3]


class Hears:
    """A sampler with an index that fails when it is told."""

    repeats, on = False, False

    def __call__(self, columns, n, rng):
        return columns.live()[:n]

    def rebuilt(self, columns) -> None:
        self.known = len(columns)

    def changed(self, columns, rows) -> None:
        if self.on:
            raise RuntimeError("not today")
        self.known = len(columns)


@pytest.mark.parametrize(
    ("call", "left"),
    [
        (lambda b: b.update([0], reward=5.0), 4),
        (lambda b: b.update_priorities([0], [5.0]), 4),
        (lambda b: b.sample(2, train_step=1, rng=RNG(0)), 4),
        (lambda b: b.add(plain(1), train_step=1), 4),
        (lambda b: b.remove([0]), 3),
        (lambda b: b.resize(3), 3),
    ],
)
def test_index_when_it_fails_an_operation_takes_effect_wholly_or_not(call, left) -> None:
    sampler = Hears()
    buffer = ReplayBuffer(4, sampler=sampler)
    given = plain(4)
    buffer.add(given, train_step=1)
    sampler.on = True
    with pytest.raises(RuntimeError, match="not today"):
        call(buffer)
    sampler.on = False
    buffer.check()
    assert buffer.columns["reward"].tolist() == given.reward[4 - left :].tolist()
    assert set(buffer.columns["priority"]) == {1.0} and not buffer.columns["uses"].any()
    assert buffer.capacity == 4 and buffer.metrics()["draws"] == 0 and buffer.metrics()["left"] == 4 - left
    buffer.sample(2, train_step=1, rng=RNG(0))
    assert sampler.known == left  # began anew


@KERNELS
def test_ids_when_an_add_is_interrupted_before_it_counts_go_on_rising(kernels) -> None:
    buffer = ReplayBuffer(8, kernels=kernels, first_id=1, id_stride=3)
    counted = buffer.statistics.admitted

    def interrupted(n, refused) -> None:
        raise KeyboardInterrupt

    buffer.statistics.admitted = interrupted
    with pytest.raises(KeyboardInterrupt):
        buffer.add(plain(2), train_step=0)
    buffer.statistics.admitted = counted
    buffer._added = 0  # as when the interrupt comes one instruction earlier
    assert buffer.add(plain(2), train_step=0).tolist() == [7, 10]
    buffer.check()


def test_save_when_a_generator_is_of_a_class_of_its_own_is_refused(tmp_path) -> None:
    class Own(np.random.PCG64):
        pass

    buffer = ReplayBuffer(4)
    with pytest.raises(DataError, match=r"generator 'rng' is a .*Own, expected one of numpy's"):
        buffer.save(tmp_path / "buffer.ost", rng=np.random.Generator(Own(0)))
    assert not list(tmp_path.iterdir())
    with pytest.raises(DataError, match="the name of an extra column is None, expected a str"):
        plain(2, extras={None: np.zeros(2)})


def test_kernels_when_numba_is_broken_are_numpy_or_refused(monkeypatch) -> None:
    from ostinato.buffer import kernels
    from ostinato.errors import MissingExtraError

    kernels._numba_kernels.cache_clear()
    monkeypatch.setitem(__import__("sys").modules, "ostinato.buffer.numba_kernels", None)  # its import fails
    try:
        assert kernels.kernels("auto").name == "numpy"
        with pytest.raises(MissingExtraError):
            kernels.kernels("numba")
    finally:
        kernels._numba_kernels.cache_clear()
