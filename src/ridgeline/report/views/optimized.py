"""A search for optimizations: the answer, every rung with its proof, what was not tried, the patch,
and what to type next."""

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from ridgeline import units
from ridgeline.records.facts import Ratio, Reason
from ridgeline.records.ladder import (
    Attempt,
    Ladder,
    verdict_of_ratio,
    verdict_of_rung,
)
from ridgeline.records.optimized import Optimized, Rung, SearchCode, Total
from ridgeline.records.parity import Parity
from ridgeline.records.reason_codes import Skip, SkipKind
from ridgeline.records.trial import TrialFailure
from ridgeline.report.document import (
    Block,
    Cell,
    Code,
    Column,
    Command,
    Commands,
    Document,
    Figures,
    Item,
    Labelled,
    Paragraph,
    Report,
    Row,
    Section,
    Span,
    Table,
    Tone,
    item,
    row,
)
from ridgeline.report.numbers import is_ratio
from ridgeline.report.reasons import applied_record, explain, explain_earlier
from ridgeline.report.views.optimized_phrases import (
    REPORTED_AS_SHARE,
    costs,
    disagreement,
    doubts,
    effort,
    factor,
    fixes,
    gained,
    headline,
    next_command,
    noise,
    pays_after,
    rate,
    results_word,
    time_spent,
    titled,
    titles,
    where_confirmed,
    whole_results,
    why_not_kept,
    without_figures,
)
from ridgeline.report.views.optimized_pictures import (
    losses_section,
    race_section,
    times,
    waterfall,
)
from ridgeline.units import plural

KEPT = "✓"
MIN_QUEUED_SHARE = 0.05
"""With shorter waits for a processor, step times with and without them hardly differ."""
MAX_KINDS = 6
"""The largest number of lines in the table of fixes that were not tried."""
MAX_REASON_CHARACTERS = 38
"""A reason that all fixes of a kind share is printed instead of the kind if it is at most this
long."""


def optimized_report(result: Optimized) -> Report:
    return Report(
        document=lambda: document(result),
        data=lambda: data(result),
        figures=lambda: figures(result),
        picture=lambda: waterfall(Ladder(result)),
    )


def document(result: Optimized) -> Document:
    ladder = Ladder(result)
    text, tone = headline(ladder)
    blocks: list[Block] = [Paragraph(text, "doubt") for text in doubts(ladder)]
    blocks += _diagnosis(result)
    blocks += _evidence(result)
    blocks.append(waterfall(ladder))
    if result.rungs or result.total is not None:
        blocks.append(_ladder_table(ladder))
    if remark := disagreement(ladder):
        blocks.append(Paragraph(remark, "doubt"))
    blocks += _other_training(ladder)
    blocks += _left_out(ladder)
    blocks += race_section(result)
    blocks += losses_section(result)
    blocks += _untried(result)
    blocks += _patch(result)
    blocks.append(Labelled(tuple(_ending(result))))
    blocks += _proofs(ladder)
    blocks += _every_fix(result)
    blocks.append(_method(result))
    if commands := _commands(ladder):
        blocks.append(Commands(commands))
    return Document(
        answer=(Span(text, tone),),
        about=tuple(part for part in (result.command, result.device) if part),
        facts=costs(result, result.total) if result.total is not None else (),
        blocks=tuple(blocks),
        title=f"{text}: {result.command}",
        footer=f"A ratio is before over after: above 1 is better. schema {result.schema}",
    )


def _diagnosis(result: Optimized) -> list[Block]:
    """Return what limited the baseline and what limits the program now; if nothing was gained, only
    the diagnosis."""
    won = [("was", result.diagnosis), ("is now", result.afterwards)]
    texts = won if result.total is not None else [("diagnosis", result.diagnosis)]
    items = tuple(item(label, text) for label, text in texts if text)
    return [Labelled(items)] if items else []


def _evidence(result: Optimized) -> Iterator[Block]:
    total, written = result.total, result.written
    if total is not None:
        yield Paragraph(f"results {whole_results(result, total)}: {total.parity.why}")
        is_by_hand = written is not None and bool(written.by_hand)
        if is_by_hand and written is not None and not (written.files or written.diff_file):
            yield Paragraph("no copy was written: the edits to make by hand are listed below")
    if result.measured in REPORTED_AS_SHARE:
        yield Paragraph(
            f"below, a ratio is the {result.measured} before over after: above 1 means less",
            "quiet",
        )


