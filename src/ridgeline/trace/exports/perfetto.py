"""The trace file with our findings and idle causes added as rows of their own, for Perfetto.

The original events are copied as text while the file is read, so that traces of any size and also
damaged ones can be annotated. Our events come first, under a process called "ridgeline", in the
microseconds of the file.
"""

import gzip
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, cast

import msgspec

from ridgeline.errors import RidgelineError
from ridgeline.records.finding import Finding
from ridgeline.records.trace import Gap, TraceStudy
from ridgeline.trace.analyses.idle import all_gaps, idle_gaps
from ridgeline.trace.links import links_of
from ridgeline.trace.reading import compiled
from ridgeline.trace.reading.event import Chunk, Decoder, Row, Stop
from ridgeline.trace.reading.portable import Portable
from ridgeline.trace.reading.reader import Document
from ridgeline.trace.reading.source import Source
from ridgeline.trace.trace import Trace
from ridgeline.trace.window import steps_of

PROCESS = "ridgeline"
FINDINGS, STEPS = "findings", "steps"
FIRST = -1_000_000
"""The sort index of our rows, which puts them above torch's own processes."""

_COLOURS = {
    "input": "terrible",
    "synchronisation": "bad",
    "transfer": "thread_state_iowait",
    "launch-bound": "yellow",
    "collective wait": "vsync_highlight_color",
    "between kernels": "grey",
}
"""Colour names of chrome://tracing. Perfetto colours events by name, and the name has the cause."""


def mark(
    trace: Trace,
    study: TraceStudy,
    path_out: Path,
    findings: Sequence[Finding] = (),
    headline: str = "",
) -> None:
    """Write the trace's own file with every idle gap, unless idle time is unknown, and with the
    headline and the findings."""
    gaps: Iterable[Gap] = ()
    if study.idle.total_ns is not None:
        links = links_of(trace)
        gaps_by_device = idle_gaps(trace, links, study.window)
        gaps = all_gaps(trace, links, gaps_by_device, steps_of(trace))
    annotate(Path(trace.origin.path), study, path_out, gaps, findings, headline)


def annotate(
    path_in: Path,
    study: TraceStudy,
    path_out: Path,
    gaps: Iterable[Gap] | None = None,
    findings: Sequence[Finding] = (),
    headline: str = "",
) -> None:
    """Write `path_in` with our events to `path_out`, gzipped if that name ends in .gz.

    `gaps` has all idle gaps. Without it, the longest gaps are written, which the study has.
    """
    scratch = path_out.with_name(f".{path_out.name}.{os.getpid()}")
    try:
        with _opened(scratch, path_out.suffix == ".gz") as file:
            written_gaps = study.idle.top if gaps is None else gaps
            _write(file, path_in, _marks(study, written_gaps, findings, headline))
        scratch.replace(path_out)
    except OSError as error:
        raise RidgelineError(f"{path_out} could not be written: {error.strerror}") from error
    finally:
        scratch.unlink(missing_ok=True)


def _opened(path: Path, packed: bool) -> IO[bytes]:
    if not packed:
        return path.open("wb")
    # level 3: half the time of 6 for a tenth more bytes
    return cast("IO[bytes]", gzip.open(path, "wb", compresslevel=3))


def _write(file: IO[bytes], path: Path, marks: Iterator[str]) -> None:
    file.write(b'{"traceEvents": [\n')
    for number, event in enumerate(marks):
        file.write(b",\n" if number else b"")
        file.write(event.encode())
    file.write(b",\n")
    copier = Copier(_decoder(), file.write)
    document = Document(Source(path).blocks(), copier)
    for _ in document.chunks():
        pass
    if not copier.copied:  # JSON allows no comma before a bracket
        file.write(_meta("process_labels", {"labels": "no events were copied"}).encode())
    file.write(b"\n]")
    for key, value in document.metadata.items():
        text = json.dumps({key: value}, default=float).encode()
        file.write(b",\n" + rewritten(text)[1:-1])  # without the braces of an object of its own
    file.write(b"\n}\n")


def _decoder() -> Decoder:
    """Return the compiled decoder if it is built already, else the portable one."""
    library = compiled.library(build=False)
    return Portable() if library is None else compiled.Compiled(library)


def _marks(
    study: TraceStudy, gaps: Iterable[Gap], findings: Sequence[Finding], headline: str
) -> Iterator[str]:
    yield _meta("process_name", {"name": "ridgeline: idle causes and findings"})
    yield _meta("process_sort_index", {"sort_index": FIRST})
    named: dict[str, int] = {}
    for track in (FINDINGS, STEPS):
        yield from _named(track, named)
    yield from _findings(study, findings, headline)
    for step in study.devices[0].steps if study.devices else ():  # the host's: each device's alike
        arguments = {
            "busy_ms": step.busy_ns / 1e6,
            "idle_ms": step.idle_ns / 1e6,
            "whole": step.whole,
        }
        yield _span(STEPS, step.name, step.start_ns, step.dur_ns, arguments)
    for gap in gaps:
        track = f"idle causes (device {gap.device})"
        yield from _named(track, named)
        yield _idle(track, gap)


def _idle(track: str, gap: Gap) -> str:
    place = f"{gap.place.file}:{gap.place.line} {gap.place.function}" if gap.place else ""
    args = {"cause": gap.cause, "place": place.strip(), "host": gap.host, "before": gap.before,
            "after": gap.after, "step": gap.step}  # fmt: skip
    colour = _COLOURS.get(gap.cause, "olive")
    return _span(track, f"idle: {gap.cause}", gap.start_ns, gap.dur_ns, args, colour)


