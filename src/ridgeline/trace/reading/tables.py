"""Rows of all sorts to one table a sort: only the columns that sort has, ordered by start."""

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
from ridgeline.trace.reading.event import Chunk
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

_HOME = {
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


def home_of(kind: Kind) -> str:
    """The table that rows of this kind are in."""
    return _HOME.get(kind, "others")


class Builder:
    """Takes chunks as they come; `finish` gives the tables and the lanes."""

    def __init__(self) -> None:
        self._parts: dict[str, list[dict[str, NDArray[Any]]]] = {name: [] for name in TABLES}
        self._raw_kinds: dict[int, Kind] = {}
        self.rows = 0

    def add(self, chunk: Chunk, texts: "Texts") -> None:
        self.rows += len(chunk["ts"])
        kinds = self._kinds(chunk, texts)
        homes = np.array([list(TABLES).index(_HOME.get(k, "others")) for k in Kind], np.uint8)
        home = homes[kinds]
        for index, (name, table) in enumerate(TABLES.items()):
            rows = np.flatnonzero(home == index)
            if len(rows):
                part = {c: chunk[c][rows] for c in table.columns() if c != "kind"}
                self._parts[name].append({"kind": kinds[rows], **part})

    def _kinds(self, chunk: Chunk, texts: "Texts") -> NDArray[np.uint8]:
        """By phase and category; the pair is looked up once, its rows all at once."""
        category = chunk["category"].astype(np.int64)
        # without a category the process decides, with "[memory]" the name
        bare = category < 0
        category[bare] = -1 - chunk["lane"][bare]
        key = category * 256 + chunk["phase"]
        found, rows = np.unique(key, return_inverse=True)
        kinds = np.array([self._kind(int(k), texts) for k in found], np.uint8)[rows]
        instants = np.flatnonzero(kinds == Kind.INSTANT)
        if len(instants):
            names, at = np.unique(chunk["name"][instants], return_inverse=True)
            memory = np.array([_text(texts.raw(int(n))) == "[memory]" for n in names])[at]
            kinds[instants[memory]] = Kind.MEMORY
        return kinds

    def _kind(self, key: int, texts: "Texts") -> Kind:
        if key not in self._raw_kinds:
            category, phase = key >> 8, chr(key & 0xFF)
            if category >= 0:
                kind = kind_of(phase, _text(texts.raw(category)))
            else:
                pid = texts.raw(-1 - category).split(b"\n")[0].decode("utf-8", "replace")
                kind = kind_of(phase, "", pid.strip('"'))
            self._raw_kinds[key] = kind
        return self._raw_kinds[key]

    def finish(
        self, texts: Sequence[bytes], named: Sequence[Any]
    ) -> tuple[dict[str, Events], list[str], list[Lane]]:
        """Tables in order of start, decoded texts, and whose lanes the rows are on."""
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
        lanes = lanes_of([int(code) for code in codes], texts, named)
        same = same_names(lanes)
        for name, table_ in tables.items():
            ordered = table_.take(_order(table_))
            lane = same[np.searchsorted(codes, ordered.lane)]
            tables[name] = replace(ordered, lane=lane)
        calls, ops = tables["calls"], tables["ops"]
        assert isinstance(calls, Calls)
        assert isinstance(ops, Ops)
        tables["calls"] = replace(calls, lane=aliases(calls, ops, len(lanes))[calls.lane])
        return tables, decoded, lanes


class Texts:
    """Raw texts by code, taken from a decoder only when one is asked for that is not known."""

    def __init__(self, decoder: Any) -> None:
        self._decoder = decoder
        self._known: list[bytes] = []

    def raw(self, code: int) -> bytes:
        if code >= len(self._known):
            self._known = self._decoder.texts()
        return self._known[code]


def lanes_of(codes: Sequence[int], texts: Sequence[bytes], named: Sequence[Any]) -> list[Lane]:
    """Each lane with the names the metadata events gave its process and thread."""
    process: dict[str, str] = {}
    labels: dict[str, str] = {}
    thread: dict[tuple[str, str], str] = {}
    for entry in named:
        told = entry.args.get("name", entry.args.get("labels"))
        if not isinstance(told, str):
            continue
        if entry.what == "process_name":
            process[entry.pid] = told
        elif entry.what == "process_labels":
            labels[entry.pid] = told
        elif entry.what == "thread_name":
            thread[entry.pid, entry.tid] = told
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


def _joined(parts: list[dict[str, NDArray[Any]]], table: type[Events]) -> dict[str, NDArray[Any]]:
    columns: dict[str, NDArray[Any]] = {}
    for column in table.columns():
        dtype = np.dtype("|u1" if column == "kind" else RAW[column])
        pieces = [part.pop(column) for part in parts]
        columns[column] = np.concatenate(pieces) if pieces else np.empty(0, dtype)
    return columns


def _split_annotations(ops: Events, spans: Events, texts: Sequence[str]) -> tuple[Events, Events]:
    """Old traces list steps and optimizer spans among the operators."""
    found, rows = np.unique(ops.name, return_inverse=True)
    named = np.array([is_annotation(texts[int(code)]) for code in found], dtype=bool)
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
    """By start, the longer first: two keys, but the second only for rows that tie."""
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


def _decode(texts: Sequence[bytes]) -> tuple[list[str], NDArray[np.int32] | None]:
    """Raw texts decoded, and where two spellings mean one text, which code stands for both."""
    decoded = [_text(raw) for raw in texts]
    first: dict[str, int] = {}
    merged = np.arange(len(decoded), dtype=np.int32)
    for code, text in enumerate(decoded):
        merged[code] = first.setdefault(text, code)
    if len(first) == len(decoded):
        return decoded, None
    return decoded, merged


def _text(raw: bytes) -> str:
    if b"\\" not in raw:
        return raw.decode("utf-8", "replace")
    text = raw.decode("utf-8", "replace")
    if raw.startswith(b'"'):
        return text  # arguments, which are JSON themselves
    try:
        told = str(json.loads(f'"{text}"', strict=False))
    except ValueError:
        return text
    return told.encode("utf-8", "replace").decode()  # half a surrogate pair cannot be printed


def same_names(lanes: Sequence[Lane]) -> NDArray[np.int32]:
    """For each lane the first one with the same process and thread."""
    first: dict[tuple[str, str], int] = {}
    found = [first.setdefault((lane.pid, lane.tid), i) for i, lane in enumerate(lanes)]
    return np.array(found, np.int32)


def aliases(calls: Calls, ops: Ops, lanes: int) -> NDArray[np.int32]:
    """For each lane the one its calls belong to: that of the operators they name as theirs.

    Only lanes with calls and no operators are moved, and only if one thread's operators own
    at least nine of ten of the calls that name one.
    """
    alias = np.arange(lanes, dtype=np.int32)
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
        if held.any() and owners.max() >= 0.9 * owners.sum():
            alias[lane] = owners.argmax()
    return alias
