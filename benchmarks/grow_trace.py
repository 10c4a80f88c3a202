"""Grow a real trace to a million events or more: copies in a row, times shifted, ids renumbered.

    python benchmarks/grow_trace.py trace.json.gz grown.json.gz --events 5000000

Each copy begins where the last one ended; correlation, external, Python, flow and sequence ids and
step numbers get new values, so that nothing links across copies. The layout is torch 2.11's:
several keys a line, arguments on a line of their own. Repetition flatters gzip's ratio and the
number of distinct texts; everything else is as in a long recording.
"""

import argparse
import gzip
import json
import re
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

RENUMBERED = (
    "External id", "external id", "correlation", "Python id", "Python parent id", "Ev Idx",
    "Sequence number", "Profiler Event Index", "wait_on_cuda_event_record_corr_id",
    "Record function id",
)  # fmt: skip
_STEP = re.compile(r"(ProfilerStep#)(\d+)")


def grow(source: Path, target: Path, events: int) -> int:
    """Write at least `events` events; returns how many."""
    packed = source.read_bytes()
    text = gzip.decompress(packed) if packed[:2] == b"\x1f\x8b" else packed
    document = json.loads(text, strict=False, parse_float=Decimal)
    found = [e for e in document.pop("traceEvents") if isinstance(e, dict)]
    timed = [e for e in found if "ts" in e and e.get("ph") != "M"]
    named = [e for e in found if e.get("ph") == "M"]
    first = min(Decimal(e["ts"]) for e in timed)
    last = max(Decimal(e["ts"]) + Decimal(e.get("dur", 0)) for e in timed)
    period = int(last - first) + 1000
    jump = 1 + max(_ids(timed), default=0)
    steps = len({e["name"] for e in timed if _STEP.match(str(e.get("name")))})
    copies = max(1, -(-(events - len(named)) // len(timed)))
    templates = [_template(e) for e in timed]
    with gzip.open(target, "wt", 1) if target.suffix == ".gz" else target.open("w") as file:
        head = json.dumps(document, default=float)[:-1]
        file.write(head + (", " if document else "") + '"traceEvents": [\n')
        file.write(",\n".join(json.dumps(e, default=float) for e in named))
        for copy in range(copies):
            add = {"ts": copy * period, "id": copy * jump, "step": copy * steps}
            lines = [
                form % tuple(_shifted(value, add[what]) for what, value in slots)
                for form, slots in templates
            ]
            file.write((",\n" if named or copy else "") + ",\n".join(lines))
        file.write('\n],\n"traceName": "grown.json"}\n')
    return len(named) + copies * len(timed)


def _ids(events: list[dict[str, Any]]) -> Iterator[int]:
    for event in events:
        if isinstance(event.get("id"), int):
            yield event["id"]
        for key, value in (event.get("args") or {}).items():
            if key in RENUMBERED and isinstance(value, int):
                yield value


Slot = tuple[str, Any]


def _template(event: dict[str, Any]) -> tuple[str, list[Slot]]:
    """The event's text with a %s where a number must move on, and those numbers."""
    slots: list[Slot] = []

    def put(what: str, value: Any) -> str:
        slots.append((what, value))
        return "%s"

    def plain(value: Any) -> str:
        return json.dumps(value, default=float).replace("%", "%%")

    parts = []
    for key, value in event.items():
        if key == "args":
            continue
        if key == "ts":
            parts.append(f'"ts": {put("ts", value)}')
        elif key == "id" and isinstance(value, int):
            parts.append(f'"id": {put("id", value)}')
        elif key == "name" and (step := _STEP.match(str(value))):
            parts.append(f'"name": "{step[1]}{put("step", int(step[2]))}"')
        else:
            parts.append(f"{plain(key)}: {value if isinstance(value, Decimal) else plain(value)}")
    if isinstance(event.get("args"), dict):
        inner = [
            f"{plain(key)}: {put('id', value)}"
            if key in RENUMBERED and isinstance(value, int) and value > 0
            else f"{plain(key)}: {plain(value)}"
            for key, value in event["args"].items()
        ]
        parts.append('"args": {\n      ' + ", ".join(inner) + "\n    }")
    return "  {\n    " + ", ".join(parts) + "\n  }", slots


def _shifted(value: Any, by: int) -> Any:
    return value + by


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--events", type=int, default=1_000_000)
    chosen = parser.parse_args()
    count = grow(chosen.source, chosen.target, chosen.events)
    print(
        f"{chosen.target}: {count:,} events, {chosen.target.stat().st_size:,} bytes",
        file=sys.stderr,
    )


if __name__ == "__main__":
    main()
