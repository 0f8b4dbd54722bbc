import gc
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from ostinato.errors import ConfigError, RunError
from ostinato.protocols import Task
from ostinato.tasks import ScorePool, load_scorer, score_pool, score_process
from ostinato.tasks.score_process import CRASH, TIMEOUT, Mark
from ostinato.tasks.scoring import open_comparison

HERE = Path(__file__).parent
MEASURED = partial(load_scorer, f"{HERE / 'odd_scorers.py'}:measured")
TASK = Task("p", "a", 0, "odd")


def pairs(*texts: str) -> list[tuple[Task, str]]:
    return [(TASK, text) for text in texts]


def is_alive(process: int) -> bool:
    try:
        # A zombie whose parent is about to be waited for has ended.
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def ends(process: int) -> bool:
    for _ in range(500):
        if not is_alive(process):
            return True
        time.sleep(0.01)
    return False


@pytest.fixture(scope="module")
def pool():
    pool = ScorePool(MEASURED, workers=2, timeout_s=2)
    yield pool
    pool.close()


def test_marks_are_those_of_the_verifier_here_when_nothing_goes_wrong(pool) -> None:
    rng = np.random.default_rng(0)
    texts = [f"sleep {delay:.4f}{' ' * i}" for i, delay in enumerate(rng.exponential(0.002, 200))]
    here = MEASURED()
    assert pool.mark(pairs(*texts)) == [Mark(reward=here(TASK, text)) for text in texts]


def test_order_is_kept_and_every_failure_is_told_when_delays_and_faults_are_mixed(pool) -> None:
    expected = {
        i: {"hang": TIMEOUT, "die": CRASH, "exit": CRASH}[word] for i, word in ((3, "hang"), (50, "die"), (120, "exit"))
    }
    texts = [f"sleep 0.00{i % 4}" + " " * i for i in range(200)]
    texts[3], texts[50], texts[120] = "hang", "die", "exit"
    marks = pool.mark(pairs(*texts))
    assert {i: mark.failure for i, mark in enumerate(marks) if mark.failure} == expected
    good = [i for i in range(200) if i not in expected]
    assert [marks[i].reward for i in good] == [len(texts[i]) / 100 for i in good]
    assert all(marks[i].reward == 0 for i in expected)


def test_processes_stay_and_have_no_torch_when_asked_again(pool) -> None:
    first, second = ({m.reward for m in pool.mark(pairs("process", "process"))} for _ in range(2))
    assert first == second and first <= {float(n) for n in pool.processes()}
    assert pool.mark(pairs("torch"))[0].reward == 0


def test_a_hang_ends_within_its_time_even_when_c_code_holds_the_interpreter(pool) -> None:
    before = set(pool.processes())
    assert pool.mark(pairs("lock", "lock")) == [Mark(failure=TIMEOUT)] * 2
    assert not before & set(pool.processes())
    assert all(ends(process) for process in before)


def test_what_a_scorer_started_ends_with_it(pool, tmp_path: Path) -> None:
    assert pool.mark(pairs(f"spawn {tmp_path / 'child'}")) == [Mark(failure=TIMEOUT)]
    assert ends(int((tmp_path / "child").read_text()))


def test_an_error_of_the_scorer_comes_back_in_words(pool) -> None:
    marks = pool.mark(pairs("raise gold", "fine", "nan"))
    assert marks[:2] == [Mark(error="KeyError: 'gold'"), Mark(reward=0.04)]
    assert np.isnan(marks[2].reward)


def test_what_a_scorer_prints_does_not_disturb(pool, capfd) -> None:
    assert pool.mark(pairs("print", "fine")) == [Mark(reward=0.05), Mark(reward=0.04)]


def test_an_idle_process_that_was_killed_is_replaced_and_nothing_is_lost(pool) -> None:
    pool.mark(pairs("fine", "fine"))
    for process in pool.processes():
        os.kill(process, signal.SIGKILL)
        assert ends(process)
    assert pool.mark(pairs("fine", "fine")) == [Mark(reward=0.04)] * 2


def test_eight_threads_share_two_processes_and_get_their_own_answers(pool) -> None:
    answers: dict[int, list[Mark]] = {}

    def ask(i: int) -> None:
        answers[i] = pool.mark(
            pairs(*(f"sleep 0.001{' ' * (10 * i + k)}" for k in range(10)), "hang" if i == 5 else "x")
        )

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i in range(8):
        assert [mark.reward for mark in answers[i][:10]] == [(11 + 10 * i + k) / 100 for k in range(10)]
        assert answers[i][10] == (Mark(failure=TIMEOUT) if i == 5 else Mark(reward=0.01))