_LADDER_COLUMNS = (
    Column("rung", "name"),
    *map(Column, ("step ms", "× baseline", "× rung before")),
    Column("kept", "words"),
    Column("results", "words", starts_part=True),
    *map(Column, ("memory", "pays after")),
)


def _ladder_table(ladder: Ladder) -> Table:
    """Return a table of the baseline, its control, the fixes in the order they were tried, and all
    kept fixes in fresh processes. The reason for a fate stands below its row."""
    result = ladder.optimized
    memory = _bytes(result.baseline_bytes)
    baseline = (_step(result.baseline_ms), "1.00 ×", "", "", "", memory, "")
    rows = [row("baseline", *baseline, tone="quiet")]
    if result.control is not None:
        rows.append(row("A/A control", "", "", factor(result.control), *[""] * 4, tone="quiet"))
    race = result.race
    if race is not None and race.control is not None:
        control = factor(race.control)
        rows.append(row("A/A control of the race", "", "", control, *[""] * 4, tone="quiet"))
    rows += [_rung_row(ladder, attempt) for attempt in ladder.tried]
    if race is not None and race.ratio is not None:
        cells = ("all of them in the race", "", times(race.ratio.value), factor(race.ratio))
        rows.append(row(*cells, *[""] * 4, tone="quiet"))
    if result.total is not None:
        rows.append(_whole_row(result, result.total))
    return Table(columns=_LADDER_COLUMNS, rows=tuple(rows))


def _rung_row(ladder: Ladder, attempt: Attempt) -> Row:
    result, rung = ladder.optimized, attempt.rung
    has_failed = rung.parity is not None and not rung.parity.is_proven
    tone: Tone = "good" if attempt.is_kept else "unsure"
    if not attempt.is_kept and (has_failed or rung.ratio is None):
        tone = "bad"
    # The ladder does not contain a fix that was tried and not kept, so it has no cumulative ratio.
    is_on_ladder = attempt.is_kept or rung.status == "dropped"
    return row(
        titles(attempt),
        _step(rung.step_ms),
        times(ladder.cumulative(rung)) if is_on_ladder else "",
        factor(rung.ratio),
        Cell(KEPT if attempt.is_kept else "", tone="good"),
        Cell(results_word(rung.parity, rung.alters), tone="bad" if has_failed else "plain"),
        _bytes(rung.peak_bytes),
        pays_after(result, rung.pays_after) if attempt.is_kept else "",
        note="" if attempt.is_kept else _fate(result, attempt),
        tone=tone,
    )


def _fate(result: Optimized, attempt: Attempt) -> str:
    why = why_not_kept(result, attempt)
    return f"dropped: {why}" if attempt.rung.status == "dropped" else why


def _whole_row(result: Optimized, total: Total) -> Row:
    is_sure, where = result.is_confirmed, where_confirmed(result)
    return row(
        f"confirmed {where}" if is_sure else where,
        _step(total.after_ms),
        times(total.ratio.value),
        factor(total.ratio),
        "",
        whole_results(result, total),
        _bytes(total.peak_bytes),
        pays_after(result, total.pays_after) if is_sure else "",
        note="" if is_sure else "not confirmed",
        tone="plain" if is_sure else "bad",
        bold=True,
    )


def _step(ms: float | None) -> str:
    if ms is None or not is_ratio(ms):
        return ""
    return (
        units.significant(ms) if ms < 1 else f"{ms:,.{0 if ms >= 1000 else 1 if ms >= 10 else 2}f}"
    )


def _bytes(value: int | None) -> str:
    return units.bytes_(value) if value else ""


_NOT_THE_SAME = (
    "Not the same training",
    "Another batch size or other arithmetic trains another model: they are in no total above.",
)
_ALLOWED = (
    "Allowed by name",
    "These fixes alter what is computed, and were allowed with --allow: the totals have them.",
)


