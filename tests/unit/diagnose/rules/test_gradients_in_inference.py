"""Autograd nodes in a program that never trains."""

from typing import Any

from msgspec.structs import replace

from ridgeline.diagnose.case import Case
from ridgeline.diagnose.rules.gradients_in_inference import look
from ridgeline.records.run_summary import MemoryUse
from ridgeline.records.step import Step
from tests.unit.diagnose.made_up_verdict import work
from tests.unit.diagnose.rules.made_up_memory import FILE, GIB, MIB, capture, case

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
    assert finding.change == "with torch.inference_mode():\n    scores = model(batch)"


def test_on_a_cpu_each_node_costs_host_time() -> None:
    (finding,) = look(serving(nodes=2000.0, gpu=False))
    assert finding.share_pct == 10  # 2,000 nodes of 5 µs, of 100 ms
    assert finding.gain_bound > 1.1


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
