"""The first lines of a trace's report: the verdict, what it is over, and the split of the time."""

from typing import Literal

from msgspec import Struct

from ridgeline import units
from ridgeline.records.trace import TraceStudy
from ridgeline.records.trust import Check, Confidence, Trust
from ridgeline.report.plain import printable
from ridgeline.report.trace_grid import time
from ridgeline.report.trace_rank_sections import device_names

_WORST: tuple[Confidence, ...] = ("good", "doubtful", "unreliable")


class Whole(Struct, frozen=True, kw_only=True):
    """All devices that can be believed together; None where none can."""

    window_ns: int
    busy_ns: int | None
    idle_ns: int | None
    confidence: Confidence = "good"
    why: str = ""

    def part(self, ns: int | None) -> float | None:
        return None if ns is None or self.window_ns <= 0 else ns / self.window_ns


class Part(Struct, frozen=True):
    """One piece of the window: busy, or idle for a cause."""

    name: str
    ns: int
    kind: Literal["busy", "idle"]


def together(study: TraceStudy) -> Whole:
    if not study.devices:
        why = "there is no device work in this trace"
        return Whole(window_ns=0, busy_ns=None, idle_ns=None, confidence="unreliable", why=why)
    known = [d for d in study.devices if d.busy_ns is not None and d.idle_ns is not None]
    if not known or study.idle.total_ns is None:
        why = study.devices[0].trust.why or study.idle.trust.why
        why = why or "the device's time could not be told"
        window = sum(d.window.ns for d in study.devices)
        return Whole(window_ns=window, busy_ns=None, idle_ns=None, confidence="unreliable", why=why)
    worst = max((d.trust for d in known), key=lambda t: _WORST.index(t.confidence))
    if len(known) < len(study.devices):
        left = len(study.devices) - len(known)
        worst = Trust(confidence="doubtful", why=f"{left} of {len(study.devices)} devices left out")
    return Whole(
        window_ns=sum(d.window.ns for d in known),
        busy_ns=sum(d.busy_ns or 0 for d in known),
        idle_ns=sum(d.idle_ns or 0 for d in known),
        confidence=worst.confidence,
        why=worst.why,
    )


def parts(study: TraceStudy) -> tuple[Part, ...]:
    """Busy first, then idle by cause, the largest first; empty where it cannot be believed."""
    whole = together(study)
    if whole.busy_ns is None or whole.idle_ns is None:
        return ()
    found = [Part("busy", whole.busy_ns, "busy")]
    found += [Part(c.cause, c.ns, "idle") for c in study.idle.causes if c.ns > 0]
    left = whole.idle_ns - sum(c.ns for c in study.idle.causes)
    if left > 0:
        found.append(Part("idle" if not study.idle.causes else "not explained", left, "idle"))
    return tuple(found)


def verdict(study: TraceStudy) -> str:
    """Return the verdict, marked if a check makes it doubtful (the warnings say why)."""
    if study.verdict:
        mark = "doubtful: " if study.trust.confidence == "doubtful" else ""
        return mark + printable(study.verdict)
    whole = together(study)
    idle = whole.part(whole.idle_ns)
    return printable(whole.why) if idle is None else f"the device is idle {units.percent(idle)}"


def about(study: TraceStudy) -> tuple[str, ...]:
    """What was looked at: the file, the window and what chose it."""
    w = study.window
    found = [study.label, f"window {time(w.ns)}, {w.basis}"]
    if w.steps and "step" not in w.basis:
        found.append(units.plural(w.steps, "step"))
    found.append(device_names(study))
    found.append(units.plural(study.events, "event"))
    if len(study.files) > 1:
        found.append(units.plural(len(study.files), "file"))
    if study.torch:
        found.append(f"torch {study.torch}")
    return tuple(printable(text) for text in found if text)


def loud(study: TraceStudy) -> tuple[Check, ...]:
    """Checks that make a number wrong or doubtful, errors first."""
    order = {"error": 0, "warning": 1, "note": 2}
    told = [c for c in study.validation if c.severity != "note"]
    return tuple(sorted(told, key=lambda c: order[c.severity]))


def quiet(study: TraceStudy) -> tuple[Check, ...]:
    return tuple(c for c in study.validation if c.severity == "note")


def said(check: Check) -> str:
    """The claim, and what it makes doubtful."""
    claim = printable(check.claim)
    return f"{claim} (touches: {', '.join(check.affects)})" if check.affects else claim