def _other_training(ladder: Ladder) -> Iterator[Block]:
    """Return a table of the fixes that train differently, and of all kept fixes together with
    them."""
    result = ladder.optimized
    rows = [
        row(
            titles(attempt),
            factor(attempt.rung.ratio),
            "",
            results_word(attempt.rung.parity),
            _bytes(attempt.rung.peak_bytes),
            Cell(KEPT if attempt.is_kept else "", tone="good"),
            note="" if attempt.is_kept else _fate(result, attempt),
        )
        for attempt in ladder.other_training
    ]
    if (total := result.with_batch) is not None:
        gain, results = gained("time a sample", total.ratio), results_word(total.parity)
        cells = ("all kept fixes, with it", gain, rate(total), results)
        note = "" if total.is_better else "not confirmed"
        rows.append(row(*cells, _bytes(total.peak_bytes), "", note=note))
    if not rows:
        return
    columns = (
        Column("", "name"), Column("time a sample", "words"), Column("samples/s", "words"),
        Column("results", "words"), Column("memory"), Column("kept", "words"),
    )  # fmt: skip
    title, note = _NOT_THE_SAME
    whole = set(result.total.fixes) if result.total is not None else set()
    if result.with_batch is None and all(whole & set(a.fixes) for a in ladder.other_training):
        title, note = _ALLOWED
    table = Table(columns=columns, rows=tuple(rows))
    yield Section(title=title, blocks=(Paragraph(note), table))


def _left_out(ladder: Ladder) -> Iterator[Block]:
    if len(ladder.left_out) < 2:
        return
    rows = tuple(row(titled(rung), factor(ratio)) for rung, ratio in ladder.left_out)
    table = Table(columns=(Column("fix", "name"), Column("×")), rows=rows)
    note = "What each fix still adds: all kept fixes against all but this one."
    yield Section(title="Leave-one-out", blocks=(Paragraph(note), table))


_KIND_NAMES: dict[SkipKind, str] = {
    SkipKind.PROGRAM_FAILED: "the program could not be run again",
    SkipKind.OUT_OF_TIME: "there was no time",
    SkipKind.ONLY_IF_ASKED: "only if asked for: {options}",
    SkipKind.KEEP_EXACT: "not with {keep_exact}",
    SkipKind.LITTLE_TO_GAIN: "too little to gain",
    SkipKind.SAVES_MEMORY: "it saves memory, and costs time",
    SkipKind.ALREADY_SO: "the program does so already, or better",
    SkipKind.DOES_NOT_TRAIN: "this program does not train",
    SkipKind.TRAINS: "this program trains",
    SkipKind.MACHINE: "not for this machine",
    SkipKind.ABSENT: "nothing in this program to apply it to",
    SkipKind.OTHER: "for other reasons",
}
"""The kinds in the order of the report. Those that a person can act on come first."""
_ACTIONABLE = tuple(_KIND_NAMES)[:5]
_KINDS: dict[str, SkipKind] = {
    **{code: code.kind for code in Skip},
    SearchCode.BASELINE_RUN_FAILED: SkipKind.PROGRAM_FAILED,
    SearchCode.OUT_OF_TIME: SkipKind.OUT_OF_TIME,
    SearchCode.TOO_LITTLE_TIME: SkipKind.OUT_OF_TIME,
    SearchCode.INTERRUPTED: SkipKind.OUT_OF_TIME,
    SearchCode.INTERRUPTED_AFTER: SkipKind.OUT_OF_TIME,
    TrialFailure.OUT_OF_TIME: SkipKind.OUT_OF_TIME,
    TrialFailure.TIME_RESERVED: SkipKind.OUT_OF_TIME,
    TrialFailure.CUT_FOR_PROOF: SkipKind.OUT_OF_TIME,
    SearchCode.NEEDS_ALLOW: SkipKind.ONLY_IF_ASKED,
    SearchCode.NEEDS_ALLOW_ARGUMENT: SkipKind.ONLY_IF_ASKED,
    SearchCode.NEEDS_BATCH: SkipKind.ONLY_IF_ASKED,
    SearchCode.NEEDS_BATCH_ARGUMENT: SkipKind.ONLY_IF_ASKED,
    SearchCode.NOT_EXACT: SkipKind.KEEP_EXACT,
    SearchCode.BOUND_TOO_SMALL: SkipKind.LITTLE_TO_GAIN,
    SearchCode.BOUND_WITHIN_NOISE: SkipKind.LITTLE_TO_GAIN,
    SearchCode.SAVES_MEMORY: SkipKind.SAVES_MEMORY,
    SearchCode.KEPT_DOES_MORE: SkipKind.ALREADY_SO,
}
_NAMED_KINDS = (SkipKind.LITTLE_TO_GAIN, SkipKind.KEEP_EXACT)
"""Kinds whose name is printed although all their fixes share a reason, because it says more."""


