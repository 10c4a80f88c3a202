from pathlib import Path

import pytest

from ridgeline.records.sites import RankPlace
from ridgeline.trace.links import Links
from ridgeline.trace.ranks.own_time import OwnTime, own_functions, own_time, waiting_phases
from ridgeline.trace.window import window_of
from tests.unit.trace.traces_made import WORKER, Made

STEP_US = 20_000


def rank(*, read_us: float, waits_us: float, by_hand: bool = False) -> Made:
    """Two steps: `read_us` in the loader, a forward of 2 ms, an exchange of `waits_us` inside the
    backward, or, asked for by hand, after it."""
    made = Made()
    for step in range(2):
        at = step * STEP_US
        made.span(f"ProfilerStep#{step}", at, STEP_US)
        made.span("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at, read_us)
        at += read_us
        made.frame("nn.Module: Net_0", at, 2_000)
        made.op("aten::mm", at, 2_000)
        made.frame("torch/autograd/__init__.py(200): backward", at + 2_000, 1_000)
        made.op("autograd::engine::evaluate_function: MmBackward0", at + 2_000, 1_000)
        made.op("aten::mm", at + 2_000, 1_000)
        at += 3_000
        if not by_hand:
            made.frame("torch/autograd/__init__.py(200): backward", at, waits_us)
        made.op("c10d::allreduce_", at, 10)
        made.span("gloo:all_reduce", at, waits_us, tid=WORKER)
    return made


def seen(made: Made, folder: Path) -> OwnTime:
    trace = made.trace(folder)
    found = own_time(trace, Links(trace), window_of(trace, "all"), 0)
    assert found is not None
    return found


def test_waiting_is_in_the_phase_that_holds_the_exchange(tmp_path: Path) -> None:
    found = seen(rank(read_us=1_000, waits_us=12_000), tmp_path)
    assert found.phase_ns["input"].tolist() == [1_000_000] * 2
    assert found.waiting_ns["backward"].tolist() == [12_000_000] * 2
    assert found.own_share("backward") == pytest.approx(1 / 13)
    assert found.own_share("forward") == 1
    assert waiting_phases([found]) == {"backward"}


def test_an_exchange_asked_for_by_hand_is_in_no_phase_of_the_model(tmp_path: Path) -> None:
    found = seen(rank(read_us=1_000, waits_us=12_000, by_hand=True), tmp_path)
    assert found.phase_ns["forward"].tolist() == [2_000_000] * 2
    assert waiting_phases([found]) == {"other"}


def test_phases_add_up_to_the_step(tmp_path: Path) -> None:
    found = seen(rank(read_us=5_000, waits_us=3_000), tmp_path)
    assert sum(found.phase_ns.values()).tolist() == found.length_ns.tolist()


def test_collectives_on_a_device_say_nothing_of_the_hosts_phases(tmp_path: Path) -> None:
    made = Made()
    made.span("ProfilerStep#0", 0, 1_000)
    made.op("c10d::allreduce_", 10, 20)
    made.launch("ncclDevKernel_AllReduce_Sum", 15, 100, 400, 1, stream=9)
    trace = made.trace(tmp_path)
    assert own_time(trace, Links(trace), window_of(trace, "all"), 0) is None


def functions(folder: Path, *, slow: float) -> tuple[RankPlace, ...]:
    traces = []
    for number, ms in enumerate((0.0, slow)):
        made = Made(distributedInfo={"rank": number, "backend": "gloo"})
        made.span("ProfilerStep#0", 100, 10_000 + ms)
        made.frame("train.py(10): main", 0, 12_000 + ms, **{"Python id": 1})
        if ms:
            about = {"Python id": 2, "Python parent id": 1}
            made.frame("train.py(3): watch", 200, ms, **about)
            made.frame("<built-in function sleep>", 210, ms - 20,
                       **{"Python id": 3, "Python parent id": 2})  # fmt: skip
        made.op("aten::mm", 300 + ms, 4_000)
        made.op("c10d::allreduce_", 5_000 + ms, 10)
        made.span("gloo:all_reduce", 5_000 + ms, 3_000, tid=WORKER)
        traces.append(made.trace(folder, f"{number}.json"))
    links = [Links(trace) for trace in traces]
    return own_functions(traces, links, [window_of(t, "all") for t in traces], [0, 1])


def test_a_late_function_comes_with_its_caller_and_what_it_calls(tmp_path: Path) -> None:
    slow, *rest = functions(tmp_path, slow=5_000)
    assert (slow.rank, slow.place.function) == (1, "watch")
    assert slow.callee == "<built-in function sleep>"
    assert slow.caller is not None
    assert slow.caller.function == "main"
    assert not slow.encloses_steps
    assert all(one.encloses_steps for one in rest if one.place.function == "main")
