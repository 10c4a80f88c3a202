"""A comparison as a table of words: what the terminal, Markdown and the page all print."""

from msgspec import Struct
from msgspec.structs import replace

from ridgeline import units
from ridgeline.records.comparison import (
    Arm,
    Candidate,
    Comparison,
    Pair,
    PairFolder,
    Skipped,
)
from ridgeline.report.comparison_headline import TONES, Tone, judged, results
from ridgeline.report.comparison_numbers import interval, items_per_second, time, times

WORDS = ("", "verdict", "pair", "results", "note")
"""Columns of words; all others hold numbers and stand to the right."""


class Row(Struct, frozen=True, kw_only=True):
    cells: tuple[str, ...]
    tone: Tone = "plain"
    """Of the verdict in it."""
    quiet: bool = False
    """The baseline and the control: there to compare with."""


class Grid(Struct, frozen=True, kw_only=True):
    header: tuple[str, ...]
    rows: tuple[Row, ...]

    def only(self, header: tuple[str, ...]) -> "Grid":
        """The same rows with some of the columns."""
        places = [self.header.index(name) for name in header]
        cut = (replace(r, cells=tuple(r.cells[i] for i in places)) for r in self.rows)
        return Grid(header=header, rows=tuple(cut))

    def column(self, name: str) -> tuple[str, ...]:
        return tuple(r.cells[self.header.index(name)] for r in self.rows)

    def without_empty(self) -> "Grid":
        return self.only((self.header[0], *(h for h in self.header[1:] if any(self.column(h)))))


def arms(c: Comparison) -> Grid:
    """The baseline, the A/A control, and each candidate."""
    several = len(c.candidates) + len(c.broken) > 1
    header = ("", "verdict", f"time a {c.unit}", "× baseline", "results", "peak memory",
              "items", "first run" if c.mode == "scripts" else "first call",
              "pays after")  # fmt: skip
    first = Row(
        cells=("baseline", "", _median(c.baseline), "1", "", *_costs(c, c.baseline), ""), quiet=True
    )
    again = _median(c.control_arm) if c.control_arm is not None else ""
    control = Row(
        cells=("A/A control", "", again, interval(c.control.estimate), "", "", "", "", ""),
        tone="bad" if c.control.differs else "plain",
        quiet=not c.control.differs,
    )
    rows = [_candidate(c, k, several) for k in c.candidates]
    rows += [_not_run(skipped, len(header)) for skipped in c.broken]
    return Grid(header=header, rows=(first, control, *rows)).without_empty()


def _candidate(c: Comparison, k: Candidate, several: bool) -> Row:
    found = judged(c, k)
    return Row(
        cells=(
            k.arm.name,
            found.word if several else "",
            _median(k.arm),
            figure(k),
            results(k.results, short=True),
            *_costs(c, k.arm),
            pays(k),
        ),
        tone=found.tone,
    )


def _not_run(skipped: Skipped, columns: int) -> Row:
    """A row with nothing in it but its name and that it was not measured."""
    cells = (skipped.name, skipped.status, *[""] * (columns - 2))
    return Row(cells=cells, tone="bad" if skipped.status == "BROKEN" else "unsure")


def reason(skipped: Skipped) -> str:
    return "; ".join(x for x in (skipped.reason, skipped.hint) if x)


def figure(k: Candidate) -> str:
    """The ratio; in brackets where it must not be believed."""
    text = interval(k.deciding)
    return f"({text})" if k.verdict == "INVALID" and text != "—" else text


def pays(k: Candidate) -> str:
    """Under a heading "pays after": "at once", "1,900 calls", "never"."""
    return k.pays.removeprefix("after ")


def _median(arm: Arm) -> str:
    return time(arm.summary.median_ns) if arm.summary.count else ""


def _costs(c: Comparison, arm: Arm) -> tuple[str, str, str]:
    """Peak memory, items a second and the first call, where they were measured."""
    return (
        "" if arm.peak_bytes is None else units.bytes_(arm.peak_bytes),
        items_per_second(arm) if c.goal == "throughput" else "",
        "" if arm.first_call_ns is None else time(arm.first_call_ns),
    )


def pairs(folder: PairFolder) -> Grid:
    """A row for each pair; where a pair has several candidates, for each of them."""
    header = ("pair", "verdict", "× baseline", "results", "memory", "first call", "pays after",
              "note")  # fmt: skip
    rows: list[Row] = []
    for pair in folder.pairs:
        if isinstance(pair, Skipped):
            rows.append(_noted(_not_run(pair, len(header)), reason(pair)))
            continue
        rows += [_of_pair(pair, k) for k in pair.comparison.candidates]
        for skipped in pair.comparison.broken:
            row = _not_run(replace(skipped, name=f"{pair.name} · {skipped.name}"), len(header))
            rows.append(_noted(row, reason(skipped)))
    return Grid(header=header, rows=tuple(rows)).without_empty()


def _noted(row: Row, note: str) -> Row:
    return replace(row, cells=(*row.cells[:-1], note))


def _of_pair(pair: Pair, k: Candidate) -> Row:
    c = pair.comparison
    found = judged(c, k)
    several = len(c.candidates) > 1
    return Row(
        cells=(
            f"{pair.name} · {k.arm.name}" if several else pair.name,
            found.word,
            figure(k),
            results(k.results, short=True),
            _memory(c, k),
            "" if k.arm.first_call_ns is None else time(k.arm.first_call_ns),
            pays(k),
            _note(k),
        ),
        tone=found.tone,
    )


def _memory(c: Comparison, k: Candidate) -> str:
    """Only where memory was the goal: elsewhere it is in the pair's own page."""
    if c.goal != "memory" or k.memory_ratio is None:
        return ""
    before, after = c.baseline.peak_bytes, k.arm.peak_bytes
    if before is None or after is None:
        return times(k.memory_ratio)
    return f"{units.bytes_(before)} → {units.bytes_(after)}"


def _note(k: Candidate) -> str:
    if k.verdict in ("UNDECIDED", "INVALID"):
        return k.why
    warned = [f"{g.name}: {g.detail}" for g in k.guards if g.outcome in ("failed", "warned")]
    weak = list(k.results.reasons) if k.results.strength != "strong" else []
    return "; ".join([*warned, *weak])


def count(folder: PairFolder) -> str:
    """10 pairs in pairs/: 6 FASTER, 1 LESS MEMORY, 1 SKIP, 1 BROKEN."""
    number, told = size(folder), tally(folder)
    return f"{number}: {told}" if told else number


def size(folder: PairFolder) -> str:
    number = units.plural(len(folder.pairs), "pair")
    if folder.interrupted:
        number = f"interrupted after {len(folder.pairs)} of {units.plural(folder.found, 'pair')}"
    return f"{number} in {folder.folder}"


def tally(folder: PairFolder) -> str:
    found = pairs(folder)
    words = list(found.column("verdict")) if found.rows else []
    return ", ".join(f"{words.count(w)} {w}" for w in sorted(set(words), key=_rank))


def _rank(word: str) -> tuple[int, str]:
    """Verdicts in their order, goals after them, what was not measured last."""
    order = [*TONES, "", "SKIP", "BROKEN"]
    return order.index(word if word in order else ""), word
