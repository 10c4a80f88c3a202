"""The code of a finding is made from the edits of its fix."""

import pytest
from msgspec.structs import replace

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rules._user_code import fix_code, inference_mode, option
from ridgeline.fixes.fix import find_fix
from ridgeline.records.run import Capture, ModuleSeen
from ridgeline.records.trace import Place
from ridgeline.source.editing import patched
from ridgeline.source.file import SourceFiles

FILE = "train.py"
TEXT = """\
import torch
from torch.utils.data import DataLoader

loader = DataLoader(
    data,
    batch_size=32,
)
optimizer = torch.optim.AdamW(model.parameters())
for batch in loader:
    optimizer.zero_grad(set_to_none=False)
"""
CASE = Case(sources=SourceFiles(texts={FILE: TEXT}))


def line(number: int) -> Place:
    return Place(file=FILE, line=number)


def test_a_changed_line_stands_below_the_line_before() -> None:
    fix = option("set-to-none", line(10), "zero_grad", "set_to_none", True)
    assert fix_code(CASE, line(10), fix) == (
        "# before: optimizer.zero_grad(set_to_none=False)\noptimizer.zero_grad(set_to_none=True)"
    )


def test_a_line_that_is_not_the_findings_own_is_named() -> None:
    fix = option("fused-optimizer", line(8), "AdamW", "fused", True)
    assert fix_code(CASE, line(10), fix) == (
        "# train.py:8, before: optimizer = torch.optim.AdamW(model.parameters())\n"
        "optimizer = torch.optim.AdamW(model.parameters(), fused=True)"
    )


def test_a_call_over_several_lines_is_shown_whole() -> None:
    fix = option("pin-memory", line(4), "DataLoader", "pin_memory", True)
    code = fix_code(CASE, line(4), fix)
    assert code.startswith("loader = DataLoader(\n    data,\n")
    assert "pin_memory=True" in code
    assert "ridgeline:" not in code  # a patch has comments that say why


def test_several_fixes_change_one_line_together() -> None:
    workers = option("loader-workers", line(4), "DataLoader", "num_workers", 8)
    kept = option("persistent-workers", line(4), "DataLoader", "persistent_workers", True)
    code = fix_code(CASE, None, workers, kept)
    assert code.count("DataLoader(") == 1
    assert "num_workers=8" in code
    assert "persistent_workers=True" in code


def test_an_edit_that_cannot_be_made_gives_no_code() -> None:
    unknown = option("pin-memory", line(9), "DataLoader", "pin_memory", True)
    assert not fix_code(CASE, None, unknown)
    elsewhere = option(
        "pin-memory", Place(file="gone.py", line=1), "DataLoader", "pin_memory", True
    )
    assert not fix_code(CASE, None, elsewhere)
    called = ModuleSeen(name="Net", parameters=1, place=f"{FILE}:10")  # that line calls no model
    case = replace(CASE, capture=Capture(modules=(called,)))
    assert not fix_code(case, None, *inference_mode(case))


def test_code_and_patch_have_the_same_lines() -> None:
    fix = option("fused-optimizer", line(8), "AdamW", "fused", True)
    edits = find_fix("fused-optimizer").source_edits(fix, lambda file: TEXT)
    text = patched(FILE, TEXT.encode(), edits).text
    assert fix_code(CASE, line(8), fix).splitlines()[1] in text


@pytest.mark.parametrize(
    ("rule", "fix"),
    [
        ("loader-starves", "loader-workers"), ("few-workers", "loader-workers"),
        ("many-workers", "loader-workers"), ("workers-restart", "persistent-workers"),
        ("unpinned-memory", "pin-memory"), ("pageable-copy", "pin-memory"),
        ("tf32-off", "tf32"), ("autocast-missing", "autocast"),
        ("autocast-missing", "autocast-fp16"), ("unfused-optimizer", "fused-optimizer"),
        ("unfused-optimizer", "foreach-optimizer"), ("zero-grad-fill", "set-to-none"),
        ("gradients-in-inference", "inference-mode"), ("layout-transposes", "channels-last"),
        ("cuda-graph-candidate", "compile-reduce-overhead"), ("small-kernels", "compile"),
        ("fusable-chain", "compile"), ("recompiles", "compile-dynamic"),
        ("activation-peak", "checkpointing"), ("huge-logits", "chunked-cross-entropy"),
        ("fragmentation", "expandable-segments"), ("affinity", "affinity"),
        ("oversubscribed-cpu", "threads"),
    ],
)  # fmt: skip
def test_the_fix_of_a_finding_answers_its_rule(rule: str, fix: str) -> None:
    assert rule in find_fix(fix).fix.answers
