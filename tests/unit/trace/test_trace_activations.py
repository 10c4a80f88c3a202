"""What steps keep for the backward, and what they leave behind."""

from pathlib import Path

from msgspec.structs import replace

from ridgeline.records.step_work import TraceMemory
from ridgeline.trace.analyses.allocations import activations
from ridgeline.trace.links import Links
from ridgeline.trace.window import window_of
from tests.unit.trace.traces_made import AUTOGRAD, Made

K = 1024


def studied(made: Made, folder: Path) -> TraceMemory:
    trace = made.trace(folder)
    found = activations(trace, Links(trace), window_of(trace, "all"))
    assert found is not None
    return found


def steps(leak: int = 0, backward: bool = True, steps: int = 3) -> Made:
    """Each step: two blocks of a module that keep 10 KiB each, a backward that frees them."""
    made, level, number = Made(), 100 * K, 7

    def allocate(ts: float, size: int) -> None:
        nonlocal level
        level += size
        made.allocation(ts, size, level)

    for i in range(steps):
        at = 1000.0 * i
        made.span(f"ProfilerStep#{i}", at, 1000)
        made.frame("train.py(5): step", at + 5, 900)
        made.frame("nn.Module: Net_0", at + 10, 300)
        for block in range(2):
            begin = at + 20 + 100 * block
            made.frame(f"nn.Module: Block_{block}", begin, 80)
            made.op("aten::mm", begin + 10, 50, **{"Sequence number": number})
            allocate(begin + 20, 6 * K)
            allocate(begin + 30, 4 * K)
            number += 1
        if backward:
            made.op("autograd::engine::evaluate_function: MmBackward0", at + 400, 100, AUTOGRAD)
            for block in range(2):
                made.op("MmBackward0", at + 410 + 20 * block, 10, AUTOGRAD,
                        **{"Sequence number": number - 1 - block, "Fwd thread id": 1})  # fmt: skip
        made.op("aten::add", at + 600, 10, **{"Sequence number": number})
        for size in (6 * K, 4 * K) * 2:
            allocate(at + 650, -size)
        if leak:
            made.op("aten::cat", at + 700, 20)
            allocate(at + 710, leak)
        made.launch("kernel", at + 720, at + 730, 10, i + 1)
    return made


def test_activations_by_module_and_at_the_backward(tmp_path: Path) -> None:
    found = studied(steps(), tmp_path)
    assert found.device == "cuda:0"
    assert found.absolute
    assert found.forward_bytes == 20 * K
    assert found.peak_bytes == 120 * K
    by_kind = {m.kind: m for m in found.modules}
    assert by_kind["Block"].calls == 2
    assert by_kind["Block"].depth == 1
    assert by_kind["Block"].held_bytes == 20 * K
    assert by_kind["Block"].last_bytes == 8 * K
    assert by_kind["Net"].held_bytes == 20 * K
    assert by_kind["Net"].depth == 0
    assert found.growth_bytes == 0
    assert found.stays == ()


def test_a_step_that_began_before_the_window_is_not_counted(tmp_path: Path) -> None:
    """Its first block lies before the window, its second would be of two steps, not three."""
    trace = steps().trace(tmp_path)
    whole = window_of(trace, "all")
    late = replace(whole, start_ns=whole.start_ns + 110_000)
    found = activations(trace, Links(trace), late)
    assert found is not None
    by_kind = {m.kind: m for m in found.modules}
    assert by_kind["Block"].calls == 2
    assert by_kind["Block"].held_bytes == found.forward_bytes == 20 * K


def test_what_stays_is_told_by_its_size(tmp_path: Path) -> None:
    found = studied(steps(leak=3 * K), tmp_path)
    assert found.step_ends_bytes == (103 * K, 106 * K, 109 * K)
    assert found.growth_bytes == 3 * K
    (stays,) = found.stays
    assert (stays.block_bytes, stays.blocks, stays.ops) == (3 * K, 1.0, ("aten::cat",))
    assert stays.place is not None
    assert stays.place.function == "step"


def test_two_steps_tell_no_growth(tmp_path: Path) -> None:
    found = studied(steps(leak=3 * K, steps=2), tmp_path)
    assert found.growth_bytes == 0
    assert found.stays == ()


def test_nodes_that_were_made_and_those_that_ran(tmp_path: Path) -> None:
    found = studied(steps(), tmp_path)
    assert found.backwards
    assert found.nodes == 2
    assert found.unrun_nodes == 0
    found = studied(steps(backward=False), tmp_path)
    assert not found.backwards
    assert found.nodes == 2
    assert found.unrun_nodes == 2
    assert found.forward_bytes == 20 * K  # what the model's call leaves behind


def test_memory_asked_of_the_driver(tmp_path: Path) -> None:
    made = steps()
    for i in range(3):
        made.call("cudaMalloc", 1000.0 * i + 50, 30, 900 + i)
        made.call("cudaMallocHost", 1000.0 * i + 80, 30, 950 + i)
    found = studied(made, tmp_path).segments
    assert (found.calls, found.host_ns) == (1.0, 30_000)
    assert found.place is not None
    assert found.place.function == "step"


def test_none_without_allocations(tmp_path: Path) -> None:
    made = Made().span("ProfilerStep#0", 0, 100).launch("kernel", 10, 20, 10, 1)
    trace = made.trace(tmp_path)
    assert activations(trace, Links(trace), window_of(trace, "all")) is None
