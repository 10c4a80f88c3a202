"""A trace's tables in DuckDB, without copying them: numpy columns scanned in place, texts joined.

Views: events (all of them), device_ops, kernels, ops, annotations, calls, frames, memory, syncs.
Times are nanoseconds; `ts_ns` counts from the file's own zero. What an event does not have is NULL.
Rows that lie inside each other (operators, annotations, Python functions) have `self_ns` beside
`dur_ns`: a sum of `dur_ns` counts an inner row once more for each row around it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.trace.analyses.tree import own_time
from ridgeline.trace.columns import Events
from ridgeline.trace.kinds import Kind
from ridgeline.trace.links import nested
from ridgeline.trace.trace import Trace

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

COLUMNS = {
    "kind": "kind", "name": "name", "ts_ns": "ts", "dur_ns": "dur", "self_ns": "own", "pid": "pid",
    "tid": "tid", "thread": "thread", "device": "device", "stream": "stream",
    "correlation": "correlation", "external_id": "external", "bytes": "bytes",
    "allocated": "allocated", "reserved": "reserved", "sequence": "sequence", "graph": "graph",
    "graph_node": "graph_node", "frame": "frame", "parent": "parent", "shape": "shape",
    "info": "info",
}  # fmt: skip
"""Each column of `events`, and the column of a table that fills it."""

_TEXTS = ("name", "shape", "info")
_LANES = ("pid", "tid", "thread")
NESTED = ("ops", "annotations", "frames")
TABLES = ("device", "ops", "annotations", "calls", "frames", "memory", "syncs", "others")


@dataclass(frozen=True, slots=True)
class View:
    """What a query may name."""

    name: str
    columns: tuple[str, ...]


def connect() -> "DuckDBPyConnection":
    """In memory, nothing spilt to disk, no look at this process' own variables."""
    import duckdb

    for name in ("python_enable_replacements", "python_enable_replacement_scans"):
        try:
            return duckdb.connect(config={"temp_directory": "", name: "false"})
        except duckdb.Error:  # the option is called otherwise in other versions
            continue
    return duckdb.connect(config={"temp_directory": ""})


def register(connection: "DuckDBPyConnection", traces: Sequence[Trace]) -> tuple[View, ...]:
    """Make the views; with several traces each row says its rank."""
    several = len(traces) > 1
    parts: dict[str, list[str]] = {name: [] for name in TABLES}
    for number, trace in enumerate(traces):
        _register_texts(connection, trace, number)
        for name in TABLES:
            table: Events = getattr(trace, name)
            source = f"_{name}_{number}"
            arrays = _arrays(table)
            if name in NESTED:
                arrays["own"] = own_time(nested(table), table.dur)
            connection.register(source, arrays)
            rank = trace.metadata.rank if trace.metadata.rank is not None else number
            lead = f"{rank}::INTEGER AS rank, " if several else ""
            parts[name].append(_select(set(arrays), source, number, lead))
    views = []
    for name, view in (("device", "device_ops"), ("others", ""), *((t, t) for t in TABLES[1:-1])):
        if view:
            connection.execute(f"CREATE VIEW {view} AS {' UNION ALL '.join(parts[name])}")
            views.append(view)
    connection.execute("CREATE VIEW kernels AS SELECT * FROM device_ops WHERE kind = 'kernel'")
    everything = " UNION ALL BY NAME ".join(part for name in TABLES for part in parts[name])
    wanted = ", ".join((*(("rank",) if several else ()), *COLUMNS))
    connection.execute(f"CREATE VIEW events AS SELECT {wanted} FROM ({everything})")
    return tuple(_described(connection, name) for name in ("events", "kernels", *views))


def _described(connection: "DuckDBPyConnection", name: str) -> View:
    found = connection.execute(f"SELECT * FROM {name} LIMIT 0").description or ()
    return View(name, tuple(str(column[0]) for column in found))


def _arrays(table: Events) -> dict[str, NDArray[Any]]:
    return {column: np.ascontiguousarray(getattr(table, column)) for column in table.columns()}


def _register_texts(connection: "DuckDBPyConnection", trace: Trace, number: int) -> None:
    texts = np.array([_valid(text) for text in trace.texts] or [""], dtype=object)
    connection.register(
        f"_texts_{number}", {"code": np.arange(len(texts), dtype=np.int32), "text": texts}
    )
    lanes = trace.lanes
    connection.register(
        f"_lanes_{number}",
        {
            "lane": np.arange(max(len(lanes), 1), dtype=np.int32),
            "pid": np.array([_valid(x.pid) for x in lanes] or [""], dtype=object),
            "tid": np.array([_valid(x.tid) for x in lanes] or [""], dtype=object),
            "thread": np.array([_valid(x.thread) for x in lanes] or [""], dtype=object),
        },
    )
    kinds = [(int(kind), kind.name.lower()) for kind in Kind]
    connection.register(
        f"_kinds_{number}",
        {
            "kind": np.array([k for k, _ in kinds], dtype=np.uint8),
            "text": np.array([name for _, name in kinds], dtype=object),
        },
    )


def _select(has: set[str], source: str, number: int, lead: str) -> str:
    """One table with its texts; columns in the order of COLUMNS, those it has."""
    chosen, joins = [], [
        f"LEFT JOIN _lanes_{number} l ON l.lane = t.lane",
        f"LEFT JOIN _kinds_{number} k ON k.kind = t.kind",
    ]  # fmt: skip
    for column, from_column in COLUMNS.items():
        if column == "kind":
            chosen.append("k.text AS kind")
        elif column in _LANES:
            chosen.append(f"l.{column} AS {column}")
        elif from_column not in has:
            continue
        elif from_column in _TEXTS:
            joins.append(f"LEFT JOIN _texts_{number} {column}_ ON {column}_.code = t.{from_column}")
            text = f"{column}_.text"  # arguments are kept without the braces of their object
            chosen.append(
                f"{text} AS name" if column == "name" else f"'{{' || {text} || '}}' AS {column}"
            )
        elif column in ("ts_ns", "dur_ns", "self_ns") or (column == "bytes" and "allocated" in has):
            chosen.append(f"t.{from_column} AS {column}")  # a release has negative bytes
        else:
            absent = 0 if column == "bytes" else -1
            chosen.append(f"nullif(t.{from_column}, {absent}) AS {column}")
    return f"SELECT {lead}{', '.join(chosen)} FROM {source} t {' '.join(joins)}"


def _valid(text: str) -> str:
    """Halves of a character cannot be written as UTF-8."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
