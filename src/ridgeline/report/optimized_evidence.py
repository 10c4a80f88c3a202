"""What a report on changes rests on, as rows of words: every change there is, the checks of its
results, the surroundings, the user's own lines."""

import re
from collections.abc import Sequence

from msgspec import Struct

from ridgeline import units
from ridgeline.records.optimized import Optimized, Rung
from ridgeline.records.parity import Parity
from ridgeline.report.optimized_ladder import lines, titled, titles
from ridgeline.report.optimized_words import bare, effort, factor, results_word, whole_word
from ridgeline.report.plain import printable
from ridgeline.report.reasons import explain, explain_earlier

FIXES = ("change", "", "may alter", "bound", "result", "memory", "compile", "reason")


class Proof(Struct, frozen=True):
    """How the results of one rung were compared."""

    title: str
    word: str
    why: str
    checks: tuple[tuple[str, str, str], ...]
    """What, passed or not, the numbers."""
    missing: tuple[str, ...]


def fixes(found: Optimized) -> list[tuple[str, ...]]:
    """Every change there is, as `FIXES`, also those that were not tried."""
    known = {rung.fix: rung.title for rung in found.rungs}
    return [
        _change(rung, [known.get(name, name) for name in rung.together]) for rung in found.rungs
    ]


def _change(rung: Rung, with_: Sequence[str]) -> tuple[str, ...]:
    before, after = rung.peak_before_bytes, rung.peak_bytes
    memory = f"{units.bytes_(before)} → {units.bytes_(after)}" if before and after else ""
    partners = f"tried with {', '.join(with_)}" if with_ else ""
    return (
        printable(titled(rung)),
        rung.status,
        rung.alters,
        f"{rung.bound:.2f} ×" if rung.bound is not None else "",
        factor(rung.ratio),
        memory,
        units.seconds(rung.compile_s) if rung.compile_s >= 1 else "",
        printable(
            "; ".join(
                part for part in (bare(rung), partners, explain_earlier(rung.earlier)) if part
            )
        ),
    )


def proofs(found: Optimized) -> list[Proof]:
    """Of the whole first, then of each rung, then of the whole with another batch size."""
    made = []
    if found.total is not None:
        made.append(_proof("all that was kept", found.total.parity, whole_word(found, found.total)))
    made += [
        _proof(
            printable(titles(line.rungs)),
            line.rung.parity,
            results_word(line.rung.parity, line.rung.alters),
        )
        for line in lines(found)
        if line.rung.parity is not None
    ]
    if found.with_batch is not None:
        made.append(_proof("with another batch size", found.with_batch.parity, ""))
    return made


def _proof(title: str, parity: Parity, word: str) -> Proof:
    return Proof(
        title,
        word or results_word(parity),
        printable(parity.why),
        tuple(
            (
                printable(check.what),
                "failed" if not check.passed else "doubtful" if check.doubt else "passed",
                printable(check.text),
            )
            for check in parity.checks
        ),
        tuple(printable(one) for one in parity.missing),
    )


def surroundings(found: Optimized) -> list[tuple[str, str]]:
    told = (
        ("program", found.command),
        ("device", found.device),
        ("goal", f"{found.goal}: a smaller {found.measured}"),
        ("diagnosed in run", found.run),
        ("took", effort(found)),
        ("stopped", explain(found.stopped)),
    )
    return [(name, printable(text)) for name, text in told if text]


def code(text: str) -> str:
    """A user's lines as they are, tabs too; what is unseen in them is spelled out."""
    shown = ("\t".join(map(printable, line.rstrip("\r").split("\t"))) for line in text.split("\n"))
    return "\n".join(shown)


def fence(text: str, language: str = "") -> list[str]:
    """A block of Markdown that nothing inside can end."""
    shown = code(text).rstrip("\n")
    longest = max((len(run) for run in re.findall(r"`+", shown)), default=0)
    marks = "`" * max(3, longest + 1)
    return [f"{marks}{language}", shown, marks]
