"""A gradient scaler that throws steps away."""

from collections.abc import Iterator, Sequence

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import Rule, make_finding
from ridgeline.diagnosis.rules._precision import At, at_call, calls, emulated
from ridgeline.records.finding import Evidence, Finding
from ridgeline.records.run import Step
from ridgeline.source.calls import SourceCall
from ridgeline.units import percent

RULE = Rule(id="loss-scale-thrash", family="precision", budget="work", needs=("capture",))
LEAST = 0.05
FEWEST = 3
FIRST = 24
"""Skips in a row a run may begin with: from the default scale of 65,536 down to 2 ** -8."""
MANY = 20
"""Steps from which on a share of them says something."""


def look(case: Case) -> Iterator[Finding]:
    every = [step for step in case.steps if step.optimizer_steps or step.skipped]
    steps = _settled(every)
    skipped = sum(step.skipped for step in steps)
    if len(steps) < MANY or skipped < FEWEST or skipped < LEAST * len(steps):
        return
    part = skipped / len(steps)
    call = next(iter(calls(case, case.sites.ops[:200], ("GradScaler",))), None)
    at = at_call(case, call) if call is not None else _stepped(case)
    lost = skipped == len(steps)
    yield make_finding(
        RULE,
        claim=f"the gradient scaler threw away {skipped} of {len(steps)} steps: their gradients "
        f"{'are infinite at any scale' if lost else 'overflow float16'}",
        share=part,
        place=at.place,
        line=at.line,
        confidence="high" if not lost else "medium",
        evidence=(
            Evidence(what="skipped steps", text=f"{skipped} of {len(steps)}, {percent(part)}",
                     value=float(skipped)),
            Evidence(what="in a row at most", text=str(_longest(steps)),
                     value=float(_longest(steps))),
            *_settings(call),
        ),
        change=_change(case, call),
        doubt="a step takes as long as before: what is gained is that each one counts",
    )  # fmt: skip


def _settled(every: Sequence[Step]) -> list[Step]:
    """Without the skips it begins with, unless they are more than a search for a scale needs."""
    first = next((i for i, step in enumerate(every) if not step.skipped), len(every))
    return list(every[first:] if first <= FIRST else every)


def _longest(steps: Sequence[Step]) -> int:
    longest = run = 0
    for step in steps:
        run = run + 1 if step.skipped else 0
        longest = max(longest, run)
    return longest


def _settings(call: SourceCall | None) -> tuple[Evidence, ...]:
    return (Evidence(what="the scaler", text=call.text, source="read"),) if call else ()


def _stepped(case: Case) -> At:
    optimizers = case.capture.optimizers if case.capture is not None else ()
    placed = next((o.place for o in optimizers if o.anchor and o.place), "")
    file, _, line = placed.rpartition(":")
    if not line.isdigit():
        return At(None)
    return at_call(case, SourceCall(file=file, line=int(line), name="step"))


def _change(case: Case, call: SourceCall | None) -> str:
    if call is not None and call.keywords:
        cut = ("init_scale", "growth_interval", "growth_factor", "backoff_factor")
        head, _, rest = call.text.partition("(")
        kept = [p.strip() for p in rest.rstrip(")").split(",")]
        kept = [p for p in kept if p and p.partition("=")[0].strip() not in cut]
        return f"{head}({', '.join(kept)})  # its own settings: growth after 2,000 good steps"
    if "bfloat16" in emulated(case):
        return "scaler.unscale_(optimizer)\nnn.utils.clip_grad_norm_(model.parameters(), 1.0)"
    return 'with torch.autocast("cuda", dtype=torch.bfloat16):  # no scaler needed\n    …'
