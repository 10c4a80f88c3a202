"""Autograd nodes in a program that never trains."""

from typing import Any

from msgspec.structs import replace

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rules.inference import gradients_in_inference as look
from ridgeline.diagnosis.shares import Shares
from ridgeline.records.finding import Finding
from ridgeline.records.run import ModuleSeen, OptimizerSeen, Step
from ridgeline.records.run_summary import MemoryUse
from ridgeline.records.sites import OpSite, SitePhase, Sites
from tests.unit.diagnosis.made_up_verdict import work
from tests.unit.diagnosis.rules.made_up_memory import FILE, GIB, MIB, capture, case

SERVES = """\
import torch

def main():
    model = build().eval()
    for batch in requests:
        scores = model(batch)
"""


def serving(text: str = SERVES, nodes: float = 100.0, **changed: Any) -> Case:
    made = case(text, **changed)
    assert made.traced_memory is not None
    return replace(
        made,
        capture=capture(stepping="call", optimizers=()),
        steps=tuple(Step(index=i, start_ns=i, dur_ns=1, forwards=1) for i in range(20)),
        traced_memory=replace(made.traced_memory, nodes=nodes, backwards=False),
    )


def test_activations_kept_for_no_backward() -> None:
    (finding,) = look(serving())
    assert finding.rule == "gradients-in-inference"
    assert finding.confidence == "high"
    assert finding.place == f"{FILE}:6"
    assert finding.function == "main"
    assert "100 autograd nodes" in finding.claim
    assert "4 GiB" in finding.claim
    assert finding.memory_pct == 80
    assert finding.fix == "inference-mode"
    assert finding.change.startswith(
        "# before: scores = model(batch)\nwith torch.inference_mode():\n    scores = model(batch)"
    )


def on_a_cpu(overhead: float, kept: float, nodes: float = 2000.0) -> Finding:
    """A step of 100 ms on a host that copies 10 GB/s."""
    made = serving(nodes=nodes, gpu=False)
    assert made.traced_memory is not None
    of = {"input": 0.0, "transfer": 0.0, "overhead": overhead, "communication": 0.0,
          "compute": 1 - overhead, "memory": 0.0}  # fmt: skip
    memory = replace(made.traced_memory, forward_bytes=kept)
    (finding,) = look(replace(made, traced_memory=memory, shares=Shares(of=of)))
    return finding


def test_on_a_cpu_each_node_costs_host_time() -> None:
    finding = on_a_cpu(overhead=0.0, kept=0.0)
    assert finding.share_pct == 10  # 2,000 nodes of 5 µs, of 100 ms
    assert finding.gain_bound > 1.1


def test_the_bound_is_what_was_measured_beside_the_operators_work() -> None:
    finding = on_a_cpu(overhead=0.51, kept=0.0)
    assert finding.share_pct == 10
    assert finding.gain_bound >= 1 / (1 - 0.51)  # nodes cost up to 9.5 µs each
    assert any("51 % of the step" in row.text for row in finding.evidence)


def test_on_a_cpu_what_is_kept_costs_passes_of_the_memory() -> None:
    finding = on_a_cpu(overhead=0.0, kept=5e7, nodes=100.0)  # 5 ms a pass
    assert finding.share_pct == 5.5
    assert finding.gain_bound >= 1 / (1 - 0.15)


def test_a_busy_gpu_hides_the_hosts_time() -> None:
    (finding,) = look(serving(nodes=2000.0))
    assert finding.share_pct == 0
    (finding,) = look(replace(serving(nodes=2000.0), work=work(0.5)))
    assert finding.share_pct == 10


def test_in_a_trace_alone_the_source_or_nothing_places_it() -> None:
    made = replace(serving(), kind="trace", capture=None, steps=(), memory=MemoryUse())
    (finding,) = look(made)
    assert finding.confidence == "medium"
    assert finding.place == f"{FILE}:6"
    (finding,) = look(replace(made, run=None))
    assert finding.place == ""


