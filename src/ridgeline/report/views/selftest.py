"""Says how often this tool would be wrong on this machine."""

from typing import Any

import msgspec

from ridgeline.records.selftest import LIMIT, MIN_WINDOWS, Bench, Procedure, Rate, SelfTest, Tally
from ridgeline.report.document import (
    Block,
    Column,
    Command,
    Commands,
    Document,
    Figures,
    Paragraph,
    Report,
    Section,
    Span,
    Table,
    prose,
    row,
)
from ridgeline.report.numbers import NOTHING, share, time
from ridgeline.report.reasons import explain
from ridgeline.units import plural, seconds

SCHEMA = "ridgeline.selftest/1"
_COUNTS = ("windows", "faster", "slower", "same", "undecided")
_FIGURES = (
    *("source", "rounds", "procedure", "effect", *_COUNTS),
    *("called", "called_low", "called_high", "seen"),
)
_COLUMNS = (
    *("windows", "called different", "SAME", "UNDECIDED", "measured slowdown"),
    "sequential Welch",
)
_PROCEDURES: tuple[Procedure, ...] = ("ridgeline", "sequential Welch")


def selftest_report(test: SelfTest) -> Report:
    return Report(
        document=lambda: document(test), data=lambda: data(test), figures=lambda: figures(test)
    )


def document(test: SelfTest) -> Document:
    blocks: list[Block] = []
    if not test.passed:
        blocks.append(Paragraph(prose(advice(test)), "error"))
    blocks += [_bench_section(bench) for bench in _benches(test)]
    blocks += [Paragraph(text, "doubt") for text in notes(test)]
    method = tuple(Paragraph(prose(text), "quiet") for text in _method(test))
    blocks.append(Section(title="How it was measured", blocks=method))
    blocks.append(Commands((next_command(test),)))
    return Document(
        answer=(Span(summary(test), "plain" if test.passed else "bad"),),
        about=about(test),
        blocks=tuple(blocks),
        footer=SCHEMA,
    )


def data(test: SelfTest) -> dict[str, Any]:
    """Shares are fractions. `called` counts false alarms where the code is identical, else
    slowdowns that were found."""
    return {
        "schema": SCHEMA,
        "summary": summary(test),
        "passed": test.passed,
        "advice": advice(test),
        **msgspec.to_builtins(test),
        **{bench.source: _bench_data(bench) for bench in _benches(test)},
        "notes": notes(test),
    }


def _bench_data(bench: Bench) -> dict[str, Any]:
    made: dict[str, Any] = msgspec.to_builtins(bench)
    for written, tally in zip(made["tallies"], bench.tallies, strict=True):
        written["called"]["share"] = tally.called.share
    return made


def figures(test: SelfTest) -> Figures:
    """Return one row for each source of noise, procedure and effect."""
    rows = [
        [
            *(bench.source, bench.rounds, tally.procedure, tally.effect),
            *(getattr(tally, name) for name in _COUNTS),
            *(tally.called.share, tally.called.low, tally.called.high, tally.seen),
        ]
        for bench in _benches(test)
        for tally in bench.tallies
    ]
    return Figures(_FIGURES, rows)


def _benches(test: SelfTest) -> list[Bench]:
    return [bench for bench in (test.measured, test.simulated) if bench is not None]


def summary(test: SelfTest) -> str:
    """Return the answer: identical code was called different in 1 of 34 windows (2.9 % [0.5,
    14.9]); sequential Welch: 41 %."""
    called = test.measured.identical.called
    welch = test.measured.tally("sequential Welch", 0.0).called.share
    return (
        f"identical code was called different in {called.count} of {plural(called.of, 'window')} "
        f"({_rate(called)}); sequential Welch: {NOTHING if welch is None else share(welch)}"
    )


def about(test: SelfTest) -> tuple[str, ...]:
    host = test.surroundings
    fewest, most = min(test.block_calls), max(test.block_calls)
    calls = f" of {plural(most, 'call')}" if fewest == most else f" of {fewest} to {most} calls"
    parts = (
        test.workload,
        f"samples of {time(test.sample_ns)}{calls}",
        host.device,
        plural(host.threads, "thread"),
        f"{seconds(test.spent_s)} in all",
    )
    return tuple(part for part in parts if part)


