"""Sorts rows into tables: one for each kind of event, with its own columns, ordered by start."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.trace.columns import (
    RAW,
    Allocations,
    Calls,
    DeviceOps,
    Events,
    Frames,
    Kind,
    Ops,
    Others,
    Syncs,
    is_annotation,
    kind_of,
)
from ridgeline.trace.reading.event import Chunk, Decoder, Named
from ridgeline.trace.trace import Lane

TABLES: dict[str, type[Events]] = {
    "ops": Ops,
    "annotations": Ops,
    "calls": Calls,
    "device": DeviceOps,
    "syncs": Syncs,
    "frames": Frames,
    "memory": Allocations,
    "others": Others,
}

_TABLE_OF_KIND = {
    Kind.OP: "ops",
    Kind.ANNOTATION: "annotations",
    Kind.RUNTIME: "calls",
    Kind.DRIVER: "calls",
    Kind.KERNEL: "device",
    Kind.MEMCPY: "device",
    Kind.MEMSET: "device",
    Kind.SYNC: "syncs",
    Kind.FRAME: "frames",
    Kind.MEMORY: "memory",
}
MIN_OWNED_CALLS_SHARE = 0.9
"""A thread's calls belong to another thread if operators of that thread own at least this share of
the calls that name an operator."""


def table_of(kind: Kind) -> str:
    """Return the name of the table that holds rows of this kind."""
    return _TABLE_OF_KIND.get(kind, "others")


def dtype_of(column: str) -> np.dtype[Any]:
    return np.dtype("|u1" if column == "kind" else RAW[column])


class Texts:
    """Raw texts by code. They are taken from the decoder again if a code is not known yet."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._known: list[bytes] = []

    def raw(self, code: int) -> bytes:
        if code >= len(self._known):
            self._known = self._decoder.texts()
        return self._known[code]


class TableBuilder:
    """Takes chunks as they come; `finish` returns the tables and the lanes."""

    def __init__(self) -> None:
        self._parts: dict[str, list[dict[str, NDArray[Any]]]] = {name: [] for name in TABLES}
        self._kind_of_key: dict[int, Kind] = {}
        self.rows = 0

    def add(self, chunk: Chunk, texts: Texts) -> None:
        self.rows += len(chunk["ts"])
        kinds = self._kinds(chunk, texts)
        table_index = np.array([list(TABLES).index(table_of(k)) for k in Kind], np.uint8)[kinds]
        for index, (name, table) in enumerate(TABLES.items()):
            rows = np.flatnonzero(table_index == index)
            if len(rows):
                part = {c: chunk[c][rows] for c in table.columns() if c != "kind"}
                self._parts[name].append({"kind": kinds[rows], **part})

    def _kinds(self, chunk: Chunk, texts: Texts) -> NDArray[np.uint8]:
        """Return the kind of each row, from its phase and category. Each distinct pair is looked up
        once."""
        category = chunk["category"].astype(np.int64)
        # Without a category the process decides, with "[memory]" the name.
        bare = category < 0
        category[bare] = -1 - chunk["lane"][bare]
        keys, rows = np.unique(category * 256 + chunk["phase"], return_inverse=True)
        kinds = np.array([self._kind(int(k), texts) for k in keys], np.uint8)[rows]
        instants = np.flatnonzero(kinds == Kind.INSTANT)
        if len(instants):
            names, at = np.unique(chunk["name"][instants], return_inverse=True)
            memory = np.array([_text(texts.raw(int(n))) == "[memory]" for n in names])[at]
            kinds[instants[memory]] = Kind.MEMORY
        return kinds

    def _kind(self, key: int, texts: Texts) -> Kind:
        if key not in self._kind_of_key:
            category, phase = key >> 8, chr(key & 0xFF)
            if category >= 0:
                kind = kind_of(phase, _text(texts.raw(category)))
            else:
                pid = texts.raw(-1 - category).split(b"\n")[0].decode("utf-8", "replace")
                kind = kind_of(phase, "", pid.strip('"'))
            self._kind_of_key[key] = kind
        return self._kind_of_key[key]

    def finish(
        self, texts: Sequence[bytes], named: Sequence[Named]
    ) -> tuple[dict[str, Events], list[str], list[Lane]]:
        """Return the tables in order of start, the decoded texts, and the lanes of the rows."""
        decoded, merged = _decode(texts)
        tables = {}
        for name, table in TABLES.items():
            columns = _joined(self._parts.pop(name), table)
            for column in ("name", "shape", "info"):
                if merged is not None and column in columns:
                    columns[column] = np.where(
                        columns[column] >= 0, merged[columns[column]], columns[column]
                    )
            tables[name] = table(**columns)
        tables["ops"], tables["annotations"] = _split_annotations(
            tables["ops"], tables["annotations"], decoded
        )
        codes = np.unique(np.concatenate([t.lane for t in tables.values()]))
        lanes = _lanes([int(code) for code in codes], texts, named)
        first_alike = _first_lane_alike(lanes)
        for name, table_ in tables.items():
            ordered = table_.take(_order(table_))
            lane = first_alike[np.searchsorted(codes, ordered.lane)]
            tables[name] = replace(ordered, lane=lane)
        calls, ops = tables["calls"], tables["ops"]
        assert isinstance(calls, Calls)
        assert isinstance(ops, Ops)
        tables["calls"] = replace(calls, lane=_lanes_of_calls(calls, ops, len(lanes))[calls.lane])
        return tables, decoded, lanes


