"""The virtual clock: order at an instant, joint execution, delivery; both clocks: errors and dead ends."""

import threading

import pytest

from ostinato.errors import RunError
from ostinato.loop.clock import Event, InFlight, Until, VirtualClock, WallClock, Work


class Said(Event):
    def __init__(self, text: str) -> None:
        self.text = text


def worker(name: str, durations: list[float], log: list, key="k"):
    for duration in durations:
        result = yield Work(lambda items: (log.append(tuple(items)), items)[1], name, key, lambda _, d=duration: d)
        yield Said(result)


def texts(clock, processes) -> list[tuple[float, str]]:
    return [(clock.now, event.text) for event in clock.drive(processes)]


def test_virtual_clock_when_durations_differ_delivers_in_time_order() -> None:
    clock, log = VirtualClock(), []
    heard = texts(clock, [worker("a", [2.0, 2.0, 2.0], log), worker("b", [1.5, 1.5, 1.5], log)])
    assert heard == [(1.5, "b"), (2.0, "a"), (3.0, "b"), (4.0, "a"), (4.5, "b"), (6.0, "a")]


def test_virtual_clock_when_two_start_at_one_instant_executes_them_together_by_rank() -> None:
    clock, log = VirtualClock(), []
    texts(clock, [worker("a", [1.0, 3.0], log), worker("b", [2.0, 2.0], log), worker("c", [2.0, 2.0], log)])
    assert log == [("a", "b", "c"), ("a",), ("b", "c")]


def test_virtual_clock_when_keys_differ_executes_apart() -> None:
    clock, log = VirtualClock(), []
    texts(clock, [worker("a", [1.0], log, key=1), worker("b", [1.0], log, key=2)])
    assert log == [("a",), ("b",)]


def test_virtual_clock_when_two_arrive_at_one_instant_lowest_rank_moves_first() -> None:
    clock, log = VirtualClock(), []
    heard = texts(clock, [worker("a", [2.0, 1.0], log), worker("b", [1.0, 1.0, 1.0], log)])
    assert heard == [(1.0, "b"), (2.0, "a"), (2.0, "b"), (3.0, "a")]


def test_virtual_clock_when_work_is_in_flight_at_the_start_delivers_it_then() -> None:
    def resumed():
        yield Said((yield InFlight(5.5, "kept")))

    clock = VirtualClock(now=5.0)
    assert texts(clock, [resumed()]) == [(5.5, "kept")]


def test_virtual_clock_when_asked_tells_what_is_in_flight() -> None:
    clock = VirtualClock()
    seen = []
    for _ in clock.drive([worker("a", [1.0, 1.0], []), worker("b", [5.0], [])]):
        seen.append({rank: (f.deliver_at, f.result) for rank, f in clock.in_flight().items()})
    assert seen == [{1: (5.0, "b")}, {1: (5.0, "b")}]


def test_until_when_another_process_makes_it_true_goes_on_at_that_instant() -> None:
    clock, gate = VirtualClock(), []

    def waits():
        yield Until(lambda: bool(gate), "the gate")
        yield Said("through")

    def opens():
        yield Work(lambda items: items, 0, "k", lambda _: 3.0)
        gate.append(1)

    assert texts(clock, [waits(), opens()]) == [(3.0, "through")]


@pytest.mark.parametrize("clock", [VirtualClock(), WallClock()], ids=["virtual", "wall"])
def test_clock_when_nobody_can_move_says_who_waits_for_what(clock) -> None:
    def stuck(what: str):
        yield Until(lambda: False, what)

    with pytest.raises(RunError, match="process 0 waits for rain; process 1 waits for sun"):
        list(clock.drive([stuck("rain"), stuck("sun")]))


def test_wall_clock_when_work_overlaps_runs_it_at_the_same_time() -> None:
    together = threading.Barrier(2, timeout=20)

    def meets():
        yield Work(lambda items: [together.wait()], 0, "k", lambda _: 0.0)

    def first():
        yield from meets()
        yield Said("met")

    assert [event.text for event in WallClock().drive([first(), meets()])] == ["met"]


def test_wall_clock_when_work_fails_raises_its_error() -> None:
    def fails():
        yield Work(lambda items: 1 / 0, 0, "k", lambda _: 0.0)

    with pytest.raises(ZeroDivisionError):
        list(WallClock().drive([fails()]))


@pytest.mark.parametrize("closed", [False, True], ids=["finished", "closed"])
def test_wall_clock_when_it_ends_leaves_before_it_waits_for_work_that_nobody_wants(closed: bool) -> None:
    left, waited = threading.Event(), []

    def first():
        yield Work(lambda items: items, 0, "train", lambda _: 0.0)
        yield Said("one")
        yield Said("two")

    def hangs():
        yield Work(lambda items: [waited.append(left.wait(20))], 0, "k", lambda _: 0.0)

    drive = WallClock(leave=left.set).drive([first(), hangs()])
    assert next(drive).text == "one" and not left.is_set()
    if closed:
        drive.close()
    else:
        assert [event.text for event in drive] == ["two"]
    assert waited == [True]