def _bench_section(bench: Bench) -> Section:
    rows = [
        row(
            "identical" if tally.effect == 0.0 else f"{share(tally.effect)} slower",
            f"{tally.windows}",
            _rate(tally.called),
            _part(tally.same, tally),
            _part(tally.undecided, tally),
            NOTHING if tally.seen is None else _signed(tally.seen),
            _rate(bench.tally("sequential Welch", tally.effect).called),
        )
        for tally in bench.tallies
        if tally.procedure == "ridgeline"
    ]
    columns = (Column("candidate", "words"), *map(Column, _COLUMNS))
    return Section(title=bench_title(bench), blocks=(Table(columns=columns, rows=tuple(rows)),))


def bench_title(bench: Bench) -> str:
    """Return "this machine, 34 windows of 30 rounds"."""
    windows = {tally.windows for tally in bench.tallies}
    number = f"{plural(windows.pop(), 'window')} of" if len(windows) == 1 else "windows of"
    return f"{bench.noise}, {number} {plural(bench.rounds, 'round')}"


def advice(test: SelfTest) -> str:
    """Return what to do where identical code is called different too often, else ""."""
    if test.passed:
        return ""
    fewer = "fewer threads (OMP_NUM_THREADS=1), " if test.surroundings.threads > 1 else ""
    return (
        f"that is above the {share(LIMIT)} allowed, and not by chance: try {fewer}a quieter host, "
        "or a larger --threshold in `compare`"
    )


def notes(test: SelfTest) -> list[str]:
    """Return what must be known to read the numbers."""
    measured = test.measured
    windows = measured.identical.windows
    made = [f"host: {explain(one)}" for one in test.surroundings.disturbances]
    if windows < MIN_WINDOWS:
        made.append(f"only {plural(windows, 'window')}: the rates are rough")
    if test.stopped == "interrupted":
        made.append("interrupted: these are the windows measured until then")
    if measured.controls_differ:
        made.append(
            f"the A/A control itself differed in {plural(measured.controls_differ, 'window')}: "
            "nothing was decided there"
        )
    for bench in _benches(test):
        made += _wrong_verdicts(bench)
    if test.discarded:
        made.append(f"{plural(test.discarded, 'round')} left out: the device was throttled")
    return made


def _wrong_verdicts(bench: Bench) -> list[str]:
    """Yield verdicts that contradict the truth, which are worse than no verdict."""
    made = []
    for procedure in _PROCEDURES:
        slower = [t for t in bench.tallies if t.procedure == procedure and t.effect]
        wrong, windows = sum(t.faster for t in slower), sum(t.windows for t in slower)
        if wrong:
            made.append(
                f"{bench.source}: {procedure} called slower code FASTER in {wrong} of "
                f"{plural(windows, 'window')}"
            )
    return made


def _method(test: SelfTest) -> list[str]:
    threshold = share(test.threshold)
    return [
        f"Each window is judged as `compare` does, at {share(1 - test.alpha)}, with a threshold of "
        f"{threshold}.",
        "Slower candidates do real extra work inside the call, and count where they are called "
        "SLOWER. The measured slowdown is that of all their rounds together. Those that are "
        f"{threshold} slower lie on the threshold: half of them can be found at best.",
        "Sequential Welch takes the baseline's samples, then as many of the candidate, and a t "
        "test. Its slower candidates are the identical one's samples, scaled.",
        f"The noise here: samples spread over {share(test.spread)} (IQR / median), with a lag-1 "
        f"autocorrelation of {test.autocorrelation:.2f}. Intervals of rates are Wilson's at 95 %.",
    ]


def next_command(test: SelfTest) -> Command:
    windows = test.measured.identical.windows
    if windows < MIN_WINDOWS:
        budget = 10 * max(round(test.spent_s * MIN_WINDOWS / windows / 10), 1)
        return Command(f"for {MIN_WINDOWS} windows", f"ridgeline selftest --budget {budget}s")
    return Command("compare something", "ridgeline compare BASE.py:NAME HEAD.py:NAME")


def _rate(rate: Rate) -> str:
    """Return "2.9 % [0.5, 14.9]"."""
    if rate.share is None:
        return NOTHING
    ends = (f"{100 * end:.1f}".removesuffix(".0") for end in (rate.low, rate.high))
    return f"{share(rate.share)} [{', '.join(ends)}]"


def _part(number: int, tally: Tally) -> str:
    return share(number / tally.windows) if tally.windows else NOTHING


def _signed(value: float) -> str:
    return share(abs(value)) if value == 0 else f"{'+' if value > 0 else '-'}{share(abs(value))}"