def kind_of(reason: Reason) -> SkipKind:
    return _KINDS.get(reason.code, SkipKind.OTHER)


def untried_kinds(result: Optimized) -> list[tuple[SkipKind, tuple[Rung, ...]]]:
    """Return the fixes that were not tried, grouped by the kind of their reason. The smallest kinds
    beyond MAX_KINDS are joined as OTHER."""
    rungs = [rung for rung in result.rungs if rung.status == "not tried"]
    by_kind = {
        kind: tuple(rung for rung in rungs if kind_of(rung.reason) == kind) for kind in _KIND_NAMES
    }
    kinds: list[SkipKind] = [k for k in by_kind if by_kind[k] and k != SkipKind.OTHER]
    is_crowded = bool(by_kind[SkipKind.OTHER]) or len(kinds) > MAX_KINDS
    ranked = sorted(kinds, key=lambda kind: (kind not in _ACTIONABLE, -len(by_kind[kind])))
    shown = ranked[: MAX_KINDS - 1 if is_crowded else MAX_KINDS]
    others = tuple(rung for rung in rungs if kind_of(rung.reason) not in shown)
    made = [(kind, by_kind[kind]) for kind in kinds if kind in shown]
    if others:
        made.append((SkipKind.OTHER, others))
    return made


def _untried(result: Optimized) -> Iterator[Block]:
    kinds = untried_kinds(result)
    rows = [
        row(_kind_name(result, kind, rungs), _named(rungs), tone="quiet") for kind, rungs in kinds
    ]
    number = sum(len(rungs) for _, rungs in kinds)
    unchanged = tuple(rung for rung in result.rungs if rung.status == "not applied")
    if unchanged:
        why = _shared_reason(unchanged) or "it found nothing to change"
        rows.append(row(why, _named(unchanged), tone="quiet"))
    if not rows:
        return
    reasons = "`.rungs` has" if result.is_function else "the report and --json have"
    title = f"Not tried: {fixes(number + len(unchanged))}; {reasons} every reason"
    columns = (Column("reason", "name"), Column("fixes", "names", spare=-1))
    table = Table(columns=columns, rows=tuple(rows))
    yield Section(title=title, blocks=(table,))


def _kind_name(result: Optimized, kind: SkipKind, rungs: tuple[Rung, ...]) -> str:
    shared = "" if kind in _NAMED_KINDS else _shared_reason(rungs)
    options = "allow=, batch=" if result.is_function else "--allow, --batch"
    keep_exact = "keep_exact" if result.is_function else "--keep-exact"
    return shared or _KIND_NAMES[kind].format(options=options, keep_exact=keep_exact)


def _shared_reason(rungs: Iterable[Rung]) -> str:
    """Return the reason that all share, if it is short enough for a column; else ""."""
    reasons = {explain(rung.reason) for rung in rungs}
    only = reasons.pop() if len(reasons) == 1 else ""
    return only if len(only) <= MAX_REASON_CHARACTERS else ""


def _named(rungs: Iterable[Rung]) -> str:
    return " · ".join(dict.fromkeys(rung.title for rung in rungs))


def _patch(result: Optimized) -> Iterator[Block]:
    blocks = [*_written(result)]
    if blocks:
        yield Section(title="The patch", blocks=tuple(blocks), title_detail="page")
    if result.advice:
        yield Labelled(tuple(item("advice", text) for text in result.advice))


