"""Evidence in one line each: the constructor's name says where the fact comes from."""

from ridgeline import units
from ridgeline.diagnosis.case import Case
from ridgeline.records.finding import Evidence


def measured(what: str, text: str, value: float | None = None) -> Evidence:
    return Evidence(what=what, text=text, value=value)


def derived(what: str, text: str, value: float | None = None) -> Evidence:
    return Evidence(what=what, text=text, value=value, source="derived")


def read(what: str, text: str, value: float | None = None) -> Evidence:
    """Return a fact from the program's source or from its settings."""
    return Evidence(what=what, text=text, value=value, source="read")


def of_step(what: str, share: float) -> Evidence:
    return measured(what, f"{units.percent(share)} of the step", share)


def seconds_of_step(case: Case, what: str, share: float) -> Evidence:
    seconds = units.seconds(share * case.step_ms / 1e3)
    return derived(what, f"{seconds}, {units.percent(share)} of the step", share)


def work_time(case: Case, what: str, ns: float) -> Evidence:
    """Return operator time of a traced step as milliseconds of the untraced step."""
    return measured(what, f"{units.seconds(case.work_s(ns))} a step", 1e3 * case.work_s(ns))
