"""A run's JSON and Markdown: what scripts and reviewers read."""

import json
import math

import msgspec
import pytest

from ridgeline.report.run_document import document
from ridgeline.report.run_markdown import markdown
from tests.unit.report import made_up_run as made
from tests.unit.report.made_up_trace import NASTY

replace = msgspec.structs.replace
KEYS = {
    "schema", "verdict", "because", "step", "throughput", "mfu", "flops", "memory", "energy",
    "telemetry", "run_dir", "name", "command", "status", "losses", "sync_points", "recompiles",
    "graph_breaks", "python", "missing", "problems", "next",
}  # fmt: skip


def test_the_document_has_what_scripts_read() -> None:
    found = document(made.summary())
    assert found["verdict"] == "input-bound"
    assert found["because"]["numbers"][0] == {
        "what": "input wait", "value": 0.61, "text": "61 % of the step", "source": "measured",
    }  # fmt: skip
    assert found["because"]["place"] == "data.py:41"
    assert found["step"]["median_ms"] == 152.1
    assert found["step"]["ci"] == [149.3, 155.2]
    assert found["step"]["phases"]["input"]["share"] == pytest.approx(93 / made.MEAN)
    assert found["throughput"]["samples_s"] == 210.3
    assert found["mfu"] == 0.11
    assert found["flops"]["ceiling_name"] == "bfloat16, datasheet"
    assert found["memory"]["device_peak_bytes"] == 8_482_560_410
    assert found["energy"]["joules_per_step"] == 41.2
    assert found["losses"] == {"first": 6.931, "last": 2.204}
    assert found["run_dir"] == ".ridgeline/runs/1115-010203-train"


@pytest.mark.parametrize("summary", [made.summary(), made.nothing()], ids=["whole", "nothing"])
def test_every_key_is_in_every_document(summary: object) -> None:
    assert isinstance(summary, type(made.nothing()))
    found = document(summary)
    assert found.keys() >= KEYS
    assert found["step"].keys() == document(made.summary())["step"].keys()
    assert found["memory"].keys() == document(made.summary())["memory"].keys()


def test_what_is_not_known_is_null_not_zero() -> None:
    found = document(made.nothing())
    assert found["mfu"] is None
    assert found["step"]["median_ms"] is None
    assert found["flops"]["per_s"] is None
    assert found["losses"] is None
    assert found["python"] is None


def test_a_loss_that_is_no_number_does_not_break_strict_json() -> None:
    found = document(replace(made.summary(), losses=(2.0, math.nan)))
    assert json.loads(json.dumps(found, allow_nan=False))["losses"] == {"first": 2.0, "last": None}


def test_the_python_view_is_in_the_document_whole() -> None:
    found = document(replace(made.summary(), python=made.python()))
    assert found["python"]["lines"][0]["function"] == "decode"


def test_markdown_has_the_sentence_the_phases_and_the_commands() -> None:
    text = markdown(replace(made.summary(), python=made.python()))
    assert text.startswith("### input-bound: the GPU waits 61 % of each step for data\n")
    assert "| input | 93 | [90.2, 95.8] | 61 % |" in text
    assert "image.resize" in text
    assert "`ridgeline run --python examples/train.py --epochs 1`" in text
    assert "\n\n\n" not in text


@pytest.mark.parametrize("nasty", NASTY)
def test_words_from_outside_stay_words_in_markdown(nasty: str) -> None:
    summary = replace(
        made.summary(), command=nasty, device=nasty, run_dir=nasty, missing=(nasty,), next=(nasty,)
    )
    text = markdown(summary)
    assert "\x1b" not in text
    assert "\u202e" not in text
    outside = [line for line in text.splitlines() if "`" not in line]
    assert not any("<script>" in line for line in outside)
