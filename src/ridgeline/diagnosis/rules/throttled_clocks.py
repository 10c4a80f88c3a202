"""The GPU's clocks are held down while it works."""

from collections.abc import Iterator
from statistics import fmean

from ridgeline import units
from ridgeline.diagnosis.case import SATURATED, Case
from ridgeline.diagnosis.machine_use import at_work, timed
from ridgeline.diagnosis.rule import Rule, make_finding, measured
from ridgeline.records.finding import Evidence, Finding
from ridgeline.records.run import DeviceSample

MIN_USE_PERCENT = 50
"""Use of a GPU from which it is at work. Below it, clocks may be low because there is little to do.
"""
MIN_HELD_SHARE = 0.3
"""Share of the looks at work with a reason. Less is a moment, not the state of the machine."""
MIN_SHARE = 0.02
"""Share of the step. Boost clocks wander by a percent or two on their own."""
MIN_ARITHMETIC_SHARE = 0.3
"""Share of the step in arithmetic from which a power limit is to be expected."""
MIN_POWER_SHARE = 0.05
"""Share of the step that a power limit must cost. Dense products at full load draw more than any
data-centre GPU's limit allows at its highest clock."""

RULE = Rule(id="throttled-clocks", family="machine", budget="work", needs=("gpu", "telemetry"))


def look(case: Case) -> Iterator[Finding]:
    looks = _at_work(case)
    held = [look_ for look_ in looks if _reasons(look_)]
    if not looks or len(held) < MIN_HELD_SHARE * len(looks):
        return
    clocks = [(d.sm_mhz, d.sm_max_mhz) for d in looks if d.sm_mhz and d.sm_max_mhz]
    if not clocks:
        return
    lost = 1 - fmean(now / most for now, most in clocks)
    reasons = _named(held)
    capped = set(reasons) == {"power cap"}
    busy = case.busy if case.busy is not None else fmean(_use(d) for d in looks)
    share = max(lost, 0.0) * min(busy, 1.0)
    if share < MIN_SHARE or (capped and (share < MIN_POWER_SHARE or _expected(case, looks))):
        return
    now, most = fmean(c[0] for c in clocks), max(c[1] for c in clocks)
    yield make_finding(
        RULE,
        claim=f"the GPU runs at {now:.0f} of {most} MHz while it works: {' and '.join(reasons)}",
        share=share,
        confidence="low" if capped else "medium",
        evidence=_evidence(looks, held, now, most, lost),
        change=_change(reasons),
        doubt="a power limit at full load is how the card is meant to run" if capped
        else "kernels that wait for memory do not slow with this clock",
    )  # fmt: skip


def _at_work(case: Case) -> list[DeviceSample]:
    held = timed(case)
    if not held:
        return []
    ours = at_work(case.telemetry, held[0].at_ns, held[-1].at_ns, True)
    devices = [d for sample in held for d in sample.devices if d.index in ours]
    return [d for d in devices if _use(d) * 100 >= MIN_USE_PERCENT]


def _use(device: DeviceSample) -> float:
    return (device.utilisation_percent or 0) / 100


def _reasons(device: DeviceSample) -> list[str]:
    """Return the reasons without "idle": an idle device is not held down."""
    return [reason for reason in device.throttle if reason != "idle"]


def _named(held: list[DeviceSample]) -> list[str]:
    """Return the reasons, the most frequent first, without rare ones beside others."""
    names = [reason for device in held for reason in _reasons(device)]
    order = sorted(set(names), key=lambda name: (-names.count(name), name))
    return [name for name in order if names.count(name) >= MIN_HELD_SHARE * len(held)] or order[:1]


def _expected(case: Case, looks: list[DeviceSample]) -> bool:
    """Return whether a power limit is what such a load meets: a GPU full of work, arithmetic above
    all, or one that others heat as well."""
    full = (case.busy or 0.0) >= SATURATED or case.share_of("compute") >= MIN_ARITHMETIC_SHARE
    return full or any(device.others for device in looks)


def _evidence(
    looks: list[DeviceSample], held: list[DeviceSample], now: float, most: int, lost: float
) -> list[Evidence]:
    text = f"{now:.0f} MHz of {most}, {units.percent(lost)} below"
    number = f"in {len(held)} of {units.plural(len(looks), 'look')} at work"
    facts = [
        measured("clock while at work", text, now),
        measured("held down", number, len(held) / len(looks)),
    ]
    powers = [d.power_w for d in looks if d.power_w is not None]
    limits = [d.power_limit_w for d in looks if d.power_limit_w]
    if powers:
        limit = f" of {max(limits):.0f}" if limits else ""
        facts.append(measured("power", f"{fmean(powers):.0f}{limit} W"))
    heat = [d.temperature_c for d in looks if d.temperature_c is not None]
    if heat:
        facts.append(measured("temperature", f"up to {max(heat)} °C", max(heat)))
    return facts


def _change(reasons: list[str]) -> str:
    ask = "nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER,CLOCK"
    if any("clock" in reason for reason in reasons):
        return f"{ask}\nsudo nvidia-smi -rgc && sudo nvidia-smi -rac   # clocks that were locked"
    if "power cap" in reasons:
        return f"{ask}\nsudo nvidia-smi -pl <watts>   # up to the card's own limit"
    return f"{ask}   # heat or supply: mend the machine, not the program"
