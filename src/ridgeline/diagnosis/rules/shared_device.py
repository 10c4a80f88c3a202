"""Another program works on the same GPU.

On a CPU others come and go within a second: there the verdict says that they were there and that
its times are in doubt, and no finding is made.
"""

from collections.abc import Iterator

from ridgeline import units
from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.machine_use import timed
from ridgeline.diagnosis.rule import Rule, make_finding, measured
from ridgeline.records.finding import Finding

MIN_OTHER_USE = 0.15
"""The driver's use of the GPU above this program's own. Less is how the driver samples."""
FULL_GPU_SHARE = 0.9
MIN_SLOWED_SHARE = 0.15
"""Share of kernel time beyond what each kernel takes at best. Caches and clocks alone make up a
tenth."""
MIN_SHARED_LOOKS = 0.5
"""Share of the looks with another process. One that came and went is not what the steps are."""
MIN_KERNEL_CALLS = 6
RULE = Rule(id="shared-device", family="machine", budget="work", needs=("telemetry", "gpu"))


def look(case: Case) -> Iterator[Finding]:
    looks = [device for sample in timed(case) for device in sample.devices]
    others = [device.others for device in looks if device.others]
    if not looks or len(others) < MIN_SHARED_LOOKS * len(looks):
        return
    count, use = max(others), case.telemetered.gpu_utilisation or 0.0
    busy = case.busy
    known = busy is not None and busy < FULL_GPU_SHARE
    if busy is not None and known:
        # The rest of the driver's use is theirs, and while theirs run ours may not.
        share = use - busy
        how = f"in use {units.percent(use)}, {units.percent(busy)} of it by this program"
    else:
        share = _slowed(case)
        how = f"kernels take {units.percent(share / (1 - share))} longer than at their best"
    if share < (MIN_OTHER_USE if known else MIN_SLOWED_SHARE):
        return
    noun = "program works" if count == 1 else "programs work"
    yield make_finding(
        RULE,
        claim=f"{count} other {noun} on the same GPU",
        share=min(share, count / (count + 1)),
        confidence="medium" if known else "low",
        evidence=[
            measured("other processes on the GPU", str(count), count),
            measured("the GPU", how, use),
        ],
        change="nvidia-smi   # who else is there\nCUDA_VISIBLE_DEVICES=<another> python …",
        doubt="the other process may only hold memory",
    )


def _slowed(case: Case) -> float:
    """Return the share of kernel time beyond what each kernel takes at its best. Kernels of one
    name and several sizes count too, hence the low confidence."""
    rows = [row for row in case.kernels if row.count >= MIN_KERNEL_CALLS]

    total = sum(row.total_ns for row in rows)
    best = sum(row.count * row.least_ns for row in rows)
    return 1 - best / total if total else 0.0
