"""Compiled functions cut into pieces."""

from typing import Any

import pytest
from msgspec.structs import replace

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rules.compilation import graph_breaks as look
from ridgeline.records.run import Compilation
from ridgeline.records.sites import OpSite, Sites
from tests.unit.diagnosis.made_up_verdict import work
from tests.unit.diagnosis.rules.made_up_memory import FILE, capture, case

TEXT = """\
class Block(nn.Module):
    def forward(self, x):
        h = F.relu(self.wide(x))
        self.largest = h.amax().item()
        return self.out(h)
"""
ITEM = "Unsupported Tensor.item() call with capture_scalar_outputs=False\n  Explanation: …"
BROKEN = (
    Compilation(place="/v/site-packages/torch/_dynamo/external_utils.py:67", graph_breaks=(ITEM,)),
    Compilation(place=f"{FILE}:2", function="forward", graph_breaks=(ITEM,)),
    Compilation(place=f"{FILE}:4", function="torch_dynamo_resume_in_forward_at_4",
                graph_breaks=("<class 'torch._dynamo.exc.TensorifyScalarRestartAnalysis'>",)),
)  # fmt: skip


def broken(pieces: float = 20.0, glue_ms: float = 20.0, **changed: Any) -> Case:
    """Steps of 100 ms on a CPU, `glue_ms` of them around the pieces."""
    ops = (
        OpSite(op="CompiledFunction", calls=pieces, host_ns=glue_ms * 1e6 / 2, phase="forward"),
        OpSite(op="CompiledFunctionBackward", calls=pieces, host_ns=glue_ms * 1e6 / 2),
        OpSite(op="aten::mm", within=("CompiledFunction",), calls=40, host_ns=60e6),
    )
    made = replace(case(TEXT, gpu=False), sites=Sites(ops=ops, stacks=True))
    told = capture(compilations=BROKEN, graph_breaks={ITEM: 3})
    return replace(made, capture=told, **changed)


def test_the_line_it_resumes_at_and_the_time_around_the_pieces() -> None:
    (finding,) = look(broken())
    assert finding.rule == "graph-breaks"
    assert finding.confidence == "high"
    assert finding.claim == (
        "`.item()` breaks the compiled graph: 20 compiled pieces a step instead of one"
    )
    assert (finding.place, finding.function) == (f"{FILE}:4", "forward")
    assert finding.share_pct == pytest.approx(
        28.5
    )  # of 20 %, nineteen twentieths, half as much again
    assert finding.change.startswith("self.largest = h.amax()")


def test_operators_left_between_the_pieces_count() -> None:
    made = broken()
    outside = OpSite(op="aten::gelu", calls=4, host_ns=10e6, phase="forward")
    (finding,) = look(replace(made, sites=replace(made.sites, ops=(*made.sites.ops, outside))))
    assert finding.share_pct == pytest.approx(35.5)


def test_a_busy_gpu_hides_the_time_around_them() -> None:
    made = replace(broken(), on_gpu=True, work=work(0.95))
    assert not list(look(made))


def test_silent_without_a_break_or_with_one_piece() -> None:
    made = broken()
    assert not list(look(replace(made, capture=capture(compilations=()))))
    assert not list(look(broken(pieces=1.0)))


def test_silent_where_it_costs_microseconds() -> None:
    assert not list(look(broken(pieces=2.0, glue_ms=1.0)))


def test_a_trace_alone_tells_many_pieces() -> None:
    (finding,) = look(replace(broken(), kind="trace", capture=None))
    assert finding.confidence == "low"
    assert "Each step runs 20 compiled pieces" in finding.claim
    assert not list(look(replace(broken(pieces=3.0), kind="trace", capture=None)))
    assert not list(look(replace(broken(glue_ms=3.0), kind="trace", capture=None)))


def test_a_branch_on_a_tensor_has_no_reason_but_a_line() -> None:
    text = TEXT.replace("self.largest = h.amax().item()", "if h.mean() > 1: pass")
    made = broken()
    told = capture(compilations=(
        Compilation(place=f"{FILE}:2", function="forward"),
        Compilation(place=f"{FILE}:4", function="torch_dynamo_resume_in_forward_at_4"),
    ))  # fmt: skip
    (finding,) = look(replace(made, capture=told, sources=case(text).sources))
    assert finding.claim.startswith("`if h.mean() > 1: pass` breaks the compiled graph")
    assert finding.line == 4
    assert "torch.where" in finding.change


def test_a_break_after_a_break_is_at_its_own_line() -> None:
    reason = "Failed to trace builtin operator\n  Explanation: … builtin operator `print` …"
    resumed = "torch_dynamo_resume_in_forward_at_"
    told = capture(compilations=(
        Compilation(place=f"{FILE}:2", function="forward", graph_breaks=(ITEM,)),
        Compilation(place=f"{FILE}:4", function=f"{resumed}4", graph_breaks=(reason,)),
        Compilation(place=f"{FILE}:5", function=f"{resumed}5"),
    ))  # fmt: skip
    (finding,) = look(replace(broken(), capture=told))
    assert finding.line == 4
    assert finding.evidence[0].text == "2: line 4, line 5"


def test_a_break_in_a_function_called_there_is_at_its_own_line() -> None:
    text = """\
def note(name, t):
    seen[name] = float(t.norm())
class Block(nn.Module):
    def forward(self, x):
        h = F.relu(x)
        note("one", h)
        return self.out(h)
"""
    told = capture(compilations=(
        Compilation(place=f"{FILE}:4", function="forward", graph_breaks=(ITEM,)),
        Compilation(place=f"{FILE}:1", function="note", graph_breaks=(ITEM,)),
        Compilation(place=f"{FILE}:6", function="torch_dynamo_resume_in_forward_at_6"),
    ))  # fmt: skip
    (finding,) = look(replace(broken(), capture=told, sources=case(text).sources))
    assert finding.claim.startswith("`float()` breaks the compiled graph")
    assert (finding.place, finding.function) == (f"{FILE}:2", "note")
    assert finding.change.startswith("seen[name] = t.norm()  #")


def test_a_way_to_find_a_break_is_not_the_change() -> None:
    branch = TEXT.replace("self.largest = h.amax().item()", "if h.amax().item() > 1:")
    branch = branch.replace("return", "    return")
    other = TEXT.replace("self.largest = h.amax().item()", "library.note(h)")
    for text, said in ((branch, "torch.where"), (other, "take `library.note(h)` out of")):
        (finding,) = look(replace(broken(), sources=case(text).sources))
        assert said in finding.change
        assert all(line.startswith("#") for line in finding.change.splitlines())
