"""Damages traces in every way that was thought of and reads them with both decoders.

    python benchmarks/trace_fuzz.py --mutants 20000 --seed 1 [FILES…]

Each mutant must be read or refused in one sentence (`RidgelineError`), alike by both decoders, in
time; what stands outside the damage must be kept, and what was lost counted; each seventh is
analysed too, and idle time must add up. Damage to one event of a trace long enough that none counts
for much must leave its headline near what it was, or mark it doubtful. Prints a line a kind of
damage, then one a failure; exit code 1 where there was any. Ctrl-C ends it with what was done.

--library PATH reads with that build of the scanner (one with sanitizers), --only-compiled skips
the comparison.
"""

import argparse
import ctypes
import gzip
import json
import random
import re
import sys
import tempfile
import time
import traceback
import zlib
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ridgeline.errors import RidgelineError
from ridgeline.records.trace import TraceStudy
from ridgeline.report.views.trace_data import data
from ridgeline.trace.links import links_of
from ridgeline.trace.reading import compiled, reader
from ridgeline.trace.reading.event import Decoder
from ridgeline.trace.reading.portable import Portable
from ridgeline.trace.study import study_one
from ridgeline.trace.trace import Trace
from ridgeline.trace.validation import without_outliers

sys.path.insert(0, str(Path(__file__).parents[1] / "tests/unit/trace"))
from trace_differences import differences, lost
from traces_alike import alike
from traces_made import steady

SLOWEST = 10.0
STUDIED = 7
"""Each seventh mutant is analysed as well, which takes longer than reading it."""
MAX_BUSY_CHANGE, MAX_WINDOW_CHANGE = 0.05, 0.1
"""How far one damaged event may move a headline that is not marked: of the busy share, and of the
window. One of 300 operations holds a third of a percent of either."""
ODD_BYTES = b'{}[]",:\\ 0123456789.eE+-ntfNI\x00\x01\x1b\xc3\xff'
ODD_VALUES = (
    b"null", b"true", b'""', b'"x"', b"[]", b"{}", b"-1", b"1e308", b"1e-400", b"9" * 30, b"NaN",
    b"-Infinity", b"0.5", b'"12"', b'"-7"', b"12.0", b"1E2", b"9" * 5000, b'"\\ud800"', b"007",
    b'"\\u0041"', b"[" * 70 + b"]" * 70, b"9223372036854775807", b"-9223372036854775809", b"+1",
)  # fmt: skip


class Base:
    """A good trace: its text, and where its events are."""

    def __init__(self, name: str, packed: bytes) -> None:
        self.name = name
        self.text = gzip.decompress(packed) if packed.startswith(b"\x1f\x8b") else packed
        document = self.text.decode()
        if len(document) != len(self.text):  # positions below are of characters
            document = self.text.decode("latin-1")
        self.spans: list[tuple[int, int]] = []
        opening = re.search(r'"traceEvents"\s*:\s*\[\s*', document)
        assert opening is not None
        at = opening.end()
        decoder = json.JSONDecoder(strict=False)
        while document[at] == "{":
            end = decoder.raw_decode(document, at)[1]
            self.spans.append((at, end))
            at = re.compile(r"[\s,]*").match(document, end).end()  # type: ignore[union-attr]

        self.headline: TraceStudy | None = None
        """Of the undamaged trace; None where it is too short to tell damage from a plain number."""

    @property
    def events(self) -> int:
        return len(self.spans)

    def whole_before(self, cut: int) -> int:
        return sum(end <= cut for _, end in self.spans)


class Mutant:
    """Bytes to read, and what must come of them."""

    def __init__(self, data: bytes, at_least: int = 0, at_most: int | None = None,
                 counted: int = 0, one_event: bool = False) -> None:  # fmt: skip
        self.data = data
        self.at_least = at_least
        """Events that must be kept; 0: nothing can be said."""
        self.at_most = at_most
        self.counted = counted
        """Events that may be lost if they are counted."""
        self.one_event = one_event
        """Only one event is damaged: the headline stays near what it was, or is marked."""


Damage = Callable[[Base, random.Random], Mutant]


def cut_plain(base: Base, chance: random.Random) -> Mutant:
    cut = chance.randrange(base.spans[0][1] if base.spans else 1, len(base.text))
    whole = base.whole_before(cut)
    return Mutant(base.text[:cut], whole, whole)


def cut_gzip(base: Base, chance: random.Random) -> Mutant:
    packed = gzip.compress(base.text, chance.choice((1, 6, 9)))
    cut = chance.randrange(30, len(packed))
    text = zlib.decompressobj(wbits=31).decompress(packed[:cut])
    whole = base.whole_before(len(text))
    return Mutant(packed[:cut], whole, whole if whole else None)


