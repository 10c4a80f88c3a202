"""A gradient scaler that throws steps away."""

from collections.abc import Iterator, Sequence

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import Rule, make_finding, measured, read
from ridgeline.diagnosis.rules._operators import emulated
from ridgeline.diagnosis.rules._user_code import (
    files_of,
    located,
    located_call,
    place_at,
    user_calls,
)
from ridgeline.records.finding import Finding
from ridgeline.records.run import Step
from ridgeline.records.trace import Place
from ridgeline.source.calls import SourceCall
from ridgeline.units import percent

RULE = Rule(id="loss-scale-thrash", family="precision", budget="work", needs=("capture",))
MIN_SKIPPED_SHARE = 0.05
MIN_SKIPPED_STEPS = 3
MAX_FIRST_SKIPS = 24
"""Steps that a run may skip in a row at its beginning: it takes so many to go from the default
scale of 65,536 down to 2 ** -8."""
MIN_STEPS = 20
"""With fewer steps a share of them says little."""
_OWN_SETTINGS = ("init_scale", "growth_interval", "growth_factor", "backoff_factor")


def look(case: Case) -> Iterator[Finding]:
    every = [step for step in case.steps if step.optimizer_steps or step.skipped]
    steps = _settled(every)
    skipped = sum(step.skipped for step in steps)
    least = max(MIN_SKIPPED_STEPS, MIN_SKIPPED_SHARE * len(steps))
    if len(steps) < MIN_STEPS or skipped < least:
        return
    part = skipped / len(steps)
    files = files_of(case.sites.ops[:200])
    call = next(iter(user_calls(case, ("GradScaler",), files)), None)
    all_skipped = skipped == len(steps)
    in_row = _longest_run(steps)
    yield make_finding(
        RULE,
        claim=f"the gradient scaler threw away {skipped} of {len(steps)} steps: their gradients "
        f"{'are infinite at any scale' if all_skipped else 'overflow float16'}",
        share=part,
        place=located_call(case, call) or _optimizer_step(case),
        confidence="medium" if all_skipped else "high",
        evidence=(
            measured("skipped steps", f"{skipped} of {len(steps)}, {percent(part)}", skipped),
            measured("in a row at most", str(in_row), in_row),
            *([read("the scaler", call.text)] if call is not None else ()),
        ),
        change=_change(case, call),
        doubt="a step takes as long as before: what is gained is that each one counts",
    )


def _settled(every: Sequence[Step]) -> list[Step]:
    """Return the steps without the skipped ones at the beginning, unless those are more than a
    search for a scale needs."""
    first = next((i for i, step in enumerate(every) if not step.skipped), len(every))
    return list(every[first:] if first <= MAX_FIRST_SKIPS else every)


def _longest_run(steps: Sequence[Step]) -> int:
    longest = run = 0
    for step in steps:
        run = run + 1 if step.skipped else 0
        longest = max(longest, run)
    return longest


def _optimizer_step(case: Case) -> Place | None:
    optimizers = case.capture.optimizers if case.capture is not None else ()
    place = place_at(next((o.place for o in optimizers if o.anchor and o.place), ""))
    return located(case, place.file, place.line) if place is not None else None


def _change(case: Case, call: SourceCall | None) -> str:
    if call is not None and call.keywords:
        return f"{call.without(*_OWN_SETTINGS)}  # its own settings: growth after 2,000 good steps"
    if "bfloat16" in emulated(case):
        return "scaler.unscale_(optimizer)\nnn.utils.clip_grad_norm_(model.parameters(), 1.0)"
    return 'with torch.autocast("cuda", dtype=torch.bfloat16):  # no scaler needed\n    …'