def test_late_answers_meet_no_later_question_when_a_call_is_interrupted(pool, monkeypatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(score_pool, "_worth_a_look", lambda busy: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            pool.mark(pairs("sleep 0.05", "sleep 0.05"))
    assert pool.mark(pairs("a", "ab", "abc")) == [Mark(reward=0.01), Mark(reward=0.02), Mark(reward=0.03)]


def test_a_pickled_pool_opens_its_own_processes(pool) -> None:
    again = pickle.loads(pickle.dumps(pool))
    assert again.mark(pairs("abc")) == [Mark(reward=0.03)]
    assert not set(again.processes()) & set(pool.processes())
    left = again.processes()
    del again
    gc.collect()
    assert all(ends(process) for process in left)


def test_a_run_of_failures_is_an_error(monkeypatch) -> None:
    monkeypatch.setattr(score_pool, "MOST_FAILURES", 3)
    pool = ScorePool(MEASURED, workers=1, timeout_s=5)
    assert pool.mark(pairs("die", "die", "fine", "die"))[2] == Mark(reward=0.04)
    with pytest.raises(RunError, match=r"scoring 3 completions in a row had to be given up, the last by crash"):
        pool.mark(pairs("die", "die"))
    pool.close()
    assert pool.processes() == []
    with pytest.raises(RunError, match="was closed"):
        pool.mark(pairs("fine"))


def test_a_verifier_that_cannot_be_prepared_is_an_error(monkeypatch) -> None:
    pool = ScorePool(partial(load_scorer, "no_such_module:f"), workers=1, timeout_s=5)
    with pytest.raises(ConfigError, match=r"importing no_such_module raised ModuleNotFoundError"):
        pool.mark(pairs("fine"))
    with pytest.raises(RunError, match=r"could not prepare the scorer: KeyError: 'unheard of'"):
        ScorePool(partial(open_comparison, "unheard of"), workers=1, timeout_s=5).mark(pairs("fine"))
    monkeypatch.setattr(score_process, "_WORKER", Path("absent.py"))
    with pytest.raises(RunError, match=r"ended with exit code 2 before it was ready"):
        ScorePool(MEASURED, workers=1, timeout_s=5).mark(pairs("fine"))


def test_a_process_that_never_is_ready_is_an_error(monkeypatch, tmp_path: Path) -> None:
    (tmp_path / "slow_import.py").write_text("import time\ntime.sleep(1e6)\n")
    monkeypatch.setattr(score_process, "START_S", 0.3)
    pool = ScorePool(partial(load_scorer, f"{tmp_path / 'slow_import.py'}:f"), workers=1, timeout_s=5)
    with pytest.raises(RunError, match=r"not ready within 0\.3 s; what does the scorer import"):
        pool.mark(pairs("fine"))
    assert pool.processes() == []


def test_a_verifier_that_cannot_be_sent_is_refused() -> None:
    with pytest.raises(ConfigError, match="must be importable"):
        ScorePool(lambda: None, workers=1, timeout_s=1)
    with pytest.raises(ConfigError, match="at least 1 worker"):
        ScorePool(MEASURED, workers=0, timeout_s=1)


@pytest.mark.parametrize("end", ["return", "kill"])
def test_nothing_stays_behind_when_the_asking_process_ends(end: str, tmp_path: Path) -> None:
    code = f"""
        import os, signal, threading, time
        from functools import partial
        from ostinato.protocols import Task
        from ostinato.tasks import ScorePool, load_scorer
        pool = ScorePool(partial(load_scorer, {str(HERE / "odd_scorers.py")!r} + ":measured"), workers=2, timeout_s=600)
        task = Task("p", "a", 0, "odd")
        pool.mark([(task, "a")] * 20)
        asked = [(task, "lock"), (task, "spawn {tmp_path}/child")]
        threading.Thread(target=pool.mark, args=(asked,), daemon=True).start()
        while not os.path.exists("{tmp_path}/child") or not open("{tmp_path}/child").read():
            time.sleep(0.01)
        print(*pool.processes(), open("{tmp_path}/child").read(), flush=True)
        if {end!r} == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True, timeout=60)
    processes = list(map(int, done.stdout.split()))
    assert len(processes) == 3
    assert all(ends(process) for process in processes)
    assert done.returncode == (-signal.SIGKILL if end == "kill" else 0)


def test_math_verify_is_the_same_in_threads_and_ends_where_it_would_not() -> None:
    pytest.importorskip("math_verify")
    pool = ScorePool(partial(open_comparison, "math-verify"), workers=2, timeout_s=4)
    cases = [(r"\frac{1}{2}", r"$\boxed{0.5}$", 1.0), ("42", "so it is 41", 0.0), ("$x=3$", r"\boxed{3}", 1.0)]
    asked = [(Task("p", gold, 0, "m"), text) for gold, text, _ in cases]
    answers: dict[int, list[Mark]] = {}
    threads = [threading.Thread(target=lambda i=i: answers.update({i: pool.mark(asked)})) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [answers[i] for i in range(4)] == [[Mark(reward=reward) for *_, reward in cases]] * 4
    tower = pool.mark([(Task("p", "5", 0, "m"), "$9^{9^{9^9}}$"), asked[0]])
    assert tower == [Mark(failure=TIMEOUT), Mark(reward=1.0)]
    assert "no mathematics in the gold answer ''" in pool.mark([(Task("p", "", 0, "m"), "5")])[0].error
    pool.close()
