"""Evidence goes through a file into another process, and judges there as it would have here."""

import subprocess
import sys
from collections import namedtuple
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from verdict_on import SEED, workload

from ridgeline.equality.calls.collection import collect, load_evidence, save_evidence
from ridgeline.equality.calls.examine import examine
from ridgeline.equality.calls.outputs import outputs_of, put_together

JUDGE = """
import sys
from pathlib import Path
from ridgeline.equality.calls.collection import load_evidence
from ridgeline.equality.calls.examine import examine
ours, theirs = (load_evidence(Path(p)) for p in sys.argv[1:3])
results, guards = examine(ours, theirs, check=lambda a, b: bool((a.logits == b.logits).all()))
print(results.status, results.strength, results.method, sum(g.outcome == "failed" for g in guards))
"""

Row = namedtuple("Row", ["left", "right"])


@dataclass
class Out:
    logits: Tensor
    row: Row


def test_evidence_with_the_users_classes_is_read_where_they_do_not_exist(tmp_path: Path) -> None:
    torch.manual_seed(0)
    head, x = nn.Linear(8, 4), torch.randn(16, 8)

    def call() -> Out:
        return Out(head(x), Row(1, "two"))

    for name, as_baseline in (("ours", True), ("theirs", False)):
        evidence = collect(workload(call), seed=SEED, as_baseline=as_baseline)
        save_evidence(evidence, tmp_path / name)
    files = [str(tmp_path / "ours"), str(tmp_path / "theirs")]
    done = subprocess.run(
        [sys.executable, "-c", JUDGE, *files], capture_output=True, text=True, timeout=300
    )
    assert done.stdout.strip() == "bit-identical strong its own check 0", done.stderr


def test_what_is_read_back_judges_as_what_was_written(tmp_path: Path) -> None:
    x = torch.randn(64, 64)
    ours = collect(workload(lambda: x @ x), seed=SEED, as_baseline=True)
    theirs = collect(workload(lambda: (x.t() @ x.t()).t()), seed=SEED, as_baseline=False)
    here, _ = examine(ours, theirs)
    save_evidence(ours, tmp_path / "ours")
    there, _ = examine(load_evidence(tmp_path / "ours"), theirs)
    assert here == there


def test_outputs_come_together_again_as_they_were() -> None:
    value = {"a": [torch.ones(2), (1, 2.5)], "row": Row(torch.zeros(1), None), 3: "text"}
    again = put_together(outputs_of(value))
    assert torch.equal(again["a"][0], torch.ones(2))
    assert again["a"][1] == (1, 2.5)
    assert torch.equal(again["row"].left, torch.zeros(1))
    assert again["row"].right is None
    assert again[3] == "'text'"


def test_later_changes_do_not_reach_what_was_copied() -> None:
    x = torch.ones(3)
    outputs = outputs_of(x)
    x.zero_()
    assert outputs.leaves[0].values is not None
    assert outputs.leaves[0].values.tolist() == [1, 1, 1]