def _written(result: Optimized) -> Iterator[Block]:
    written = result.written
    if written is None:
        return
    names = [*written.files, *([written.diff_file] if written.diff_file else [])]
    items = [item("wrote", " · ".join(names))] if names else []
    if written.checked:
        level: Any = "warning" if written.agrees is False else "plain"
        items.append(item("checked", written.checked, level=level))
    elif written.files and written.agrees is None:
        items.append(item("checked", "the copy was not run on its own"))
    items += [item("note", explain(note)) for note in written.notes]
    if items:
        yield Labelled(tuple(items))
    if written.diff:
        yield Code(written.diff, "diff", detail="page")
    for reason in written.by_hand:
        yield Code(explain(reason), label="by hand")


def _ending(result: Optimized) -> Iterator[Item]:
    for problem in result.problems:
        yield item("problem", problem, level="warning")
    if result.stopped:
        text = f"before everything was tried: {explain(result.stopped)}"
        yield item("stopped", text, level="warning")
    if result.race is not None and result.race.reason is not None:
        label = "race ended" if result.race.measured else "no race"
        yield item(label, explain(result.race.reason), level="warning")
    if result.queued_share >= MIN_QUEUED_SHARE:
        share = f"{100 * result.queued_share:.0f} %"
        text = f"steps waited {share} of their time for a processor, which other programs had; "
        yield item("busy", text + "step times and ratios are without these waits")
    yield item("took", effort(result))
    if result.time is not None:
        yield item("of it", time_spent(result.time))


def _proofs(ladder: Ladder) -> Iterator[Block]:
    """Return how results were compared: of all kept fixes, of each rung, and with another batch
    size."""
    result = ladder.optimized
    proofs = [
        _proof(
            titles(attempt),
            attempt.rung.parity,
            results_word(attempt.rung.parity, attempt.rung.alters),
        )
        for attempt in ladder.attempts
        if attempt.rung.parity is not None
    ]
    if (total := result.total) is not None:
        proofs.insert(0, _proof("all kept fixes", total.parity, whole_results(result, total)))
    if (batch := result.with_batch) is not None:
        word = results_word(batch.parity)
        proofs.append(_proof("with another batch size", batch.parity, word))
    if proofs:
        yield Section(title="Results", blocks=tuple(proofs), detail="page")


def _proof(title: str, parity: Parity, word: str) -> Section:
    rows = tuple(
        row(
            check.what,
            "failed" if not check.passed else "doubtful" if check.doubt else "passed",
            note=check.text,
        )
        for check in parity.checks
    )
    blocks: list[Block] = [Paragraph(parity.why)]
    if rows:
        blocks.append(Table(columns=(Column("check", "name"), Column("", "words")), rows=rows))
    if parity.missing:
        blocks.append(Labelled(tuple(item("not compared", text) for text in parity.missing)))
    return Section(title=f"{title}: {word}", blocks=tuple(blocks), folded=True)


def _every_fix(result: Optimized) -> Iterator[Block]:
    known = {rung.fix: rung.title for rung in result.rungs}
    rows = tuple(_fix_row(rung, known) for rung in result.rungs)
    if not rows:
        return
    columns = (
        Column("fix", "name"),
        Column("", "words"),
        Column("may alter", "words"),
        *map(Column, ("bound", "result", "memory", "compile")),
    )
    table = Table(columns=columns, rows=rows)
    yield Section(title="Every fix, tried or not", blocks=(table,), detail="page", folded=True)


def _fix_row(rung: Rung, known: dict[str, str]) -> Row:
    before, after = rung.peak_before_bytes, rung.peak_bytes
    partners = ", ".join(known.get(name, name) for name in rung.together)
    notes = (
        without_figures(rung),
        f"tried with {partners}" if partners else "",
        explain_earlier(rung.earlier),
    )
    return row(
        titled(rung),
        rung.status,
        rung.alters,
        f"{rung.bound:.2f} ×" if rung.bound is not None else "",
        factor(rung.ratio),
        f"{units.bytes_(before)} → {units.bytes_(after)}" if before and after else "",
        units.seconds(rung.compile_s) if rung.compile_s >= 1 else "",
        note="; ".join(note for note in notes if note),
    )


def _method(result: Optimized) -> Section:
    surroundings = (
        ("program", result.command),
        ("device", result.device),
        ("goal", f"{result.goal}: a smaller {result.measured}"),
        ("diagnosed in", result.run),
    )
    items = tuple(item(name, text) for name, text in surroundings if text)
    paragraphs = (Paragraph(text) for text in method(result))
    return Section(
        title="How it was measured",
        blocks=(*paragraphs, Labelled(items)),
        detail="page",
        folded=True,
    )


