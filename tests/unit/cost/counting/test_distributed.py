"""Models spread over ranks: counted as this rank runs them, and named so."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch.distributed

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available(), reason="torch built without distributed"
)

FIRST, SECOND = 8 * 32 * 64, 8 * 64 * 16
FORWARD, BACKWARD = FIRST + SECOND, FIRST + 2 * SECOND
WEIGHTS = 4 * (32 * 64 + 64 + 64 * 16 + 16)


@pytest.fixture(scope="module")
def found() -> Any:
    """Process groups are global: a process of its own for them."""
    script = Path(__file__).with_name("distributed_counts.py")
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_each_of_four_tensor_parallel_ranks_does_a_quarter(found: Any) -> None:
    one = found["tensor parallel, real"]
    assert one["forward"] == FORWARD // 4
    assert one["backward"] == BACKWARD // 4
    assert one["coverage"] == 100.0


def test_the_scope_of_the_count_is_named_with_the_total_over_all_ranks(found: Any) -> None:
    (note,) = found["tensor parallel, real"]["notes"]
    assert note.startswith("counted per rank")
    assert f"{2 * FORWARD:.4g} FLOPs" in note


def test_a_first_count_is_the_same(found: Any) -> None:
    first, later = found["tensor parallel, auto"], found["tensor parallel, real"]
    assert (first["forward"], first["backward"]) == (later["forward"], later["backward"])


def test_a_sharded_rank_computes_its_whole_batch(found: Any) -> None:
    one = found["sharded, real"]
    assert (one["forward"], one["backward"]) == (FORWARD, BACKWARD)
    assert one["broken"] == ""


def test_a_sharded_model_survives_being_counted(found: Any) -> None:
    one = found["sharded, auto"]
    assert one["broken"] == ""
    assert (one["forward"], one["backward"]) == (FORWARD, BACKWARD)
    assert any("real pass" in note for note in one["notes"])


@pytest.mark.parametrize("kind", ["tensor parallel, real", "sharded, real"])
def test_weights_take_this_ranks_share_of_memory(found: Any, kind: str) -> None:
    # the row-parallel layer's bias is whole on every rank
    assert found[kind]["parameters_bytes"] <= WEIGHTS // 4 + 64
