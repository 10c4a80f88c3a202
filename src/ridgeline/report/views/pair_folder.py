"""A folder of pairs: a row for each, and each comparison folded below."""

from collections.abc import Sequence
from typing import Any, get_args

from msgspec.structs import replace

from ridgeline.records.comparison import Candidate, Pair, PairFolder, Skipped
from ridgeline.records.facts import Verdict
from ridgeline.report.document import (
    Block,
    Cell,
    Column,
    Document,
    Figures,
    ForestChart,
    Labelled,
    Paragraph,
    Report,
    Row,
    Section,
    Span,
    Table,
    item,
    row,
)
from ridgeline.report.numbers import is_ratio, share, time, times
from ridgeline.report.reasons import explain
from ridgeline.report.views.comparison import (
    FOOTER,
    TONES,
    believed_ratio,
    blocks_of,
    data,
    guard_text,
    headline,
    interval_mark,
    judged,
    memory_change,
    pays_after,
    results_words,
    skip_reason,
    skipped_data,
    skipped_row,
    tally_of,
)
from ridgeline.units import plural

SCHEMA = "ridgeline.pairs/1"
_PAIR_ANSWER = (
    *("summary", "verdict", "ratio", "ci_low", "ci_high", "why", "goal_met", "memory_ratio"),
    *("throughput_ratio", "first_call_ms", "pays_after", "pays", "results"),
)
_FIGURES = (
    *("pair", "title", "status", "candidate", "goal", "goal_met", "verdict", "ratio", "ci_low"),
    *("ci_high", "results", "strength", "baseline_median_ms", "median_ms", "baseline_peak_bytes"),
    *("peak_bytes", "first_call_ms", "pays_after", "pays", "reason"),
)


def folder_report(folder: PairFolder) -> Report:
    return Report(
        document=lambda: document(folder),
        data=lambda: folder_data(folder),
        figures=lambda: figures(folder),
    )


def document(folder: PairFolder) -> Document:
    measured = [pair for pair in folder.pairs if isinstance(pair, Pair)]
    table = _pair_table(folder)
    tally = _tally_words(folder)
    blocks: list[Block] = [table] if table.rows else []
    blocks.append(_forest(measured))
    hosts = [pair.comparison.surroundings.disturbances for pair in measured]
    shared = [one for one in (hosts[0] if hosts else ()) if all(one in h for h in hosts)]
    blocks += [Labelled(tuple(item("host", explain(one)) for one in shared))] if shared else []
    blocks += [_pair_section(pair) for pair in measured]
    return Document(
        answer=(Span(_size(folder) + (f": {tally}" if tally else "")),),
        blocks=tuple(blocks),
        footer=f"{FOOTER} {SCHEMA}",
    )


def _pair_section(pair: Pair) -> Section:
    answer, about = headline(pair.comparison)
    title = f"{pair.name}: {pair.title}" if pair.title else pair.name
    blocks = (Paragraph(answer.spans), Paragraph(" · ".join(about)), *blocks_of(pair.comparison))
    return Section(title=title, blocks=blocks, detail="page", folded=True)


def _forest(measured: Sequence[Pair]) -> ForestChart:
    marks = [
        interval_mark(candidate, _pair_name(pair, candidate.variant.name))
        for pair in measured
        for candidate in pair.comparison.candidates
        if candidate.verdict != "INVALID" and is_ratio(candidate.deciding.ratio)
    ]
    band = max((pair.comparison.noise_band for pair in measured), default=0.0)
    return ForestChart(
        marks=tuple(marks),
        band=band,
        band_meaning=f"± {share(band)}, the widest band of any pair",
        title="Every pair on one axis",
        detail="page",
    )


def _pair_name(pair: Pair, candidate: str) -> str:
    return f"{pair.name} · {candidate}" if len(pair.comparison.candidates) > 1 else pair.name


def _pair_table(folder: PairFolder) -> Table:
    """Return a row for each pair; where a pair has several candidates, for each of them."""
    columns = (
        Column("pair", "name"),
        Column("verdict", "words"),
        Column("× baseline"),
        Column("results", "words"),
        *(Column(cost, starts_part=True) for cost in ("memory", "first call", "pays after")),
    )
    rows: list[Row] = []
    for pair in folder.pairs:
        if isinstance(pair, Skipped):
            rows.append(skipped_row(pair, len(columns), skip_reason(pair)))
            continue
        rows += [_pair_row(pair, candidate) for candidate in pair.comparison.candidates]
        for skipped in pair.comparison.broken:
            named = replace(skipped, name=f"{pair.name} · {skipped.name}")
            rows.append(skipped_row(named, len(columns), skip_reason(skipped)))
    return Table(columns=columns, rows=tuple(rows))


