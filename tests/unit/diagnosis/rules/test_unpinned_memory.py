"""unpinned-memory: the loader's option, where copies from its batches hold the step up."""

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rules.copies import pageable_copy
from ridgeline.diagnosis.rules.copies import unpinned_memory as look
from ridgeline.records.sites import CopySite, Sites
from ridgeline.records.trace import Place
from ridgeline.source.file import SourceFiles
from tests.unit.diagnosis.rules.made_up_input import FILE, LOADER, MS, SOURCE, case


def copied(
    ms: float, *, pageable: bool = True, line: str = "batch.to(device)", pinned: bool = False
) -> Case:
    copy = CopySite(
        direction="to device", pageable=pageable, op="aten::to", copies=1.0, bytes=64e6,
        place=Place(file=FILE, line=1, function="<module>"), device_ns=ms * MS,
        exposed_ns=ms * MS, host_ns=ms * MS, via=("to",),
    )  # fmt: skip
    text = SOURCE.replace("WORKERS", "4").replace("    pass", f"    batch = {line}")
    return case(
        0.0, gpu=True, workers=4, pinned=pinned, sites=Sites(copies=(copy,), stacks=True),
        sources=SourceFiles(texts={FILE: text}),
    )  # fmt: skip


def test_the_loader_is_named_where_only_its_option_is_missing() -> None:
    (finding,) = look(copied(20.0, line="batch.to(device, non_blocking=True)"))
    assert finding.claim.startswith("The loader's batches are not pinned: copying 61 MiB a step")
    assert finding.place == f"{FILE}:{LOADER}"
    assert finding.confidence == "high"
    assert 15 < finding.share_pct <= 20.0
    assert "pin_memory=True" in finding.change
    assert "batch =" not in finding.change


def test_a_copy_that_is_waited_for_anyway_is_left_to_pageable_copy() -> None:
    made = copied(20.0)
    assert not [*look(made)]
    (finding,) = pageable_copy(made)
    assert finding.change.splitlines()[:2] == [
        f"# {FILE}:{LOADER}, before: loader = DataLoader(Records(), 32, num_workers=4, "
        "worker_init_fn=prepare)",
        "loader = DataLoader(Records(), 32, num_workers=4, worker_init_fn=prepare, "
        "pin_memory=True)",
    ]
    assert finding.change.endswith("batch = batch.to(device, non_blocking=True)")


def test_a_copy_that_only_lacks_the_option_is_told_once() -> None:
    made = copied(20.0, line="batch.to(device, non_blocking=True)")
    assert not [*pageable_copy(made)]


def test_pinned_copies_and_a_loader_that_pins_are_silent() -> None:
    assert not [*look(copied(20.0, pageable=False))]
    assert not [*look(copied(20.0, pinned=True))]


def test_copies_that_hold_nothing_up_are_silent() -> None:
    assert not [*look(copied(0.5))]