def method(result: Optimized) -> list[str]:
    total = result.total
    pairs = total.ratio.pairs if total is not None else 0
    end = (
        f" At the end all kept fixes ran together in {plural(pairs, 'fresh pair')}."
        if pairs
        else ""
    )
    each = (
        "Every trial runs the step itself in this process, from the same starting state."
        if result.is_function
        else "Every trial runs the program itself in a process of its own, with the fix applied "
        "from "
        "outside."
    )
    level = f"{100 * total.ratio.level:.0f} %" if total is not None else "95 %"
    control = factor(result.control) or "not measured"
    return [
        f"{each} Trials with and without the fix alternate, pair by pair.{end}",
        f"A ratio is the {result.measured} before over the {result.measured} after: above 1 is "
        "better. A step time is the median of the steady-state steps. The × baseline of a rung is "
        "the "
        "product of the ratios up to it, because the baseline was timed much earlier.",
        f"Intervals ({level}) come from the spread of pairs, pooled over all trials: "
        f"{noise(result)}. Few pairs need more confidence: 99.8 % for one pair, 98.8 % for three.",
        f"A/A control, the baseline against itself: {control}.",
        "Results are compared with repeats of the baseline at the same seed and data: "
        f"{_checked(result)}.",
    ]


def _checked(result: Optimized) -> str:
    parities = [rung.parity for rung in result.rungs] + [result.total and result.total.parity]
    names = [check.what for parity in parities if parity for check in parity.checks]
    return ", ".join(dict.fromkeys(names)) or "nothing could be compared"


def _commands(ladder: Ladder) -> tuple[Command, ...]:
    replay, following = ladder.optimized.replay, next_command(ladder)
    again = [Command("do it again", replay)] if replay else []
    if following is None:
        return tuple(again)
    return following, *(command for command in again if command.text != following.text)


# The JSON document and the table of figures. Figures are in the unit their name ends with; ratios
# are before over after, of what `measured` names; null is "not measured".

FIGURES = (
    *("kind", "changes", "title", "status", "verdict", "ratio", "ci_low", "ci_high", "level"),
    *("pairs", "parity", "parity_why", "step_ms", "before_ms", "baseline_ratio", "memory_bytes"),
    *("memory_before_bytes", "compile_s", "break_even_steps", "without_ratio", "without_ci_low"),
    *("without_ci_high", "bound", "bound_exceeded", "alters", "beside", "spent_s", "kept"),
    *("reason", "reason_code", "earlier"),
)


def data(result: Optimized) -> dict[str, Any]:
    """Return the record as a document that begins with the ladder, one row a rung."""
    ladder = Ladder(result)
    whole: dict[str, Any] = msgspec.to_builtins(result)
    del whole["with_batch"]
    whole["stopped_reason"] = whole["stopped"]
    whole["stopped"] = explain(result.stopped)
    if result.written is not None:
        whole["written"]["by_hand"] = [explain(one) for one in result.written.by_hand]
        whole["written"]["notes"] = [explain(one) for one in result.written.notes]
    for written_rung, rung in zip(whole["rungs"], result.rungs, strict=True):
        written_rung["why"] = explain(rung.reason)
        written_rung["earlier"] = explain_earlier(rung.earlier)
    written, following = result.written, next_command(ladder)
    return {
        "schema": result.schema,
        "command": result.command,
        "summary": headline(ladder)[0],
        "confirmed": result.is_confirmed,
        "doubts": [text for text in (*doubts(ladder), disagreement(ladder)) if text],
        "ladder": ladder_data(ladder),
        **{key: value for key, value in whole.items() if key not in ("schema", "command")},
        "total": {
            "like_for_like": _total_data(result, result.total),
            "with_batch": _total_data(result, result.with_batch),
        },
        "baseline_ms": result.baseline_ms or None,
        "baseline_bytes": result.baseline_bytes or None,
        "patched_script": written.files[0] if written is not None and written.files else None,
        "diff": written.diff if written is not None else "",
        "next": following.text if following is not None else "",
    }


