"""The JSON of a model report: every promised key, numbers that add up, nothing JSON cannot say."""

import json
import math
from typing import Any

import msgspec
import pytest

from ridgeline.report.views.model import SCHEMA
from ridgeline.report.views.model import model_data as document
from tests.unit.report.made_up import BACKWARD, COST, FORWARD, memory, placement, report, summary

PROMISED = [
    "parameters", "trainable_parameters", "macs.forward", "flops.forward", "flops.backward",
    "coverage", "bytes", "intensity", "memory.parameters_bytes", "memory.gradients_bytes",
    "memory.optimizer_bytes", "memory.activations_bytes", "memory.peak_bytes",
    "latency.median_ms", "latency.p95_ms", "latency.ci_low_ms", "latency.ci_high_ms",
    "latency.samples", "bottleneck", "modules", "unformulated",
]  # fmt: skip


def through_json(value: Any) -> Any:
    """As it comes out of the command: encoded by msgspec, read by a strict reader."""

    def refuse(text: str) -> None:
        raise AssertionError(f"{text} is not JSON")

    return json.loads(msgspec.json.encode(value), parse_constant=refuse)


def at(found: Any, path: str) -> Any:
    for part in path.split("."):
        found = found[part]
    return found


@pytest.mark.parametrize("path", PROMISED)
def test_every_promised_key_is_there(path: str) -> None:
    for made in (report(), report(latency=None, latency_missing="on meta", training_memory=None)):
        at(through_json(document(made)), path)


def test_the_schema_is_named_with_its_version() -> None:
    assert document(report())["schema"] == SCHEMA == "ridgeline.cost.study/1"


def test_phases_and_their_total() -> None:
    found = document(report())
    assert found["flops"] == {
        "forward": 1000, "recompute": 0, "backward": 1800, "optimizer": 0, "total": 2800,
    }  # fmt: skip
    assert found["macs"]["total"] == FORWARD.macs + BACKWARD.macs
    assert found["causal_flops"]["forward"] == 900
    assert found["bytes"] == 400
    assert found["intensity"] == 2.5


def test_parameters_are_told_apart() -> None:
    found = document(report())
    names = ("parameters", "trainable_parameters", "frozen_parameters", "tied_parameters")
    assert [found[n] for n in names] == [30, 20, 10, 5]


def test_memory_is_that_of_the_mode_and_both_modes_are_there() -> None:
    found = document(report())
    assert found["memory"]["peak_bytes"] == 248
    assert found["memory_by_mode"]["training"]["peak_bytes"] == 900
    trained = document(report(mode="training"))
    assert trained["memory"]["peak_bytes"] == 900


def test_measured_memory_comes_with_its_gap_and_method() -> None:
    found = document(report())["memory"]
    assert (found["measured_peak_bytes"], found["gap_bytes"]) == (300, 52)
    assert found["measured_by"] == "allocations"
    none = document(report(measured_peak=None))["memory"]
    assert (none["measured_peak_bytes"], none["gap_bytes"], none["measured_by"]) == (None,) * 3


def test_latency_in_milliseconds_with_its_samples_and_refusals() -> None:
    found = document(report())["latency"]
    assert (found["median_ms"], found["ci_low_ms"], found["samples"]) == (2.0, 1.8, 40)
    assert found["p95_ms"] is None
    assert found["refused"] == ["p95 needs 100 samples, there are 40"]
    assert found["samples_ms"] == [2.0, 2.0]
    assert document(report())["throughput_per_second"] == pytest.approx(2000)


def test_what_was_not_timed_says_why() -> None:
    found = document(report(latency=None, latency_missing="the model is on meta"))
    assert found["latency"]["median_ms"] is None
    assert found["latency"]["samples"] == 0
    assert found["latency"]["reason"] == "the model is on meta"
    assert found["throughput_per_second"] is None


def test_operators_are_merged_over_modules_heaviest_first() -> None:
    ops = document(report())["ops"]
    assert [(o["op"], o["phase"], o["calls"], o["flops"]) for o in ops] == [
        ("aten::mm", "forward", 3, 1000), ("my::op", "backward", 1, 0),
    ]  # fmt: skip
    assert ops[1]["formulated"] is False


def test_what_has_no_formula_is_listed_beside_the_coverage() -> None:
    found = document(report())
    assert found["coverage"] == 93.1
    assert found["unformulated"] == [{"op": "my::op", "calls": 1, "bytes": 90}]


def test_modules_have_every_phase_even_where_they_did_nothing() -> None:
    modules = {m["path"]: m for m in document(report())["modules"]}
    assert modules["a"]["flops"] == {"forward": 400, "recompute": 0, "backward": 0}
    assert modules["a"]["activation_bytes"] == 64


def test_notes_of_the_count_and_of_the_run_are_both_there() -> None:
    assert document(report())["notes"] == ["counted with care", "the machine was busy"]


def test_conventions_explain_the_words() -> None:
    assert {"macs", "flops", "all_flops", "bytes", "coverage", "scope"} <= set(
        document(report())["conventions"]
    )


def test_what_is_not_a_number_becomes_null_and_never_nan() -> None:
    from msgspec.structs import replace

    odd = replace(report().latency, summary=summary(std_ns=math.nan))
    made = report(latency=odd, placement=placement(percent_of_ceiling=math.inf))
    found = through_json(document(made))
    assert found["latency"]["std_ms"] is None
    assert found["roofline"]["percent_of_ceiling"] is None


def test_a_model_that_moves_nothing_has_no_intensity() -> None:
    from msgspec.structs import replace

    from ridgeline.records.cost import PHASES, Totals

    idle = replace(COST, phases={p: Totals() for p in PHASES})
    assert document(report(cost=idle))["intensity"] == 0.0


def test_a_document_survives_without_its_optional_parts() -> None:
    bare = report(sweep=None, fit=None, generation=None, inference_memory=memory())
    found = through_json(document(bare))
    assert (found["sweep"], found["fit"], found["generation"]) == (None, None, None)
