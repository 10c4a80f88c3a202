"""scaled_dot_product_attention that no fused kernel took."""

from collections.abc import Iterator

from ridgeline import units
from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import Rule, make_finding
from ridgeline.diagnosis.rules._attention import (
    Reason,
    Scores,
    most_gained,
    peak_bytes,
    saved_bytes,
    why_math,
    without_scores,
)
from ridgeline.records.finding import Evidence, Finding
from ridgeline.records.sites import OpSite
from ridgeline.source.calls import calls_at

LEAST = 0.01
LEAST_MEMORY = 0.05
LEAST_INSIDE = 0.3
"""Of the step, for dropout inside a library's layer on a CPU: torch's own default, and without it
the model is another."""
MATH = "_scaled_dot_product_attention_math"

RULE = Rule(id="sdpa-math-path", family="kernels", budget="work", needs=("sites",))


def look(case: Case) -> Iterator[Finding]:
    fell = [s for s in case.sites.ops if s.op.endswith(MATH)]
    by_place: dict[tuple[str, str], list[OpSite]] = {}
    for site in fell:
        key = (site.place.file, site.place.function) if site.place else ("", "")
        by_place.setdefault(key, []).append(site)
    for calls in by_place.values():
        yield from _group(case, calls)


def _group(case: Case, calls: list[OpSite]) -> Iterator[Finding]:
    place = calls[0].place
    key = (place.file, place.function) if place else None
    near = [
        s for s in case.sites.ops
        if s.phase != "optimizer"
        and (key is None or s.place is None or (s.place.file, s.place.function) == key)
    ]  # fmt: skip
    shapes = dict.fromkeys(scores for site in calls if (scores := _scores(site)) is not None)
    inside = [s for s in near if s.inside(MATH) or s.op.endswith(MATH)]
    touching = inside + [
        s for s in near
        if not s.inside(MATH) and s.inside("Backward") and any(sc.touched(s) for sc in shapes)
    ]  # fmt: skip
    share, peak = without_scores(case, touching), peak_bytes(case)
    saved = sum(saved_bytes(touching, scores) for scores in shapes)
    memory = saved / peak if peak else 0.0
    if share < LEAST and memory < LEAST_MEMORY:
        return
    reason = why_math(case, calls[0])
    at = calls_at(case.sources, place, ("scaled_dot_product_attention",))
    line = at[0].line if at else None
    changes = reason is not None and reason.changes_results
    if changes and not at and share < LEAST_INSIDE:
        return
    yield make_finding(
        RULE,
        claim="scaled_dot_product_attention runs as plain operators, not as a fused kernel"
        + (f": {reason.text}" if reason else ""),
        share=share,
        bound=most_gained(case, touching),
        place=place,
        line=line,
        module=calls[0].module,
        memory=memory,
        change=reason.change if reason else _ASK,
        confidence="high" if reason and not changes else "medium",
        doubt=_doubt(reason),
        evidence=tuple(_evidence(case, calls, touching, reason, saved)),
    )


def _doubt(reason: Reason | None) -> str:
    if reason is None:
        return "the recorded inputs do not tell why"
    return "dropping results is another regularisation" if reason.changes_results else ""


_ASK = """# raises, and warns why, where no fused kernel takes the inputs
with torch.nn.attention.sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]):
    out = F.scaled_dot_product_attention(q, k, v)"""


def _evidence(
    case: Case, calls: list[OpSite], touching: list[OpSite], reason: Reason | None, saved: float
) -> Iterator[Evidence]:
    spent = sum(s.device_ns if case.on_gpu else s.host_ns for s in touching)
    number = sum(site.calls for site in calls)
    yield Evidence(
        what="plain attention",
        text=f"{units.significant(number)} calls a step, {units.seconds(case.work_s(spent))} of it "
        "with their backward",
        value=1e3 * case.work_s(spent),
    )
    if calls[0].dims:
        text = " · ".join("×".join(map(str, dims)) for dims in calls[0].dims[:3])
        yield Evidence(what="query, key, value", text=f"{text}, {calls[0].types[0]}")
    if reason is not None:
        yield Evidence(what="why", text=reason.text, source=reason.source)
    if saved:
        yield Evidence(
            what="scores kept for the backward", text=units.bytes_(saved), value=saved,
            source="derived",
        )  # fmt: skip


def _scores(site: OpSite) -> Scores | None:
    if len(site.dims) < 2 or min(len(site.dims[0]), len(site.dims[1])) < 3:
        return None
    batch = 1
    for size in site.dims[0][:-2]:
        batch *= size
    return Scores(batch, site.dims[0][-2], site.dims[1][-2])
