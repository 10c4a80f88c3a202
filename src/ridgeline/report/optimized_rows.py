"""What trying changes came to, in words and figures, before it has a format."""

from collections.abc import Sequence

from msgspec import Struct

from ridgeline import units
from ridgeline.records.optimized import Optimized, Ratio, Rung
from ridgeline.report.plain import printable

RESULTS = {"equal": "equal", "weak": "equal, weakly", "differs": "differ", "unknown": "unknown"}
ORDER = ("kept", "dropped", "rejected", "not applied", "not tried")


class Row(Struct, frozen=True):
    status: str
    change: str
    faster: str
    equal: str
    memory: str
    start: str
    why: str


def headline(found: Optimized) -> str:
    total = found.total
    if total is None:
        kept = [rung.title for rung in found.rungs if rung.status == "kept"]
        if kept:
            return f"Kept, but not confirmed: {', '.join(kept)}"
        tried = sum(rung.ratio is not None for rung in found.rungs)
        return f"Nothing to keep: {units.plural(tried, 'change')} tried, none faster and equal"
    return (
        f"{factor(total.ratio)} as fast: {units.seconds(total.before_ms / 1e3)} → "
        f"{units.seconds(total.after_ms / 1e3)} a step"
    )


def notes(found: Optimized) -> list[str]:
    total, said = found.total, []
    if total is not None:
        why = total.parity.why.removeprefix("differs: ")
        said.append(f"results {RESULTS[total.parity.equality]}: {why}")
        said.append(
            f"peak memory {units.bytes_(total.peak_before_bytes)} → "
            f"{units.bytes_(total.peak_bytes)}"
        )
        if total.pays_after is not None:
            said.append(
                f"compiling takes {units.seconds(total.compile_s)} and has paid after "
                f"{units.plural(total.pays_after, 'step')}"
            )
    if found.noise:
        said.append(
            f"two processes of the same program differ by {units.percent(found.noise)} here"
        )
    said.append(f"{units.plural(found.trials, 'trial')} in {units.seconds(found.spent_s)}")
    if found.written is not None:
        said += [f"wrote {name}" for name in found.written.files]
        said += [found.written.checked] if found.written.checked else []
        said += [f"by hand: {one}" for one in found.written.by_hand]
    if found.stopped:
        said.append(f"stopped: {found.stopped}")
    return [printable(one) for one in [*said, *found.problems]]


def rows(rungs: Sequence[Rung]) -> list[Row]:
    return [_row(rung) for rung in sorted(rungs, key=lambda rung: ORDER.index(rung.status))]


def _row(rung: Rung) -> Row:
    options = ", ".join(f"{key} {value}" for key, value in rung.options.items())
    title = f"{rung.title} ({options})" if options else rung.title
    parity = rung.parity.equality if rung.parity is not None else ""
    return Row(
        status=rung.status,
        change=printable(title),
        faster=factor(rung.ratio) if rung.ratio is not None else "",
        equal={"equal": "equal", "weak": "weakly", "differs": "differs"}.get(parity, ""),
        memory=_memory(rung),
        start=units.seconds(rung.compile_s) if rung.compile_s >= 1 else "",
        why=printable(_why(rung)),
    )


def factor(ratio: Ratio) -> str:
    return f"{ratio.value:.2f} × [{ratio.ci_low:.2f}, {ratio.ci_high:.2f}]"


def _memory(rung: Rung) -> str:
    if not rung.peak_bytes or not rung.peak_before_bytes:
        return ""
    change = rung.peak_bytes / rung.peak_before_bytes - 1
    return f"{100 * change:+.0f} %" if abs(change) >= 0.01 else "same"


def _why(rung: Rung) -> str:
    if rung.status == "kept":
        said = rung.parity.why if rung.parity is not None else ""
        if rung.together:
            said = f"with {', '.join(rung.together)}; {said}"
        pays = f"; pays after {units.plural(rung.pays_after, 'step')}" if rung.pays_after else ""
        return f"{said}{pays}"
    return rung.why