def _pair_row(pair: Pair, candidate: Candidate) -> Row:
    comparison, variant = pair.comparison, candidate.variant
    answer = judged(comparison, candidate)
    memory = ""
    # Elsewhere memory stands in the pair's own section.
    if comparison.goal == "memory" and candidate.memory_ratio is not None:
        memory = memory_change(comparison, candidate) or times(candidate.memory_ratio)
    return row(
        _pair_name(pair, variant.name),
        Cell(answer.word, tone=answer.tone, bold=True),
        believed_ratio(candidate),
        results_words(candidate.results, short=True),
        memory,
        "" if variant.first_call_ns is None else time(variant.first_call_ns),
        pays_after(comparison, candidate),
        note=_pair_note(candidate),
        tone="plain",
    )


def _pair_note(candidate: Candidate) -> str:
    if candidate.verdict in ("UNDECIDED", "INVALID"):
        return explain(candidate.reason)
    warned = [guard_text(g) for g in candidate.guards if g.outcome in ("failed", "warned")]
    weak = candidate.results.reasons if candidate.results.strength != "strong" else ()
    return "; ".join([*warned, *weak])


def _size(folder: PairFolder) -> str:
    number = plural(len(folder.pairs), "pair")
    if folder.interrupted:
        number = f"interrupted after {len(folder.pairs)} of {plural(folder.found, 'pair')}"
    return f"{number} in {folder.folder}"


def _tally_words(folder: PairFolder) -> str:
    """Return "6 FASTER, 1 LESS MEMORY, 1 SKIP": verdicts in their order, then goals, then what was
    not measured."""
    words: list[str] = []
    for pair in folder.pairs:
        if isinstance(pair, Skipped):
            words.append(pair.status)
            continue
        words += [judged(pair.comparison, c).word for c in pair.comparison.candidates]
        words += [skipped.status for skipped in pair.comparison.broken]
    order = [*TONES, "", "SKIP", "BROKEN"]
    return tally_of(sorted(words, key=lambda w: (order.index(w if w in order else ""), w)))


def folder_data(folder: PairFolder) -> dict[str, Any]:
    pairs = [_pair_data(pair) for pair in folder.pairs]
    candidates = [
        k for pair in pairs if pair["comparison"] for k in pair["comparison"]["candidates"]
    ]
    verdicts, statuses = [k["verdict"] for k in candidates], [pair["status"] for pair in pairs]
    return {
        "schema": SCHEMA,
        "folder": folder.folder,
        "found": max(folder.found, len(pairs)),
        "interrupted": folder.interrupted,
        "counts": {
            "pairs": len(pairs),
            **{status: statuses.count(status) for status in ("MEASURED", "SKIP", "BROKEN")},
            **{verdict: verdicts.count(verdict) for verdict in get_args(Verdict)},
            "goals_met": sum(bool(k["goal_met"]) for k in candidates),
        },
        "pairs": pairs,
    }


def _pair_data(pair: Pair | Skipped) -> dict[str, Any]:
    """A pair's answer stands beside its name where it has one candidate."""
    if isinstance(pair, Skipped):
        answer = dict.fromkeys(_PAIR_ANSWER)
        return {**skipped_data(pair), "title": "", "goal": None, **answer, "comparison": None}
    whole = data(pair.comparison)
    only = whole["candidates"][0] if len(whole["candidates"]) == 1 else {}
    return {
        "name": pair.name,
        "title": pair.title,
        "status": "MEASURED",
        "reason": "",
        "hint": "",
        "goal": pair.comparison.goal,
        **{key: only.get(key) for key in _PAIR_ANSWER},
        "comparison": whole,
    }


def figures(folder: PairFolder) -> Figures:
    """Return one row for each candidate of each pair."""
    rows: list[dict[str, Any]] = []
    for pair in folder_data(folder)["pairs"]:
        shared = {"pair": pair["name"], **{k: pair[k] for k in ("title", "status", "goal")}}
        whole = pair["comparison"]
        if whole is None:
            rows.append({**shared, "reason": pair["reason"]})
            continue
        base = whole["baseline"]
        rows += [
            {
                **k,
                **shared,
                "candidate": k["name"],
                "results": k["results"]["status"],
                "strength": k["results"]["strength"],
                "baseline_median_ms": base["median_ms"],
                "baseline_peak_bytes": base["peak_bytes"],
                "reason": k["why"],
            }
            for k in whole["candidates"]
        ]
    return Figures(_FIGURES, [[row.get(name) for name in _FIGURES] for row in rows])