def _findings(study: TraceStudy, findings: Sequence[Finding], headline: str) -> Iterator[str]:
    start = study.window.start_ns
    if headline:
        yield _instant(headline, start, {"window": study.window.basis})
    for number, finding in enumerate(findings, 1):
        fields = ("rule", "share_pct", "gain_bound", "confidence", "place", "change")
        args = {field: getattr(finding, field) for field in fields}
        yield _instant(f"{number}: {finding.claim}", start, args)
    for check in study.validation:
        args = {"severity": check.severity, "count": check.count, "affects": list(check.affects)}
        yield _instant(f"{check.severity}: {check.claim}", start, args)


def _named(track: str, known: dict[str, int]) -> Iterator[str]:
    """Return the events that give a track its name and its place."""
    if track in known:
        return
    known[track] = len(known)
    tid = _text(track)
    yield _meta("thread_name", {"name": track}, tid)
    yield _meta("thread_sort_index", {"sort_index": known[track]}, tid)


def _meta(what: str, args: dict[str, Any], tid: str = "0") -> str:
    return (
        f'{{"ph": "M", "name": "{what}", "pid": "{PROCESS}", "tid": {tid}, "ts": 0, '
        f'"args": {_text(args)}}}'
    )


def _span(
    track: str, name: str, start: int, dur: int, args: dict[str, Any], colour: str = "olive"
) -> str:
    return (
        f'{{"ph": "X", "cat": "ridgeline", "name": {_text(name)}, "pid": "{PROCESS}", '
        f'"tid": {_text(track)}, "ts": {_us(start)}, "dur": {_us(dur)}, "cname": "{colour}", '
        f'"args": {_text(args)}}}'
    )


def _instant(name: str, at: int, args: dict[str, Any]) -> str:
    return (
        f'{{"ph": "i", "s": "p", "cat": "ridgeline", "name": {_text(name)}, "pid": "{PROCESS}", '
        f'"tid": "{FINDINGS}", "ts": {_us(at)}, "args": {_text(args)}}}'
    )


def _us(ns: int) -> str:
    """Return exact microseconds: a float holds today's nanoseconds only to 128 of them."""
    sign, whole = ("-", -ns) if ns < 0 else ("", ns)
    return f"{sign}{whole // 1000}.{whole % 1000:03d}"


def _text(value: Any) -> str:
    return json.dumps(value)


_CONTROLS = bytes.maketrans(bytes(range(32)), b" " * 32)
"""Inside a string a control character is an error, between tokens it is space."""


class _Event(msgspec.Struct):
    """Any JSON object: the decoder only checks that it is complete."""


_events = msgspec.json.Decoder(list[_Event])


class Copier:
    """A `Decoder` that also passes the text of every event to `write`, separated by commas."""

    def __init__(self, inner: Decoder, write: Callable[[bytes], Any]) -> None:
        self._inner = inner
        self._write = write
        self._odd: tuple[bytes, int, int] | None = None
        self.copied = False

    @property
    def flows(self) -> int:
        return self._inner.flows

    @flows.setter
    def flows(self, count: int) -> None:
        self._inner.flows = count

    @property
    def full(self) -> bool:
        return self._inner.full

    def scan(self, text: bytes, start: int) -> tuple[Stop, int]:
        stop, end = self._inner.scan(text, start)
        self._copy(text[start:end].strip(b" \n\r\t,]" if stop is Stop.END else b" \n\r\t,"))
        self._odd = None
        return stop, end

    def wants_comma(self, wants: bool) -> None:
        """Copy the last value that `value_end` found, if the reader has read it as an event."""
        if wants and self._odd is not None:
            text, start, end = self._odd
            self._copy(text[start:end])
        self._odd = None
        self._inner.wants_comma(wants)

    def value_end(self, text: bytes, start: int) -> int:
        end = self._inner.value_end(text, start)
        self._odd = (text, start, end) if end > start else None
        return end

    def add(self, row: Row) -> None:
        self._inner.add(row)

    def take(self) -> Chunk:
        return self._inner.take()

    def texts(self) -> list[bytes]:
        return self._inner.texts()

    def _copy(self, text: bytes) -> None:
        if not text:
            return
        clean = text.translate(_CONTROLS)
        if not clean.isascii():
            clean = clean.decode("utf-8", "replace").encode()
        if not _is_whole(clean):
            clean = self._repaired(clean)
        if clean:
            self._write(b",\n" if self.copied else b"")
            self._write(clean)
            self.copied = True

    def _repaired(self, text: bytes) -> bytes:
        """Return the events, unchanged or rewritten as valid JSON; unreadable ones are left out."""
        kept, at = [], 0
        while (at := text.find(b"{", at)) >= 0:
            end = self._inner.value_end(text, at)
            if end <= at:
                break
            event = text[at:end]
            kept.append(event if _is_whole(event) else rewritten(event))
            at = end
        return b",\n".join(event for event in kept if event)


def _is_whole(events: bytes) -> bool:
    try:
        _events.decode(b"[" + events + b"]")
    except (msgspec.MsgspecError, RecursionError):
        return False
    return True


def rewritten(text: bytes) -> bytes:
    """Return JSON that every reader takes: NaN and the infinities, which torch writes, become
    null."""
    try:
        meant = json.loads(
            text.decode("utf-8", "replace"),
            strict=False,
            parse_constant=lambda _: None,
            parse_float=_finite,
        )
        return json.dumps(meant).encode()
    except (ValueError, RecursionError):
        return b""


def _finite(text: str) -> float | None:
    value = float(text)
    return value if math.isfinite(value) else None