def figures(result: Optimized) -> Figures:
    rows = ladder_data(Ladder(result))
    return Figures(FIGURES, [[row[name] for name in FIGURES] for row in rows])


def ladder_data(ladder: Ladder) -> list[dict[str, Any]]:
    """Return the rows of the baseline, of its A/A control, and of every fix."""
    result = ladder.optimized
    is_measured = bool(result.baseline_ms)
    first = _row_data(
        kind="baseline",
        title="baseline",
        verdict="SAME" if is_measured else "NOT_TRIED",
        ratio=1.0 if is_measured else None,
        baseline_ratio=1.0 if is_measured else None,
        step_ms=result.baseline_ms or None,
        memory_bytes=result.baseline_bytes or None,
        reason="the baseline",
    )
    second = _row_data(
        kind="control",
        title="A/A control",
        verdict=verdict_of_ratio(result.control) if result.control is not None else "NOT_TRIED",
        **_ratio_data(result.control),
        reason="the baseline against itself",
    )
    return [first, second, *(_attempt_data(ladder, attempt) for attempt in ladder.attempts)]


def _attempt_data(ladder: Ladder, attempt: Attempt) -> dict[str, Any]:
    rung = attempt.rung
    is_measured = rung.ratio is not None or rung.step_ms is not None
    without = next((r.without for r in attempt.rungs if r.without is not None), None)
    ends = {} if without is None else {"ci_low": without.ci_low, "ci_high": without.ci_high}
    return _row_data(
        kind="rung",
        changes=list(attempt.fixes),
        title=titles(attempt),
        status=rung.status,
        verdict=verdict_of_rung(rung),
        **_ratio_data(rung.ratio),
        **_parity_data(rung.parity),
        step_ms=rung.step_ms,
        before_ms=rung.before_ms,
        baseline_ratio=ladder.cumulative(rung),
        memory_bytes=rung.peak_bytes,
        memory_before_bytes=rung.peak_before_bytes,
        compile_s=rung.compile_s if is_measured else None,
        break_even_steps=_break_even(ladder.optimized, rung.pays_after)
        if attempt.is_kept
        else None,
        without_ratio=without.value if without is not None else None,
        **{f"without_{name}": value for name, value in ends.items()},
        bound=rung.bound,
        bound_exceeded=rung.bound_exceeded,
        alters=rung.alters,
        beside=list(rung.beside),
        spent_s=rung.spent_s or None,
        kept=attempt.is_kept,
        reason=explain(rung.reason),
        reason_code=rung.reason.code,
        earlier=explain_earlier(rung.earlier) or None,
    )


def _row_data(**known: Any) -> dict[str, Any]:
    made: dict[str, Any] = {"changes": [], "beside": [], "kept": False, **known}
    return {name: made.get(name) for name in FIGURES}


def _ratio_data(ratio: Ratio | None) -> dict[str, Any]:
    names = ("ci_low", "ci_high", "pairs", "level")
    if ratio is None:
        return dict.fromkeys(("ratio", *names))
    return {"ratio": ratio.value, **{name: getattr(ratio, name) for name in names}}


def _parity_data(parity: Parity | None) -> dict[str, Any]:
    if parity is None:
        return {"parity": None, "parity_why": None}
    return {"parity": parity.equality, "parity_why": parity.why}


def _total_data(result: Optimized, total: Total | None) -> dict[str, Any] | None:
    if total is None:
        return None
    same = ("before_ms", "after_ms", "before_samples_s", "after_samples_s", "compile_s")
    return {
        **_ratio_data(total.ratio),
        "confirmed": total.is_better,
        "changes": list(total.fixes),
        **{name: getattr(total, name) for name in same},
        **_parity_data(total.parity),
        "parity_evidence": msgspec.to_builtins(total.parity),
        "memory_before_bytes": total.peak_before_bytes or None,
        "memory_bytes": total.peak_bytes or None,
        "break_even_steps": _break_even(result, total.pays_after),
        "applied": [applied_record(one) for one in total.applied],
    }


def _break_even(result: Optimized, steps: int | None) -> int | None:
    """Return after how many steps a compilation is paid back: 0 for at once, None if memory is the
    goal."""
    return steps if steps is not None or result.measured == "peak memory" else 0