DISTILS = """\
import torch

for x in loader:
    soft = teacher(x).softmax(-1)
    loss = kl_div(student(x), soft)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
ACCUMULATES = "torch::autograd::AccumulateGrad"
TEACHERS, STUDENTS = [768, 128], [192, 128]


def site(op: str, phase: SitePhase, *dims: list[int], ms: float = 0.0, **more: Any) -> OpSite:
    return OpSite(op=op, phase=phase, dims=dims, host_ns=ms * 1e6, calls=1.0, **more)


def weight(shape: list[int], module: str, ms: float, *, added: bool) -> list[OpSite]:
    """A linear layer's forward and backward, and what becomes of its weight's gradient."""
    found = [
        site("aten::t", "forward", shape, module=module),
        site("aten::mm", "backward", shape, shape, ms=ms, module=module),
        site(ACCUMULATES, "backward", shape),
    ]
    if added:
        found.append(site("aten::add_", "backward", shape, shape, within=(ACCUMULATES,)))
    return found


def distilling(*more: OpSite, added: bool = True, student_added: bool = False) -> Case:
    """Steps of 100 ms, of which the backward takes 60: nine tenths of it the teacher's."""
    ops = [
        *weight(TEACHERS, "Teacher_0 / Linear_0", 54.0, added=added),
        *weight(STUDENTS, "Student_0 / Linear_1", 6.0, added=student_added),
        site("aten::lerp_", "optimizer", STUDENTS, STUDENTS),
        *more,
    ]
    modules = (
        ModuleSeen(name="Teacher", calls=46, parameters=99_000, place=f"{FILE}:4"),
        ModuleSeen(name="Student", calls=46, parameters=25_000, place=f"{FILE}:5"),
    )
    made = case(DISTILS, gpu=False, sites=Sites(ops=tuple(ops), shapes=True))
    assert made.traced_memory is not None
    memory = replace(made.traced_memory, forward_bytes=1.0 * MIB)
    return replace(made, capture=capture(modules=modules), traced_memory=memory)


def test_a_teacher_called_with_gradients_on() -> None:
    (finding,) = look(distilling())
    assert "goes through Teacher, whose weights no optimizer updates" in finding.claim
    assert finding.place == f"{FILE}:4"
    assert finding.share_pct == 54
    assert finding.gain_bound >= 1 / (1 - 0.6)
    assert finding.confidence == "medium"
    assert finding.change.startswith("teacher.requires_grad_(False)")


def test_a_model_that_is_updated_is_no_teacher() -> None:
    assert not [*look(distilling(added=False))]
    # gradients of all are added to: accumulation, or zero_grad(set_to_none=False)
    assert not [*look(distilling(student_added=True))]
    # by the optimizer, in a list of tensors; or by hand
    for phase in ("optimizer", "other"):
        assert not [*look(distilling(site("aten::_foreach_add_", phase, [STUDENTS, TEACHERS])))]  # type: ignore[list-item]


def test_a_teacher_is_not_told_where_optimizers_take_turns() -> None:
    made = distilling()
    two = capture(optimizers=(*capture().optimizers, OptimizerSeen(name="Adam", steps=9)))
    assert not [*look(replace(made, capture=two))]


def test_silent_without_nodes() -> None:
    assert not list(look(serving(nodes=0.0)))


def test_silent_where_a_backward_or_an_optimizer_was_seen() -> None:
    assert not list(look(case()))
    assert not list(look(replace(serving(), capture=capture())))
    trained = (Step(index=0, start_ns=0, dur_ns=1, backwards=1),)
    assert not list(look(replace(serving(), steps=trained)))


def test_silent_where_it_costs_next_to_nothing() -> None:
    made = serving(nodes=3.0, gpu=False)
    assert made.traced_memory is not None
    small = replace(made.traced_memory, forward_bytes=1.0 * MIB)
    assert not list(look(replace(made, traced_memory=small, memory=MemoryUse(host_peak_bytes=GIB))))
