"""A file to a `Trace`."""

from pathlib import Path
from typing import Any

from ridgeline.errors import RidgelineError
from ridgeline.trace.columns import Events
from ridgeline.trace.reading import compiled
from ridgeline.trace.reading.decoder import CAPACITY, Decoder
from ridgeline.trace.reading.document import Document
from ridgeline.trace.reading.metadata import metadata_of
from ridgeline.trace.reading.portable import Portable
from ridgeline.trace.reading.source import Source
from ridgeline.trace.reading.tables import Builder, Texts
from ridgeline.trace.trace import Origin, Trace

BYTES_PER_EVENT = 400
"""Memory taken for each event at the peak of reading and analysing. 150 to 290 bytes were measured
on traces of 1 to 15 million events."""
ALWAYS_READ_EVENTS = CAPACITY
"""Traces of up to this many events (50 MB of text) are read without asking for the free memory:
asking takes longer than reading a small trace."""
MAX_MEMORY_SHARE = 0.5
"""A trace that needs a larger share of the free memory is refused."""


def parse(path: Path, max_events: int | None = None) -> Trace:
    """Return the trace, read from the file itself and not from the cache. Raise RidgelineError if
    it has more than `max_events` events; by default, more than memory has room for."""
    limit = max_events
    source = Source(path)
    decoder = _decoder(path)
    document = Document(source.blocks(), decoder)
    builder = Builder()
    texts = Texts(decoder)
    for chunk in document.chunks():
        builder.add(chunk, texts)
        if limit is None and builder.rows > ALWAYS_READ_EVENTS:
            limit = event_limit()
        refuse_beyond(limit, builder.rows, path, max_events is None)
    if not document.found:
        raise RidgelineError(*_not_a_trace(path, source, document))
    raw = decoder.texts()
    tables, decoded, lanes = builder.finish(raw, document.named)
    origin = Origin(
        path=str(path),
        compression=source.compression,
        text_bytes=source.text_bytes,
        events=builder.rows + decoder.flows + document.named_count,
        flows=decoder.flows,
        truncated=source.truncated or document.truncated,
        unverified=source.unverified,
        losses=document.losses,
        digest=source.digest,
    )
    found: dict[str, Events] = dict(tables)
    return Trace(
        origin,
        metadata_of(document.beside),
        decoded,
        lanes,
        found.__getitem__,
    )


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


SMALL = 4 << 20
"""A file below this is read before a compiler would have finished: nothing is built for it."""


def _decoder(path: Path) -> Decoder:
    try:
        small = path.stat().st_size < SMALL
    except (OSError, ValueError):
        small = True  # the source says what is wrong with it
    library = compiled.library(build=not small)
    return Portable() if library is None else compiled.Compiled(library)


def _not_a_trace(path: Path, source: Source, document: Document) -> tuple[str, str]:
    hint = "a trace is what torch.profiler's export_chrome_trace writes: JSON with `traceEvents`"
    if source.text_bytes == 0:
        if source.truncated:
            return f"{path}: {source.truncated}; nothing could be read", hint
        return f"{path}: the file is empty", "was the program killed before it wrote the trace?"
    keys: Any = document.beside
    if "traceEvents" in keys:
        return f"{path}: not a PyTorch trace: its `traceEvents` is no list", hint
    if keys:
        listed = ", ".join(repr(str(k)[:30]) for k in list(keys)[:4])
        return f"{path}: JSON, but not a PyTorch trace: it has {listed}, no `traceEvents`", hint
    if source.truncated:
        return f"{path}: {source.truncated}, before the first event", hint
    return f"{path}: not a PyTorch trace", hint
