"""Another program works on the same GPU.

On a CPU others come and go within a second: there the verdict says that they were there, and its
times are in doubt; no finding is made of it.
"""

from collections.abc import Iterator

from ridgeline import units
from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import Rule, make_finding
from ridgeline.diagnosis.rules._machine import timed
from ridgeline.records.finding import Confidence, Evidence, Finding

MORE_USE = 0.15
"""The driver's use of the GPU above this program's own: less is how the driver samples."""
FULL_GPU = 0.9
SLOWED = 0.15
"""Of kernel time beyond what each kernel takes at best: caches and clocks alone make up a tenth."""
SEEN = 0.5
"""Of the looks with another process: one that came and went is not what the steps are."""
REPEATED = 6

RULE = Rule(id="shared-device", family="machine", budget="work", needs=("telemetry", "gpu"))


def look(case: Case) -> Iterator[Finding]:
    looks = [device for sample in timed(case) for device in sample.devices]
    others = [device.others for device in looks if device.others]
    if not looks or len(others) < SEEN * len(looks):
        return
    count, use = max(others), case.telemetered.gpu_utilisation or 0.0
    busy = case.busy
    most = count / (count + 1)
    if busy is not None and busy < FULL_GPU:
        # the rest of the driver's use is theirs, and while theirs run ours may not
        share, level = min(max(use - busy, 0.0), most), "medium"
        if use - busy < MORE_USE:
            return
        how = f"in use {units.percent(use)}, {units.percent(busy)} of it by this program"
    else:
        slowed = _slowed(case)
        share, level = min(slowed, most), "low"
        if slowed < SLOWED:
            return
        how = f"kernels take {units.percent(slowed / (1 - slowed))} longer than at their best"
    confidence: Confidence = "medium" if level == "medium" else "low"
    noun = "program works" if count == 1 else "programs work"
    yield make_finding(
        RULE,
        claim=f"{count} other {noun} on the same GPU",
        share=share,
        confidence=confidence,
        evidence=[
            Evidence(what="other processes on the GPU", text=str(count), value=count),
            Evidence(what="the GPU", text=how, value=use),
        ],
        change="nvidia-smi   # who else is there\nCUDA_VISIBLE_DEVICES=<another> python …",
        doubt="the other process may only hold memory",
    )


def _slowed(case: Case) -> float:
    """Of kernel time: beyond what each kernel takes at its best. Kernels of one name and several
    sizes count too, hence the low confidence."""
    rows = [row for row in case.kernels if row.count >= REPEATED]
    total = sum(row.total_ns for row in rows)
    best = sum(row.count * row.least_ns for row in rows)
    return 1 - best / total if total else 0.0
