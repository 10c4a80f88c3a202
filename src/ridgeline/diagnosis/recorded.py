"""Whether enough was recorded to judge a program by; where not, the sentence that says so."""

from ridgeline import units
from ridgeline.diagnosis.case import Case
from ridgeline.trace.verdict import on_gpus

LITTLE = 0.01
"""Of the window in operators: four aten::empty in a second are no program."""


def not_recorded(case: Case) -> str:
    """Of a trace alone, what it lacks to say anything of the device; "" where it can be judged."""
    study = case.study
    if case.kind != "trace" or study is None or case.on_gpu:
        return ""
    if told := on_gpus(study.ops, study.backend):
        return (
            "only the host was recorded (activities without CUDA), though the program uses GPUs "
            f"({told})"
        )
    worked = sum(row.host_self_ns for row in study.ops)
    if worked >= LITTLE * study.window.ns:
        return ""
    calls = sum(row.count for row in study.ops)
    window = units.seconds(study.window.ns / 1e9)
    if not calls:
        return f"no operator was recorded in {window}"
    time = units.seconds(worked / 1e9)
    return f"little was recorded: {units.plural(calls, 'operator')}, {time} of {window}"
