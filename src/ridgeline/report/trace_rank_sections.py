"""Several ranks as sections: who waited, who was late and with what, and the collectives."""

from collections import Counter

from ridgeline import units
from ridgeline.records.trace import CollectiveRow, RankTime, TraceStudy
from ridgeline.report.plain import printable
from ridgeline.report.trace_grid import Column, Section, doubt, number, share, time

_ALONE = "One rank only: give the traces of all ranks together to see who was late."


def ranks(study: TraceStudy) -> Section:
    found = study.ranks
    if found is None:
        return Section(id="ranks", title="ranks", short=0, empty=_ALONE)
    pairs = f"{units.plural(found.matched, 'collective')} matched over the ranks"
    lost = f", {found.unmatched:,} not" if found.unmatched else ""
    return Section(
        id="ranks",
        title="ranks",
        columns=(
            Column("rank", "words"),
            *number("busy", "compute"),
            Column("communication", spare=1),
            *number("waiting", "moving"),
            Column("hidden", spare=1),
            *number("last to come"),
            Column("others waited", spare=-1),
            Column("clock", spare=2),
            Column("was doing", "name", spare=-1),
        ),
        rows=tuple(_rank(r) for r in found.ranks),
        says=tuple(printable(text) for text in (found.late,) if text not in study.verdict),
        notes=(f"{pairs}{lost}",),
        short=16,
        doubt=doubt(found.trust),
        empty="No rank has device work.",
    )


def _rank(r: RankTime) -> tuple[str, ...]:
    doing = ", ".join(f"{printable(name)} {time(ns)}" for name, ns in r.doing[:2])
    clock = f"{r.clock_offset_ns / 1e6:+.3g} ms" if r.clock_offset_ns else "0"
    # not split: who was last is not known, which is not the same as never
    known = r.wait_ns is not None
    last = (f"{r.late_count:,} ×", time(r.caused_wait_ns)) if known else ("—", "—")
    busy = "—" if r.busy_ns is None else share(r.busy_ns / (r.window_ns or 1))
    return (
        printable(r.label or str(r.rank)), busy, time(r.compute_ns), time(r.communication_ns),
        time(r.wait_ns), time(r.transfer_ns), share(r.overlap), *last, clock, doing,
    )  # fmt: skip


def device_names(study: TraceStudy) -> str:
    """4 × V100, 1 × H100; the name alone of a single device."""
    names = Counter(printable(d.name) for d in study.devices if d.name)
    if len(study.devices) == 1:
        return "".join(names)
    return ", ".join(f"{count} × {name}" for name, count in names.items())


def collectives(study: TraceStudy) -> Section:
    rows = study.ranks.collectives if study.ranks else ()
    return Section(
        id="collectives",
        title="collectives",
        columns=(
            Column("collective", "name"),
            Column("group", "name", spare=2),
            *number("times", "bytes"),
            *number("moving, median a call", "waited, sum over ranks", "skew, largest"),
            Column("algorithm", spare=2),
            *number("bus"),
            Column("late rank", spare=-1),
        ),
        rows=tuple(_collective(c) for c in rows),
        empty=_ALONE if study.ranks is None else "No collective could be matched over the ranks.",
        short=4 if study.ranks else 0,
    )


def _collective(c: CollectiveRow) -> tuple[str, ...]:
    def rate(value: float | None) -> str:
        return "—" if value is None else units.bandwidth(value)

    return (
        printable(c.name), printable(c.group), f"{c.count:,}",
        "—" if c.bytes is None else units.bytes_(c.bytes), time(c.wire_ns), time(c.wait_ns),
        time(c.skew_ns), rate(c.algorithm_bytes_s), rate(c.bus_bytes_s),
        "—" if c.late_rank is None else str(c.late_rank),
    )  # fmt: skip
