"""Reads a trace file: finds the events in it, whatever its layout, and makes a `Trace` of them."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ridgeline.errors import RidgelineError
from ridgeline.trace.columns import Events
from ridgeline.trace.reading import compiled
from ridgeline.trace.reading.event import (
    CHUNK_ROWS,
    CUT_OFF,
    Chunk,
    Decoder,
    Flow,
    Named,
    Row,
    Stop,
    Unusable,
    interpret,
    parse_json,
)
from ridgeline.trace.reading.portable import Portable
from ridgeline.trace.reading.source import Source
from ridgeline.trace.reading.tables import TableBuilder, Texts
from ridgeline.trace.trace import DeviceProperties, Loss, Metadata, Origin, Trace

BYTES_PER_EVENT = 400
"""Memory taken for each event at the peak of reading and analysing. 150 to 290 bytes were measured
on traces of 1 to 15 million events."""
ALWAYS_READ_EVENTS = CHUNK_ROWS
"""Traces of up to this many events (50 MB of text) are read without asking for the free memory:
asking takes longer than reading a small trace."""
MAX_MEMORY_SHARE = 0.5
"""A trace that needs a larger share of the free memory is refused."""
MIN_COMPILED_BYTES = 4 << 20
"""The scanner is not built for a smaller file, which is read before a compiler would be done."""
MAX_VALUE_BYTES = 1 << 25
"""32 MiB. A larger event or metadata value is skipped, not held."""
MAX_CANDIDATE_BYTES = 1 << 21
"""How far a candidate is read when the next whole event is searched after damage."""
MAX_PHASE_OFFSET = 1 << 14
"""How far into an event its phase may stand for the event to be found after damage."""
MAX_PARSED_BYTES = 1 << 22
"""Larger metadata values are skipped: parsed, a value takes ten times its size."""
MAX_METADATA_KEYS = 1000
MAX_LOSS_REASONS = 100
MAX_LOG_MESSAGES = 200
MAX_NAMES = 100_000
"""How many names of processes and threads are kept: each is a Python object of some hundred bytes.
"""

# There are no possessive quantifiers here (see `event`), so repeated groups have a limit: no key of
# a trace has more than 1000 escapes.
_SPACE = re.compile(rb"[ \n\r\t]*")
_KEY = re.compile(rb'"([^"\\]*(?:\\.[^"\\]*){0,1000})"[ \n\r\t]*:[ \n\r\t]*', re.DOTALL)
_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[|\[\s*(?=\{\s*")')
_CANDIDATE = re.compile(rb'\{\s*"|\}\s*\]\s*(?:,\s*"|\}|\Z)')
_FIRST_KEY = re.compile(rb'\s*\{\s*"([^"\\]{1,32})"')
_PARSE_ERRORS = (ValueError, RecursionError, ArithmeticError)

_DAMAGED = "is damaged"
_TOO_LONG = "is longer than 32 MiB"
_CUT = "was cut off by the end of the file"
_BETWEEN = "the text between two events was damaged"
_METADATA_AFTER = "the metadata after the events is damaged"
_METADATA_AROUND = "the metadata around the events is damaged"
_NOT_CLOSED = "the document is not closed"


def parse(path: Path, max_events: int | None = None) -> Trace:
    """Return the trace, read from the file itself and not from the cache. Raise RidgelineError if
    it has more than `max_events` events; by default, more than memory has room for."""
    limit = max_events
    source = Source(path)
    decoder = _decoder(path)
    document = Document(source.blocks(), decoder)
    builder = TableBuilder()
    texts = Texts(decoder)
    for chunk in document.chunks():
        builder.add(chunk, texts)
        if limit is None and builder.rows > ALWAYS_READ_EVENTS:
            limit = event_limit()
        refuse_beyond(limit, builder.rows, path, max_events is None)
    if not document.has_events:
        raise RidgelineError(*_not_a_trace(path, source, document))
    tables, decoded, lanes = builder.finish(decoder.texts(), document.named)
    origin = Origin(
        path=str(path),
        compression=source.compression,
        text_bytes=source.text_bytes,
        events=builder.rows + decoder.flows + document.named_count,
        flows=decoder.flows,
        truncated=source.truncated or document.truncated,
        has_all_events=not source.truncated and document.has_all_events,
        unverified=source.unverified,
        checksum_differs=source.checksum_differs,
        losses=document.losses,
        digest=source.digest,
    )
    found: dict[str, Events] = dict(tables)
    return Trace(origin, metadata_of(document.metadata), decoded, lanes, found.__getitem__)


def event_limit() -> int:
    """Return how many events the free memory of this machine, or container, has room for."""
    from ridgeline.machine.processor import free_bytes

    return int(MAX_MEMORY_SHARE * free_bytes() / BYTES_PER_EVENT)


def refuse_beyond(limit: int | None, events: int, path: Path, by_memory: bool) -> None:
    """Raise RidgelineError if a trace has more events than the limit. `by_memory` says that the
    limit comes from the free memory and not from the user."""
    if limit is None or events <= limit:
        return
    room = (
        f"half of the free memory has room for {limit:,}, at {BYTES_PER_EVENT} bytes each"
        if by_memory
        else f"--max-events allows {limit:,}"
    )
    raise RidgelineError(
        f"{path}: more than {events:,} events were found, and {room}",
        "trace fewer steps: torch.profiler.schedule(wait=1, warmup=1, active=3); or, if there is "
        "enough memory, raise the limit with --max-events N",
    )


def _decoder(path: Path) -> Decoder:
    try:
        small = path.stat().st_size < MIN_COMPILED_BYTES
    except (OSError, ValueError):
        small = True  # the source says what is wrong with it
    library = compiled.library(build=not small)
    return Portable() if library is None else compiled.Compiled(library)


def _not_a_trace(path: Path, source: Source, document: "Document") -> tuple[str, str]:
    hint = "a trace is what torch.profiler's export_chrome_trace writes: JSON with `traceEvents`"
    if source.text_bytes == 0:
        if source.truncated:
            return f"{path}: {source.truncated}; nothing could be read", hint
        return f"{path}: the file is empty", "was the program killed before it wrote the trace?"
    keys = document.metadata
    if "traceEvents" in keys:
        return f"{path}: not a PyTorch trace: its `traceEvents` is no list", hint
    if keys:
        listed = ", ".join(repr(str(k)[:30]) for k in list(keys)[:4])
        return f"{path}: JSON, but not a PyTorch trace: it has {listed}, no `traceEvents`", hint
    if source.truncated:
        return f"{path}: {source.truncated}, before the first event", hint
    return f"{path}: not a PyTorch trace", hint


class Document:
    """A file being read. `chunks` gives its rows; what else was learnt on the way stays here.

    The outer object is read key by key, and no more of it than one value is ever held. The array of
    events goes to a decoder. After damage of any kind, reading goes on at the next whole event, and
    what the damage cost is counted.
    """

    def __init__(self, blocks: Iterator[bytes], decoder: Decoder) -> None:
        self._blocks = blocks
        self._decoder = decoder
        self._text = b""
        self._at = 0
        self.has_events = False
        """Whether there was an array of events at all."""
        self.metadata: dict[str, Any] = {}
        """The values that stand beside the events."""
        self.named: list[Named] = []
        self.named_count = 0
        """Number of metadata events, also of those that name nothing."""
        self.truncated = ""
        self.has_all_events = True
        """False where the file breaks off among the events."""
        self._losses: Counter[tuple[str, bool]] = Counter()
        self._examples: dict[str, str] = {}
        self._first_key = b""
        """The first key of the first event. Writers put the same key first in all events."""
        self._phase_at = -1
        """The offset of the next `"ph"`, if it was looked for. Only `_candidate` uses it."""
        self._end_guessed = False
        """Whether the end of the events was found by its look, after damage."""

    @property
    def losses(self) -> tuple[Loss, ...]:
        return tuple(
            Loss(reason=reason, count=count, lost=lost, example=self._examples.get(reason, ""))
            for (reason, lost), count in self._losses.items()
        )

    def chunks(self) -> Iterator[Chunk]:
        """Yield all rows of the file, a chunk at a time."""
        self._more()
        if self._text.startswith(b"\xef\xbb\xbf"):
            self._at = 3
        self._skip_space()
        opening = self._here()
        if opening == b"[":  # Chrome's other form: the array alone
            self._at += 1
            yield from self._events()
        elif opening == b"{":
            self._at += 1
        elif opening and self._find_events():
            yield from self._events()
        yield from self._outer_object(bare=opening == b"[")
        yield self._decoder.take()
        if self.has_events:
            for _ in self._blocks:  # so that the checksum and the digest are those of the file
                pass

    # ------------------------------------------------------------ the outer object

    def _outer_object(self, bare: bool) -> Iterator[Chunk]:
        """Read the keys beside the events, and events that damage has put among them. `bare`: the
        file is an array of events without an object around it."""
        closed = bare
        while True:
            here = self._next()
            if here == b"{" and self.has_events and (not closed or self._is_event(self._at)):
                self._lose("stood after a bracket that closed the events too early", lost=False)
                if closed and not bare:  # what looked like metadata was an event without its {
                    self._lose(_DAMAGED)
                    closed = False
                yield from self._events()
            elif not here:
                if not closed:
                    self._truncate(_NOT_CLOSED, has_all_events=True)
                return
            elif here == b"}" and not closed:
                self._at += 1
                closed = True
            elif here == b'"' and not closed:
                if self._entry():
                    yield from self._events()
            elif self._end_guessed:
                self._end_guessed = False
                self._resume("the end of the events was damaged", lost=False)
                yield from self._events()
            elif self.has_events or not self._find_events():
                if closed:
                    self._lose("text after the end of the document was not read", lost=False)
                elif self.has_events:
                    self._lose(_METADATA_AFTER, lost=False)
                return
            else:
                yield from self._events()

    def _next(self) -> bytes:
        """Return the next byte that is neither space nor a comma."""
        self._skip_space()
        while self._here() == b",":
            self._at += 1
            self._skip_space()
        return self._here()

    def _entry(self) -> bool:
        """Read one key with its value. Return True if the reader now stands at the first event."""
        key = self._key()
        if key is None:
            return self._find_events()
        if self._here() == b"[" and (key == "traceEvents" or self._holds_events(key)):
            self._at += 1
            return True
        if self._value(key):
            return False
        if key == "traceEvents":
            self._resume("the bracket before the events is damaged", lost=False)
            return True
        return self._find_events()

    def _holds_events(self, key: str) -> bool:
        """Return whether the array here is one of events, though its key was damaged."""
        match = _EVENTS.match(self._text, self._at)
        if self.has_events or match is None or not self._is_event(match.end()):
            return False
        self._lose(f"the events stand under the key {key[:40]!r}", lost=False)
        return True

    def _key(self) -> str | None:
        """Return the key that begins here, and move to its value."""
        while not (match := _KEY.match(self._text, self._at)) or match.end() == len(self._text):
            if len(self._text) - self._at > MAX_VALUE_BYTES or not self._grow():
                break
        if match is None:
            return None
        self._at = match.end()
        return match.group(1)[:1000].decode("utf-8", "replace")

    def _value(self, key: str) -> bool:
        """Keep the metadata value that begins here. Return False if it is damaged or endless."""
        while (end := self._decoder.value_end(self._text, self._at)) == CUT_OFF:
            if len(self._text) - self._at > MAX_VALUE_BYTES or not self._grow():
                return False
        if end < 0:
            return False
        try:
            if len(self.metadata) < MAX_METADATA_KEYS and end - self._at <= MAX_PARSED_BYTES:
                self.metadata[key] = parse_json(self._text[self._at : end])
        except _PARSE_ERRORS:
            self._lose(f"the metadata value {key[:40]!r} could not be read", lost=False)
        self._at = end
        return True

    def _find_events(self) -> bool:
        """Look for the events as text, after damaged metadata."""
        searched = 0
        at = self._at
        while True:
            match = _EVENTS.search(self._text, at)
            if match is None:
                searched += len(self._text) - self._at
                self._at = max(at, len(self._text) - 64)
                if (searched > MAX_VALUE_BYTES and not self.has_events) or not self._more():
                    break
                at = self._at
            elif match.group().startswith(b'"'):
                self._at = match.end()
                self._lose(_METADATA_AROUND, lost=False)
                return True
            else:
                self._at = match.start()
                if self._is_event(match.end()):
                    self._at += match.end() - match.start()
                    self._lose(_METADATA_AROUND, lost=False)
                    return True
                at = self._at + 1
        if self.has_events:
            self._lose(_METADATA_AFTER, lost=False)
        self._truncate(_NOT_CLOSED, has_all_events=True)
        self._at = len(self._text)
        return False

    # ------------------------------------------------------------ the events

    def _events(self) -> Iterator[Chunk]:
        self.has_events = True
        self._decoder.wants_comma(False)
        if first := _FIRST_KEY.match(self._text, self._at):
            self._first_key = self._first_key or first.group(1)
        while True:
            stop, self._at = self._decoder.scan(self._text, self._at)
            if stop is Stop.END:
                return
            if stop is Stop.FULL:
                yield self._decoder.take()
            elif stop is Stop.NO_MEMORY:
                raise RidgelineError(
                    "the trace holds more distinct texts (2 GiB) than any real one: it was not read"
                )
            elif stop is Stop.MORE:
                if _SPACE.fullmatch(self._text, self._at):
                    self._at = len(self._text)  # not held while more of it comes
                if len(self._text) - self._at > MAX_VALUE_BYTES:
                    self._resume(_TOO_LONG)
                elif not self._grow():
                    if not self._text[self._at :].strip(b" \n\r\t,"):
                        self._truncate("the events break off")
                        self._at = len(self._text)
                        return
                    self._resume(_DAMAGED, at_end=_CUT)
            elif stop is Stop.JUNK:
                self._bridge()
            else:
                yield from self._odd_event()

    def _odd_event(self) -> Iterator[Chunk]:
        """Read one event that the decoder was not sure of."""
        while (end := self._decoder.value_end(self._text, self._at)) == CUT_OFF:
            if len(self._text) - self._at > MAX_VALUE_BYTES:
                self._resume(_TOO_LONG)
                return
            if not self._grow():
                self._resume(_DAMAGED, at_end=_CUT)
                return
        if end < 0:
            if self._here() == b",":  # one comma too many
                self._lose(_BETWEEN, lost=False)
                self._at += 1
                self._decoder.wants_comma(False)
            else:
                self._resume(_DAMAGED)
            return
        text = self._text[self._at : end]
        try:
            meaning = interpret(parse_json(text))
        except _PARSE_ERRORS:
            meaning = Unusable(_DAMAGED)
        if isinstance(meaning, Row):
            for repair in meaning.repairs:
                self._lose(repair, lost=False, example=text)
            if self._decoder.full:
                yield self._decoder.take()
            self._decoder.add(meaning)
        elif isinstance(meaning, Flow):
            self._decoder.flows += 1
        elif isinstance(meaning, Named):
            self._keep_name(meaning)
        else:
            self._lose(meaning.reason, example=text)
        self._at = end
        self._decoder.wants_comma(True)

    def _keep_name(self, named: Named) -> None:
        self.named_count += 1
        if named.what not in ("process_name", "process_labels", "thread_name"):
            return
        if len(self.named) < MAX_NAMES:
            self.named.append(named)
        else:
            self._lose("names of threads beyond 100,000 were not kept", lost=False)

    def _bridge(self) -> None:
        """Go on at the next event if it is near. There is no comma where one belongs."""
        self._skip_space()
        near = _CANDIDATE.search(self._text, self._at, self._at + 64)
        ahead = near.start() - self._at if near else 0
        if near and self._is_event(near.start()):
            self._lose(_BETWEEN, lost=False)
            self._at += ahead
            self._decoder.wants_comma(False)
            return
        self._resume(_BETWEEN, lost=False)

    def _resume(self, reason: str, lost: bool = True, at_end: str = "") -> None:
        """Give up what stands here and go on at the next whole event.

        Damaged events on the way are counted by the key that they begin with. `at_end` is the
        reason if no event follows.
        """
        self._next()  # the comma before it is not part of it
        example, begun = self._text[self._at : self._at + 200], self._at
        self._at += 1
        while True:
            match = self._candidate()
            if match is None or (match.group().startswith(b"}") and match.end() == len(self._text)):
                at = max(self._at, len(self._text) - MAX_PHASE_OFFSET)
                self._at = match.start() if match else at
                begun = len(self._text)
                if self._more():
                    continue
            if match is None:
                self._at = len(self._text)
                if at_end:
                    self._truncate("the events break off inside one")
                self._lose(at_end or reason, lost=lost, example=example)
                return
            self._at = match.start()
            if match.group().startswith(b"}"):
                self._at = self._text.index(b"]", self._at)
                self._end_guessed = True
                self._lose(reason, lost=lost, example=example)
                return
            ahead = self._at - begun
            if self._is_event(self._at):
                self._decoder.wants_comma(False)
                if 0 < ahead < len(example) and b'"' not in example[:ahead]:
                    reason, lost = _BETWEEN, False
                self._lose(reason, lost=lost, example=example)
                return
            first = _FIRST_KEY.match(self._text, self._at)
            if first and first.group(1) == self._first_key:
                self._lose(_DAMAGED, example=self._text[self._at : self._at + 200])
            self._at += 1

    def _candidate(self) -> re.Match[bytes] | None:
        """Return what may be the next event or the end of them all. Far from a phase there is no
        event."""
        if self._phase_at < self._at:
            found = self._text.find(b'"ph"', self._at)
            self._phase_at = len(self._text) if found < 0 else found
        return _CANDIDATE.search(self._text, max(self._at, self._phase_at - MAX_PHASE_OFFSET))

    def _is_event(self, at: int) -> bool:
        """Return whether a whole event begins at `at`. This may read more text; the reader does not
        move."""
        ahead = at - self._at
        while (end := self._decoder.value_end(self._text, self._at + ahead)) == CUT_OFF:
            if len(self._text) - self._at > MAX_CANDIDATE_BYTES or not self._more():
                return False
        try:
            value = parse_json(self._text[self._at + ahead : end]) if end > 0 else None
        except _PARSE_ERRORS:
            return False
        return isinstance(value, dict) and "ph" in value

    # ------------------------------------------------------------ text

    def _more(self) -> bool:
        """Drop what was read and add the next block; return False if there is none."""
        block = next(self._blocks, None)
        if block is None:
            return False
        self._text = self._text[self._at :] + block
        self._at = 0
        self._phase_at = -1
        return True

    def _grow(self) -> bool:
        """Read until there is at least twice the text, so that a long value is not scanned often.
        Return False if the file has no more."""
        wanted = 2 * (len(self._text) - self._at)
        grown = self._more()
        while grown and len(self._text) < wanted and self._more():
            pass
        return grown

    def _here(self) -> bytes:
        """Return the next byte; b"" at the end of the file."""
        while self._at >= len(self._text):
            if not self._more():
                return b""
        return self._text[self._at : self._at + 1]

    def _skip_space(self) -> None:
        while True:
            match = _SPACE.match(self._text, self._at)
            assert match is not None
            self._at = match.end()
            if self._at < len(self._text) or not self._more():
                return

    def _truncate(self, reason: str, *, has_all_events: bool = False) -> None:
        if not self.truncated:
            self.truncated, self.has_all_events = reason, has_all_events

    def _lose(self, reason: str, *, lost: bool = True, example: bytes = b"") -> None:
        if (reason, lost) not in self._losses and len(self._losses) >= MAX_LOSS_REASONS:
            reason = "for other reasons"
        self._losses[reason, lost] += 1
        if example and reason not in self._examples:
            self._examples[reason] = example[:120].decode("utf-8", "replace")


# ------------------------------------------------------------ metadata

_SWITCHES = (
    "schemaVersion", "with_stack", "with_flops", "with_modules", "record_shapes", "profile_memory",
    "cupti_version", "cuda_runtime_version", "cuda_driver_version", "hip_runtime_version",
    "hip_driver_version", "roctracer_version", "trace_id", "displayTimeUnit", "traceName",
)  # fmt: skip


def metadata_of(values: Mapping[str, Any]) -> Metadata:
    """Return the devices, the rank and the profiler's switches that the values beside the events
    give. Every value may be wrong or absent."""
    distributed = values.get("distributedInfo")
    if not isinstance(distributed, dict):
        distributed = {}
    backend = distributed.get("backend")
    return Metadata(
        base_ns=_whole(values.get("baseTimeNanoseconds")) or 0,
        rank=_whole(distributed.get("rank")),
        world_size=_whole(distributed.get("world_size")),
        backend=backend[:40] if isinstance(backend, str) else "",
        devices=_devices(values.get("deviceProperties")),
        recorded={key: _plain(values[key]) for key in _SWITCHES if key in values},
        messages=_messages(values),
    )


def _devices(entries: Any) -> tuple[DeviceProperties, ...]:
    if not isinstance(entries, list):
        return ()
    devices = []
    for entry in entries[:1024]:
        if not isinstance(entry, dict):
            continue
        name = entry.get("name")
        devices.append(
            DeviceProperties(
                id=_whole(entry.get("id")) or 0,
                name=name[:200] if isinstance(name, str) else "",
                memory_bytes=_whole(entry.get("totalGlobalMem")) or 0,
                cores=_whole(entry.get("numSms")) or 0,
                major=_whole(entry.get("computeMajor")) or 0,
                minor=_whole(entry.get("computeMinor")) or 0,
                warp=_whole(entry.get("warpSize")) or 0,
            )
        )
    return tuple(devices)


def _messages(values: Mapping[str, Any]) -> tuple[str, ...]:
    """Return Kineto's log by level, errors and warnings first."""
    messages = []
    for level in ("ERROR", "WARNING", "INFO"):
        lines = values.get(level)
        if isinstance(lines, list):
            messages += [line[:1000] for line in lines if isinstance(line, str)]
    return tuple(messages[:MAX_LOG_MESSAGES])


def _whole(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if abs(value) < 2**63 else None


def _plain(value: Any) -> str | int | float:
    if isinstance(value, str):
        return value[:200]
    return value if isinstance(value, int) and abs(value) < 2**63 else str(value)[:40]