def flip_gzip(base: Base, chance: random.Random) -> Mutant:
    packed = bytearray(gzip.compress(base.text))
    at = chance.randrange(len(packed))
    packed[at] ^= 1 << chance.randrange(8)
    return Mutant(bytes(packed))


def flip_in_event(base: Base, chance: random.Random) -> Mutant:
    """One byte of one event: it costs that event at most."""
    start, end = chance.choice(base.spans)
    text = bytearray(base.text)
    at = chance.randrange(start, end)
    text[at] = chance.choice((text[at] ^ 1 << chance.randrange(8), chance.choice(ODD_BYTES)))
    return Mutant(bytes(text), base.events - 1, counted=1, one_event=True)


def digit_in_event(base: Base, chance: random.Random) -> Mutant:
    """One digit or point of one event's times, process, thread, device or stream."""
    start, end = chance.choice(base.spans)
    keys = rb'"(?:ts|dur|pid|tid|device|stream|correlation)": ?"?(-?[0-9.]+)'
    numbers = list(re.finditer(keys, base.text[start:end]))
    if not numbers:
        return Mutant(base.text)
    spot = chance.choice(numbers)
    text = bytearray(base.text)
    at = start + chance.randrange(spot.start(1), spot.end(1))
    text[at] = chance.choice(b"123456789" if at == start + spot.start(1) else b"0123456789")
    return Mutant(bytes(text), base.events - 1, counted=1, one_event=True)


def bytes_in_event(base: Base, chance: random.Random) -> Mutant:
    """Some bytes of one event put in or taken out."""
    start, end = chance.choice(base.spans)
    at = chance.randrange(start, end)
    if chance.random() < 0.5:
        put = bytes(chance.choice(ODD_BYTES) for _ in range(chance.randrange(1, 5)))
        return Mutant(base.text[:at] + put + base.text[at:], counted=1)
    stop = min(end, at + chance.randrange(1, 9))
    return Mutant(base.text[:at] + base.text[stop:], counted=1)


def flip_anywhere(base: Base, chance: random.Random) -> Mutant:
    text = bytearray(base.text)
    for _ in range(chance.randrange(1, 6)):
        text[chance.randrange(len(text))] = chance.choice((chance.randrange(256), 0x22, 0x7D, 0x5D))
    return Mutant(bytes(text))


def value_of_event(base: Base, chance: random.Random) -> Mutant:
    """One value of one event replaced by another sort of value."""
    start, end = chance.choice(base.spans)
    fields = list(re.finditer(rb'": ?("[^"]*"|-?[0-9.]+|\{\}|\[[^\]{]*\])', base.text[start:end]))
    if not fields:
        return Mutant(base.text)
    spot = chance.choice(fields)
    put = chance.choice(ODD_VALUES)
    text = base.text[: start + spot.start(1)] + put + base.text[start + spot.end(1) :]
    return Mutant(text, base.events - 1, counted=1, one_event=True)


def field_gone(base: Base, chance: random.Random) -> Mutant:
    start, end = chance.choice(base.spans)
    event = json.loads(base.text[start:end].decode("utf-8", "replace"), strict=False)
    home = chance.choice([event, *(v for v in event.values() if isinstance(v, dict) and v)])
    home.pop(chance.choice(list(home)))
    put = json.dumps(event).encode()
    text = base.text[:start] + put + base.text[end:]
    return Mutant(text, base.events - 1, counted=1, one_event=True)


def between(base: Base, chance: random.Random) -> Mutant:
    """Something wrong between two events: no event is lost."""
    _, at = chance.choice(base.spans[:-1] or base.spans)
    put = chance.choice(
        (b",", b" x ", b"]", b"\x00", b"}", b",null", b",7", b",{}", b',"a"', b",[]")
    )
    return Mutant(base.text[:at] + put + base.text[at:], base.events)


def twice_swapped(base: Base, chance: random.Random) -> Mutant:
    """A stretch of the file moved or doubled."""
    a = chance.randrange(len(base.text))
    size = chance.randrange(1, 5000)
    b = chance.randrange(len(base.text))
    return Mutant(base.text[:b] + base.text[a : a + size] + base.text[b:])


def hole(base: Base, chance: random.Random) -> Mutant:
    """A stretch of zeros, as a lost disk block leaves; what is outside must stay."""
    a = chance.randrange(base.spans[0][1], len(base.text))
    b = min(len(base.text), a + chance.choice((512, 4096)))
    touched = sum(start < b and end > a for start, end in base.spans)
    text = base.text[:a] + b"\0" * (b - a) + base.text[b:]
    return Mutant(text, max(0, base.events - touched - 1))


KINDS: tuple[Damage, ...] = (
    cut_plain, cut_gzip, flip_gzip, flip_in_event, digit_in_event, bytes_in_event, flip_anywhere,
    value_of_event, field_gone, between, twice_swapped, hole,
)  # fmt: skip


