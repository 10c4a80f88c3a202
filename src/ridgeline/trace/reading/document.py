"""Where the events are in a file, in any layout, and what stands beside them.

Walks the outer object key by key without ever holding more of it than one value; hands the array
of events to a decoder; takes up again after every kind of damage, and counts what it cost.
"""

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from ridgeline.errors import RidgelineError
from ridgeline.trace.reading.decoder import Chunk, Decoder, Stop
from ridgeline.trace.reading.lenient import Flow, Named, Row, Unusable, interpret, parse
from ridgeline.trace.trace import Loss

LARGEST_VALUE = 1 << 25
"""32 MiB: an event or a metadata value beyond it is skipped, not held."""

LARGEST_SKIPPED = 1 << 21
"""How far a candidate is followed while looking for the next whole event."""

_SPACE = re.compile(rb"[ \n\r\t]*")
_KEY = re.compile(rb'"((?:[^"\\]|\\.)*)"[ \n\r\t]*:[ \n\r\t]*')
_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
_CANDIDATE = re.compile(rb'\{\s*"|\}\s*\]\s*(?:,\s*"|\}|\Z)')


class Document:
    """A file being read: chunks come out, and what was learnt on the way stays here."""

    def __init__(self, blocks: Iterator[bytes], decoder: Decoder) -> None:
        self._blocks = blocks
        self._decoder = decoder
        self._text = b""
        self._at = 0
        self._last = False
        self.found = False
        """Whether there was an array of events at all."""
        self.beside: dict[str, Any] = {}
        self.named: list[Named] = []
        self.truncated = ""
        self._losses: Counter[tuple[str, bool]] = Counter()
        self._examples: dict[str, str] = {}

    @property
    def losses(self) -> tuple[Loss, ...]:
        return tuple(
            Loss(reason=reason, count=count, lost=lost, example=self._examples.get(reason, ""))
            for (reason, lost), count in self._losses.items()
        )

    def chunks(self) -> Iterator[Chunk]:
        """All rows of the file, a chunk at a time."""
        self._more()
        if self._text.startswith(b"\xef\xbb\xbf"):
            self._at = 3
        self._skip_space()
        opening = self._text[self._at : self._at + 1]
        if opening == b"[":  # Chrome's other form: the array alone
            self._at += 1
            yield from self._events()
        elif opening == b"{":
            self._at += 1
            yield from self._keys()
        yield self._decoder.take()

    # ------------------------------------------------------------ the outer object

    def _keys(self) -> Iterator[Chunk]:
        while True:
            self._skip_space()
            while self._here() == b",":
                self._at += 1
                self._skip_space()
            here = self._here()
            if here == b"{" and self.found:  # the array's end was damage, not its end
                self._lose("stood after a bracket that closed the events too early", lost=False)
                yield from self._events()
                continue
            if here != b'"':
                self._end_of_object(here)
                return
            key = self._key()
            if key == "traceEvents" and self._here() == b"[":
                self._at += 1
                yield from self._events()
            elif key is None or not self._value(key):
                if not self._find_events():
                    return
                yield from self._events()

    def _end_of_object(self, here: bytes) -> None:
        if here == b"}":
            self._at += 1
            self._skip_space()
            here = self._here()
            if here:
                self._lose("text after the end of the document was not read", lost=False)
        elif not here:
            self.truncated = self.truncated or "the document is not closed"
        else:
            self._lose("the metadata after the events is damaged", lost=False)

    def _key(self) -> str | None:
        """The key that begins here, and the reader at its value."""
        while not (match := _KEY.match(self._text, self._at)) or match.end() == len(self._text):
            if len(self._text) - self._at > LARGEST_VALUE or not self._more():
                break
        if match is None:
            return None
        self._at = match.end()
        return match.group(1).decode("utf-8", "replace")

    def _value(self, key: str) -> bool:
        """Keep the metadata value that begins here; False where it is damaged or endless."""
        while (end := self._decoder.value_end(self._text, self._at)) == -1:
            if len(self._text) - self._at > LARGEST_VALUE or not self._more():
                return False
        if end < 0:
            return False
        try:
            self.beside[key] = parse(self._text[self._at : end])
        except (ValueError, RecursionError):
            self._lose(f"the metadata value {key[:40]!r} could not be read", lost=False)
        self._at = end
        return True

    def _find_events(self) -> bool:
        """After damaged metadata: look for the events as text."""
        searched = 0
        self._lose("the metadata around the events is damaged", lost=False)
        while not (match := _EVENTS.search(self._text, self._at)):
            searched += len(self._text)
            self._at = max(self._at, len(self._text) - 64)
            if (searched > LARGEST_VALUE and not self.found) or not self._more():
                self.truncated = self.truncated or "the document is not closed"
                return False
        self._at = match.end()
        return True

    # ------------------------------------------------------------ the events

    def _events(self) -> Iterator[Chunk]:
        self.found = True
        self._decoder.wants_comma(False)
        while True:
            stop, self._at = self._decoder.scan(self._text, self._at, self._last)
            if stop is Stop.END:
                return
            if stop is Stop.FULL:
                yield self._decoder.take()
            elif stop is Stop.NO_MEMORY:
                raise RidgelineError(
                    "the trace holds more distinct texts (2 GiB) than any real one: it was not read"
                )
            elif stop is Stop.MORE:
                if not self._more() or len(self._text) > LARGEST_VALUE:
                    if self._last and self._cut_short():
                        return
                    if len(self._text) > LARGEST_VALUE:
                        self._resume("is longer than 32 MiB")
            elif stop is Stop.JUNK:
                self._bridge()
            else:
                yield from self._odd()

    def _cut_short(self) -> bool:
        """The text is over before the events are."""
        rest = self._text[self._at :].strip(b" \n\r\t,")
        self.truncated = "the events break off" + (" inside one" if rest else "")
        if rest:
            self._lose("was cut off by the end of the file", example=rest)
        self._at = len(self._text)
        return True

    def _odd(self) -> Iterator[Chunk]:
        """One event the decoder was not sure of."""
        while (end := self._decoder.value_end(self._text, self._at)) == -1:
            if len(self._text) - self._at > LARGEST_VALUE:
                self._resume("is longer than 32 MiB")
                return
            if not self._more():
                self._resume("is damaged")
                return
        if end < 0:
            self._resume("is damaged")
            return
        text = self._text[self._at : end]
        try:
            meant = interpret(parse(text))
        except (ValueError, RecursionError, ArithmeticError):
            meant = Unusable("is damaged")
        if isinstance(meant, Row):
            for repair in meant.repairs:
                self._lose(repair, lost=False, example=text)
            if self._decoder.full:
                yield self._decoder.take()
            self._decoder.add(meant)
        elif isinstance(meant, Flow):
            self._decoder.flows += 1
        elif isinstance(meant, Named):
            self.named.append(meant)
        else:
            self._lose(meant.reason, example=text)
        self._at = end
        self._decoder.wants_comma(True)

    def _bridge(self) -> None:
        """No comma where one belongs: go on at the next event if it is right here."""
        self._skip_space()
        near = _CANDIDATE.search(self._text, self._at, self._at + 64)
        if near and self._is_event(near.start()):
            self._lose("the text between two events was damaged", lost=False)
            self._at = near.start()
            self._decoder.wants_comma(False)
            return
        self._resume("the text between two events was damaged", lost=False)

    def _resume(self, reason: str, lost: bool = True) -> None:
        """Give up what stands here and go on at the next thing that is an event."""
        self._lose(reason, lost=lost, example=self._text[self._at : self._at + 200])
        at = self._at + 1
        while True:
            match = _CANDIDATE.search(self._text, at)
            if match is None:
                self._at = max(at, len(self._text) - 4096)
                if not self._more():
                    self._at = len(self._text)
                    return
                at = 0
            elif match.group().startswith(b"}"):  # the array's end
                self._at = self._text.index(b"]", match.start())
                return
            elif self._is_event(match.start()):
                self._at = match.start()
                self._decoder.wants_comma(False)
                return
            elif self._goes_on(match.start()) and self._more():
                at = 0
            else:
                at = match.start() + 1

    def _goes_on(self, at: int) -> bool:
        """Whether the value there may only lack the next block; the reader is moved to it."""
        short = len(self._text) - at < LARGEST_SKIPPED
        if not short or self._decoder.value_end(self._text, at) != -1:
            return False
        self._at = at
        return True

    def _is_event(self, at: int) -> bool:
        end = self._decoder.value_end(self._text, at)
        if end < 0:
            return False
        try:
            value = parse(self._text[at:end])
        except (ValueError, RecursionError, ArithmeticError):
            return False
        return isinstance(value, dict) and "ph" in value

    # ------------------------------------------------------------ text

    def _more(self) -> bool:
        """Drop what was read, add the next block; False where there is none."""
        block = next(self._blocks, None)
        if block is None:
            self._last = True
            return False
        self._text = self._text[self._at :] + block
        self._at = 0
        return True

    def _here(self) -> bytes:
        """The next byte; b"" at the end of the file."""
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

    def _lose(self, reason: str, *, lost: bool = True, example: bytes = b"") -> None:
        self._losses[reason, lost] += 1
        if example and reason not in self._examples:
            self._examples[reason] = example[:120].decode("utf-8", "replace")
