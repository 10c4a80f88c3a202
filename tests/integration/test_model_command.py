"""`ridgeline model` as a person types it: what it prints is true, and goes where it should."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from tests.integration.cold_and_warm import Outcome, Warm, cold

QUICK = ("--budget", "100ms", "-q")
MLP_FORWARD = 8 * (32 * 64 + 64 * 10)
MLP_FIRST = 8 * 32 * 64
MLP_PARAMETERS = 32 * 64 + 64 + 64 * 10 + 10

PROMISED = (
    "parameters", "trainable_parameters", "macs", "flops", "coverage", "bytes", "intensity",
    "memory", "latency", "bottleneck", "modules", "unformulated",
)  # fmt: skip


def document(warm: Warm, folder: Path, *arguments: str) -> Any:
    done = warm(["model", *arguments, "--json", *QUICK], folder)
    assert done.code == 0, done.err
    return done.document


@pytest.fixture(scope="module")
def mlp(_one_cache: None, nets: Path) -> Outcome:
    """The one run that starts from nothing."""
    return cold(["model", "net.py:mlp", "--input", "8x32", "--json", *QUICK], nets)


@pytest.fixture(scope="module")
def trained(warm: Warm, nets: Path) -> Any:
    return document(
        warm, nets, "net.py:mlp", "--input", "8x32", "--train", "--optimizer", "adam", "--measure"
    )


def test_json_holds_every_promised_key(mlp: Outcome) -> None:
    assert mlp.code == 0, mlp.err
    found = mlp.document
    assert [key for key in PROMISED if key not in found] == []
    assert {"forward", "backward"} <= set(found["flops"])
    memory = {f"{kind}_bytes" for kind in ("parameters", "gradients", "optimizer", "activations")}
    assert memory | {"peak_bytes"} <= set(found["memory"])
    latency = {"median_ms", "p95_ms", "ci_low_ms", "ci_high_ms", "samples"}
    assert latency <= set(found["latency"])


def test_an_mlp_is_counted_as_by_hand(mlp: Outcome) -> None:
    found = mlp.document
    assert found["parameters"] == found["trainable_parameters"] == MLP_PARAMETERS
    assert found["macs"]["forward"] == MLP_FORWARD
    assert found["flops"]["forward"] == 2 * MLP_FORWARD
    # every layer pays for its weight's gradient, all but the first for its input's
    assert found["macs"]["backward"] == 2 * MLP_FORWARD - MLP_FIRST
    assert found["coverage"] == 100.0
    assert found["unformulated"] == []
    # x, w, b → y three times over: two linears and a relu, float32
    read = 8 * 32 + (32 * 64 + 64) + 8 * 64 + 8 * 64 + (64 * 10 + 10)
    written = 8 * 64 + 8 * 64 + 8 * 10
    assert found["bytes"] == 4 * (read + written)
    assert found["intensity"] == pytest.approx(2 * MLP_FORWARD / found["bytes"])
    assert found["memory"]["parameters_bytes"] == 4 * MLP_PARAMETERS


def test_modules_carry_their_share_of_the_work(mlp: Outcome) -> None:
    modules = {m["path"]: m for m in mlp.document["modules"]}
    assert modules[""]["macs"]["forward"] == MLP_FORWARD
    assert modules["0"]["macs"]["forward"] == MLP_FIRST
    assert modules["2"]["macs"]["forward"] == MLP_FORWARD - MLP_FIRST
    assert modules["2"]["parameters"] == 650
    assert modules["1"]["type"] == "ReLU"


def test_latency_keeps_its_samples_and_an_interval_around_the_median(mlp: Outcome) -> None:
    latency = mlp.document["latency"]
    assert latency["samples"] == len(latency["samples_ms"]) > 0
    assert latency["ci_low_ms"] <= latency["median_ms"] <= latency["ci_high_ms"]
    if latency["samples"] < 100:
        assert latency["p95_ms"] is None
        assert latency["refused"]
    assert mlp.document["bottleneck"] in ("compute-bound", "memory-bound", "overhead-bound")


def test_nothing_but_the_document_is_written(mlp: Outcome) -> None:
    assert mlp.out.startswith("{")
    assert mlp.out.rstrip().endswith("}")
    assert mlp.err == ""


def test_a_cnn_brings_its_own_inputs(warm: Warm, nets: Path) -> None:
    found = document(warm, nets, "net.py:cnn", "--no-time")
    assert found["inputs"] == ["2x3x8x8:float32"]
    assert found["samples"] == 2
    assert found["macs"]["forward"] == 2 * (4 * 64 * 3 * 9 + 256 * 5)
    assert found["latency"]["median_ms"] is None
    assert found["latency"]["reason"] == "not asked for"


def test_causal_attention_is_counted_full_and_its_skipped_half_is_named(
    warm: Warm, nets: Path
) -> None:
    found = document(warm, nets, "net.py:Attention", "--input", "2x6x16", "--no-time")
    projection, square = 2 * 6 * 16 * 48, 2 * 6 * 6 * 16 * 2
    assert found["macs"]["forward"] == projection + square
    above = 2 * (6 * 5 // 2) * 16 * 2
    assert found["causal_flops"]["forward"] == 2 * (projection + square - above)


def test_training_adds_gradients_and_optimizer_state(trained: Any) -> None:
    memory = trained["memory"]
    assert trained["mode"] == memory["mode"] == "training"
    assert memory["gradients_bytes"] == 4 * MLP_PARAMETERS
    # two moments, and a float32 step count for each of the four tensors
    assert memory["optimizer_bytes"] == 8 * MLP_PARAMETERS + 4 * 4
    assert memory["optimizer"] == "adam"
    assert trained["all_flops"]["optimizer"] > 0
    assert trained["latency"]["median_ms"] > 0


def test_a_measured_peak_stands_beside_the_predicted_one(trained: Any) -> None:
    memory = trained["memory"]
    assert memory["measured_peak_bytes"] > 0
    assert memory["gap_bytes"] == memory["measured_peak_bytes"] - memory["peak_bytes"]
    assert memory["measured_by"]


def test_a_model_too_large_for_any_machine_is_counted_on_meta(warm: Warm, nets: Path) -> None:
    found = document(warm, nets, "net.py:huge", "--input", "1x1048576", "--meta")
    assert found["backend"] == "meta"
    assert found["parameters"] == found["macs"]["forward"] == 2**40
    assert found["memory"]["parameters_bytes"] == 2**42
    assert "meta" in found["latency"]["reason"]


def test_dtype_of_the_model_and_its_floating_inputs(warm: Warm, nets: Path) -> None:
    found = document(
        warm, nets, "net.py:mlp", "--input", "8x32", "--dtype", "bfloat16", "--no-time"
    )
    assert found["dtype"] == "bfloat16"
    assert found["inputs"] == ["8x32:bfloat16"]
    assert found["memory"]["parameters_bytes"] == 2 * MLP_PARAMETERS


def test_a_sweep_finds_the_law_and_checks_the_next_size(warm: Warm, nets: Path) -> None:
    found = document(
        warm, nets, "net.py:Attention", "--input", "1x4x16", "--sweep", "seq=4,8,12", "--no-time"
    )["sweep"]
    law = found["laws"]["flops"]
    # 2·16·48·n for the projection, 2·2·16·n² for the square
    assert law["form"] == "quadratic"
    assert law["exact"] is True
    assert law["coefficients"][1:] == pytest.approx([1536, 64])
    assert found["next_size"] == 16
    assert found["predicted"]["flops"] == pytest.approx(found["observed"]["flops"])
    assert found["observed"]["flops"] == 1536 * 16 + 64 * 16 * 16
    assert [p["median_ms"] for p in found["points"]] == [None, None, None]


def test_the_largest_batch_fits_and_one_more_does_not(warm: Warm, nets: Path) -> None:
    found = document(
        warm, nets, "net.py:mlp", "--input", "1x32", "--train", "--fit", "1MiB", "--no-time"
    )["fit"]
    assert found["mode"] == "training"
    assert found["next_batch"] == found["batch"] + 1
    assert found["peak_bytes"] <= 2**20 < found["next_peak_bytes"]


def test_generation_times_the_first_token_and_the_others(warm: Warm, nets: Path) -> None:
    found = document(warm, nets, "net.py:Language", "--input", "2x5:int64", "--generate", "3")[
        "generation"
    ]
    assert (found["batch"], found["prompt_tokens"], found["tokens"]) == (2, 5, 3)
    assert found["first_token_ms"] > 0
    assert found["uncached_token_ms"] > 0
    assert found["cached_token_ms"] is None
    assert found["notes"]


@pytest.mark.parametrize("other", ["--no-time", "--meta"])
def test_generation_is_not_asked_for_together_with_no_timing(
    warm: Warm, nets: Path, other: str
) -> None:
    done = warm(
        ["model", "net.py:Language", "--input", "2x5:int64", "--generate", "3", other], nets
    )
    assert done.code == 2
    assert f"--generate times tokens, and {other} times nothing" in done.err


def test_an_input_without_dtype_becomes_tokens_where_the_model_looks_it_up(
    warm: Warm, nets: Path
) -> None:
    found = document(warm, nets, "net.py:Language", "--input", "2x5", "--no-time")
    assert found["inputs"] == ["2x5:int64"]
    assert any("int64" in note for note in found["notes"])


def test_a_model_that_routes_by_value_is_counted_on_a_real_run(warm: Warm, nets: Path) -> None:
    found = document(warm, nets, "net.py:Routed", "--input", "6x4", "--no-time")
    assert found["backend"] == "real"
    assert found["macs"]["forward"] == 6 * 4 * 4
    assert any("real run" in note for note in found["notes"])


def test_what_the_model_prints_stays_off_stdout(warm: Warm, nets: Path) -> None:
    done = warm(["model", "net.py:Chatty", "--input", "2x4", "--json", *QUICK], nets)
    assert done.code == 0
    assert done.document["macs"]["forward"] == 32
    assert "BUILDING" in done.err
    assert "FORWARD" in done.err


def test_what_the_models_children_print_stays_off_stdout(warm: Warm, nets: Path) -> None:
    done = warm(["model", "net.py:Shouting", "--input", "2x4", "--json", "--no-time"], nets)
    assert "FROM A CHILD" not in done.out


def test_stdout_is_one_document_whatever_the_model_writes_there(nets: Path) -> None:
    done = cold(["model", "net.py:Unruly", "--input", "2x4", "--json", *QUICK], nets)
    assert done.code == 0, done.err
    assert done.document["macs"]["forward"] == 32
    for words in ("FROM A CHILD", "TO THE DESCRIPTOR", "AT EXIT"):
        assert words in done.err


IMAGES = "1000000x3x224x224"
"""602 GB of input."""


def test_a_batch_beyond_all_memory_is_counted(warm: Warm, nets: Path) -> None:
    found = document(warm, nets, "net.py:pooled", "--input", IMAGES, "--no-time")
    assert found["inputs"] == [f"{IMAGES}:float32"]
    assert found["macs"]["forward"] == 10**6 * (4 * 224 * 224 * 3 * 9 + 4 * 5)


def test_a_batch_beyond_all_memory_is_not_run(warm: Warm, nets: Path) -> None:
    found = document(warm, nets, "net.py:pooled", "--input", IMAGES)
    assert found["latency"]["median_ms"] is None
    assert found["latency"]["reason"].startswith("not run: inference needs ")


def test_one_size_that_fails_costs_a_sweep_one_row(warm: Warm, nets: Path) -> None:
    found = document(
        warm, nets, "bad.py:DislikesFour", "--input", "1x4", "--sweep", "batch=2,4,8", "--no-time"
    )["sweep"]
    assert [(p["size"], p["flops"]) for p in found["points"]] == [(2, 64), (8, 256)]
    assert [n for n in found["notes"] if n.startswith("batch 4: ") and "four is too many" in n]
    assert found["observed"]["flops"] == 16 * 32


def test_several_targets_stand_side_by_side(warm: Warm, nets: Path, tmp_path: Path) -> None:
    table = tmp_path / "compared.md"
    targets = ["net.py:mlp", "net.py:mlp"]
    done = warm(["model", *targets, "--input", "8x32", "--no-time", "-o", str(table)], nets)
    assert done.code == 0, done.err
    lines = table.read_text().splitlines()
    header, rule, *body = [line for line in lines if line.startswith("|")]
    assert header == "|  | A Sequential | B Sequential |"
    assert rule == "| --- | ---: | ---: |"
    assert "| FLOPs, forward | 43 kFLOP | 43 kFLOP |" in body
    assert (done.out, done.err) == ("", f"wrote {table}\n")


def test_several_targets_make_one_document(warm: Warm, nets: Path) -> None:
    found = document(warm, nets, "net.py:mlp", "net.py:mlp", "--input", "8x32", "--no-time")
    assert [m["macs"]["forward"] for m in found["models"]] == [MLP_FORWARD, MLP_FORWARD]


def test_files_are_whole_and_in_the_format_of_their_ending(
    warm: Warm, nets: Path, tmp_path: Path
) -> None:
    for ending in ("json", "csv"):
        out = tmp_path / f"out.{ending}"
        done = warm(["model", "net.py:mlp", "--input", "8x32", "--no-time", "-o", str(out)], nets)
        assert done.code == 0, done.err
    assert json.loads((tmp_path / "out.json").read_text())["parameters"] == MLP_PARAMETERS
    with (tmp_path / "out.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["figure", "Sequential"]
    assert ["parameters", str(MLP_PARAMETERS)] in rows
    assert ["macs.forward", str(MLP_FORWARD)] in rows
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.csv", "out.json"]


def test_the_terminal_view_says_the_verdict_first(warm: Warm, nets: Path) -> None:
    done = warm(["model", "net.py:mlp", "--input", "8x32", *QUICK], nets)
    assert done.code == 0, done.err
    lines = [line for line in done.out.splitlines() if line.strip()]
    assert "net.py:mlp" in lines[0]
    assert lines[1].lstrip().split(":")[0].endswith("-bound")
    assert "\x1b" not in done.out
    assert "coverage 100 %" in done.out


def test_a_package_target_is_imported_from_the_working_folder(warm: Warm, nets: Path) -> None:
    found = document(warm, nets, "net:mlp", "--input", "8x32", "--no-time")
    assert found["parameters"] == MLP_PARAMETERS