def read(path: Path, decoder: Callable[[], Decoder]) -> Trace | str:
    reader._decoder = lambda path: decoder()  # type: ignore[assignment]
    try:
        return reader.parse(path)
    except RidgelineError as error:
        return error.message


def verdict(
    mutant: Mutant,
    path: Path,
    decoders: list[Callable[[], Decoder]],
    analyse: bool,
    headline: TraceStudy | None,
) -> str:
    """What is wrong with how it was read; "" where nothing is."""
    path.write_bytes(mutant.data)
    readings = []
    for decoder in decoders:
        began = time.perf_counter()
        readings.append(read(path, decoder))
        if time.perf_counter() - began > SLOWEST:
            return f"{time.perf_counter() - began:.1f} s"
    first = readings[0]
    for other in readings[1:]:
        if isinstance(first, str) or isinstance(other, str):
            if first != other:
                return f"refused by one only: {first} / {other}"
        elif wrong := differences(first, other):
            return "decoders differ: " + "; ".join(wrong)[:400]
    if isinstance(first, str):
        return f"refused: {first}" if mutant.at_least else ""
    kept = first.origin.events
    if kept < mutant.at_least:
        return f"{kept} events kept, not {mutant.at_least}"
    if mutant.at_most is not None and kept > mutant.at_most:
        return f"{kept} events kept of {mutant.at_most}"
    if mutant.counted and mutant.at_least and kept == mutant.at_least and not lost(first):
        return "an event was lost and not counted"
    expected = headline if mutant.one_event else None
    return studied(first, expected) if analyse or expected is not None else ""


def study_of(trace: Trace) -> TraceStudy:
    sound = without_outliers(trace)
    return study_one(sound, links_of(sound))


def studied(trace: Trace, expected: TraceStudy | None) -> str:
    """Every analysis must survive it, idle time add up, and the headline stay or be marked."""
    found = study_of(trace)
    data(found)
    idle = found.idle.total_ns
    if idle is not None and idle != sum(cause.ns for cause in found.idle.causes):
        return "the causes of idle time do not add up"
    if idle is not None and idle != sum(d.idle_ns or 0 for d in found.devices):
        return "idle time differs between sections"
    if expected is None or found.trust.confidence != "good":
        return ""
    if len(found.devices) != len(expected.devices):
        return f"the headline is of {len(found.devices)} devices: {found.verdict}"
    for one, other in zip(found.devices, expected.devices, strict=True):
        busy, usual = ((d.busy_ns or 0) / d.window.ns for d in (one, other))
        stretch = abs(one.window.ns / other.window.ns - 1)
        if abs(busy - usual) > MAX_BUSY_CHANGE or stretch > MAX_WINDOW_CHANGE:
            return f"the headline moved unmarked: {found.verdict}"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("files", nargs="*", type=Path, help="without any: the tests' own traces")
    parser.add_argument("--mutants", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--library", type=Path)
    parser.add_argument("--only-compiled", action="store_true")
    parser.add_argument("--keep", type=Path, help="folder for mutants that were misread")
    given = parser.parse_args()
    library = (
        compiled._typed(ctypes.CDLL(str(given.library))) if given.library else compiled.library()
    )
    decoders: list[Callable[[], Decoder]] = [] if given.only_compiled else [Portable]
    if library is not None:
        scanner = library
        decoders.insert(0, lambda: compiled.Compiled(scanner))
    bases = [Base(path.name, path.read_bytes()) for path in given.files] or [
        Base(name, text) for name, text in alike().items() if b"traceEvents" in text
    ]
    bases.append(Base("steady", json.dumps(steady().document()).encode()))
    chance = random.Random(given.seed)
    done: Counter[str] = Counter()
    failures: list[str] = []
    slowest: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder, suppress(KeyboardInterrupt):
        path = Path(folder) / "mutant"
        path.write_bytes(bases[-1].text)
        bases[-1].headline = study_of(reader.parse(path))
        for index in range(given.mutants):
            base, kind = chance.choice(bases), KINDS[index % len(KINDS)]
            mutant = kind(base, chance)
            began = time.perf_counter()
            try:
                wrong = verdict(mutant, path, decoders, index % STUDIED == 0, base.headline)
            except Exception:
                wrong = traceback.format_exc()
            name = kind.__name__
            slowest[name] = max(slowest.get(name, 0.0), time.perf_counter() - began)
            done[name] += 1
            if wrong:
                failures.append(f"{index} {name} {base.name}: {wrong}")
                if given.keep:
                    (given.keep / f"{index}-{name}").write_bytes(mutant.data)
    for name, count in done.items():
        print(f"{name:16} {count:7} mutants, slowest {slowest[name]:.2f} s")
    print(f"{sum(done.values())} mutants, {len(failures)} failures, {len(decoders)} decoders")
    print("\n".join(failures[:40]))
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