def _joined(parts: list[dict[str, NDArray[Any]]], table: type[Events]) -> dict[str, NDArray[Any]]:
    columns: dict[str, NDArray[Any]] = {}
    for column in table.columns():
        pieces = [part.pop(column) for part in parts]
        columns[column] = np.concatenate(pieces) if pieces else np.empty(0, dtype_of(column))
    return columns


def _split_annotations(ops: Events, spans: Events, texts: Sequence[str]) -> tuple[Events, Events]:
    """Move steps and optimizer spans from the operators, where old traces have them, to the
    annotations."""
    names, rows = np.unique(ops.name, return_inverse=True)
    named = np.array([is_annotation(texts[int(code)]) for code in names], dtype=bool)
    if not named.any():
        return ops, spans
    moved = named[rows]
    columns = {
        column: np.concatenate([getattr(spans, column), getattr(ops, column)[moved]])
        for column in spans.columns()
    }
    columns["kind"] = np.full(len(columns["ts"]), Kind.ANNOTATION, np.uint8)
    return ops.take(~moved), type(spans)(**columns)


def _order(table: Events) -> NDArray[np.int64]:
    """Return the order by start, the longer first. The second key is used only for rows that
    tie."""
    order = np.argsort(table.ts, kind="stable")
    ts, dur = table.ts[order], table.dur[order]
    same = ts[1:] == ts[:-1]
    if not (same & (dur[1:] > dur[:-1])).any():
        return order
    tied = np.zeros(len(ts), bool)
    tied[1:] |= same
    tied[:-1] |= same
    rows = np.flatnonzero(tied)
    order[rows] = order[rows][np.lexsort((-dur[rows], ts[rows]))]
    return order


# ------------------------------------------------------------ lanes
# A thread has one lane, though files name the same thread in two ways. Until 2021 operators carried
# the thread id as text and runtime calls as a number; some builds write a call's pthread id where
# the operators have the system's. Left alone, no call would lie inside the operator that made it.


def _lanes(codes: Sequence[int], texts: Sequence[bytes], named: Sequence[Named]) -> list[Lane]:
    """Return each lane with the names that metadata events gave its process and thread."""
    process: dict[str, str] = {}
    labels: dict[str, str] = {}
    thread: dict[tuple[str, str], str] = {}
    for entry in named:
        name = entry.args.get("name", entry.args.get("labels"))
        if not isinstance(name, str):
            continue
        if entry.what == "process_name":
            process[entry.pid] = name
        elif entry.what == "process_labels":
            labels[entry.pid] = name
        elif entry.what == "thread_name":
            thread[entry.pid, entry.tid] = name
    lanes = []
    for code in codes:
        pid, _, tid = texts[code].decode("utf-8", "replace").partition("\n")
        lanes.append(
            Lane(
                pid=_plain(pid),
                tid=_plain(tid),
                process=process.get(pid, ""),
                thread=thread.get((pid, tid), ""),
                labels=labels.get(pid, ""),
            )
        )
    return lanes


def _plain(token: str) -> str:
    try:
        value = json.loads(token, strict=False)
    except ValueError:
        return token
    return value if isinstance(value, str) else token


def _first_lane_alike(lanes: Sequence[Lane]) -> NDArray[np.int32]:
    """Return for each lane the first one with the same process and thread."""
    first: dict[tuple[str, str], int] = {}
    return np.array(
        [first.setdefault((lane.pid, lane.tid), i) for i, lane in enumerate(lanes)], np.int32
    )


def _lanes_of_calls(calls: Calls, ops: Ops, lanes: int) -> NDArray[np.int32]:
    """Return for each lane the lane that its calls belong to: that of the operators which the calls
    name as theirs. Only lanes with calls and no operators are moved."""
    owner_lane = np.arange(lanes, dtype=np.int32)
    has_ops = np.bincount(ops.lane, minlength=lanes) > 0
    order = np.argsort(ops.external, kind="stable")
    ordered = ops.external[order]
    for lane in np.unique(calls.lane):
        if has_ops[lane]:
            continue
        wanted = calls.external[(calls.lane == lane) & (calls.external > 0)]
        at = np.minimum(np.searchsorted(ordered, wanted), max(len(ordered) - 1, 0))
        held = wanted == ordered[at] if len(ordered) else np.zeros(len(wanted), bool)
        owners = np.bincount(ops.lane[order[at[held]]], minlength=1)
        if held.any() and owners.max() >= MIN_OWNED_CALLS_SHARE * owners.sum():
            owner_lane[lane] = owners.argmax()
    return owner_lane


# ------------------------------------------------------------ texts


def _decode(texts: Sequence[bytes]) -> tuple[list[str], NDArray[np.int32] | None]:
    """Decode raw texts. If several spellings mean one text, also return for each code the one that
    stands for all of them."""
    decoded = [_text(raw) for raw in texts]
    first: dict[str, int] = {}
    merged = np.array([first.setdefault(t, code) for code, t in enumerate(decoded)], np.int32)
    return decoded, None if len(first) == len(decoded) else merged


def _text(raw: bytes) -> str:
    text = raw.decode("utf-8", "replace")
    if b"\\" not in raw or raw.startswith(b'"'):  # a quote: arguments, which are JSON themselves
        return text
    try:
        meant = str(json.loads(f'"{text}"', strict=False))
    except ValueError:
        return text
    return meant.encode("utf-8", "replace").decode()  # half a surrogate pair cannot be printed
