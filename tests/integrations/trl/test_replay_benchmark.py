"""How the benchmark of replay in TRL reads its curves, worked by hand."""

import importlib
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


def test_time_to_plains_last_accuracy_is_a_share_of_plains_own(monkeypatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    benchmark = importlib.import_module("trl_replay")
    rising = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6]
    # Means of five: 0.2, 0.3, 0.4 at 2, 3, 4 s. The last is reached at 4 s.
    plain = {"seconds": [0, 1, 2, 3, 4, 5, 6], "accuracy": rising}
    twice_as_fast = {"seconds": [0, 0.5, 1, 1.5, 2, 2.5, 3], "accuracy": rising}
    never = {"seconds": [0, 1, 2, 3, 4, 5, 6], "accuracy": [0.39] * 7}
    steeper = {"seconds": [0, 1, 2, 3, 4, 5, 6], "accuracy": [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7]}  # 0.4 at 3 s
    runs = [plain, twice_as_fast, never, steeper]
    assert benchmark.times_to_final(runs, [plain] * 4) == pytest.approx([1.0, 0.5, None, 0.75])
