"""SQL queries on traces. A query can read the traces, and nothing else on the machine."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.errors import RidgelineError, UsageError
from ridgeline.trace.columns import Events, Kind
from ridgeline.trace.links import nested, own_time
from ridgeline.trace.trace import Trace

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection
from pathlib import Path

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
    """A view that a query may name."""

    name: str
    columns: tuple[str, ...]


MAX_ROWS = 1_000_000
"""The largest number of rows of an answer. `-o FILE.parquet` writes more."""

_UNKNOWN = re.compile(
    r"Table with name .* does not exist|Referenced (?:column|table) .* not found|"
    r"does not have a column named|column .* (?:not found|does not exist)",
    re.IGNORECASE,
)
"""The wording of DuckDB's errors for an unknown name."""


def query(
    traces: Sequence[Trace], sql: str, most: int = MAX_ROWS
) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    """Return the column names and the rows; one row more than `most` where there are more."""
    import duckdb

    connection = connect()
    try:
        views = register(connection, traces)
        # after the views were made: from here on no file can be read or written
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
        try:
            answer = connection.execute(sql)
            if answer is None or answer.description is None:
                return (), []
            columns = tuple(str(column[0]) for column in answer.description)
            return columns, answer.fetchmany(most + 1)
        except duckdb.Error as error:
            if isinstance(error, _engine_errors(duckdb)):
                raise RidgelineError(_sentence(error)) from error
            hint = _hint(views) if _UNKNOWN.search(str(error)) else ""
            raise UsageError(_sentence(error), hint) from error
        except UnicodeError as error:
            raise UsageError("the query is not valid text") from error
    finally:
        connection.close()


def _sentence(error: Exception) -> str:
    """Return the first paragraph of DuckDB's error, which stands before a copy of the query."""
    message = str(error).split("\n\n")[0].split("\nLINE ")[0]
    return f"the query failed: {' '.join(message.split())}"


def _engine_errors(duckdb: Any) -> tuple[type[Exception], ...]:
    """Return the errors that are no fault of the query: out of memory, or a fault of the engine."""
    names = ("OutOfMemoryException", "InternalException", "FatalException")
    return tuple(getattr(duckdb, name) for name in names if hasattr(duckdb, name))


def _hint(views: Sequence[View]) -> str:
    """Return the columns that all views have, and a line for each view with its further columns."""
    common = [c for c in views[0].columns if all(c in v.columns for v in views)]
    width = max(len(v.name) for v in views)
    lines = [f"every view has {', '.join(common)}; and"]
    for view in views:
        own = ", ".join(c for c in view.columns if c not in common)
        lines.append(f"    {view.name:{width}}  {own or '(no more)'}")
    return "\n".join(lines)


def connect() -> "DuckDBPyConnection":
    """Open a database in memory that writes nothing to disk and cannot read the variables of this
    process."""
    import duckdb

    for name in ("python_enable_replacements", "python_enable_replacement_scans"):
        try:
            return duckdb.connect(config={"temp_directory": "", name: "false"})
        except duckdb.Error:  # the option is called otherwise in other versions
            continue
    return duckdb.connect(config={"temp_directory": ""})


def register(connection: "DuckDBPyConnection", traces: Sequence[Trace]) -> tuple[View, ...]:
    """Make the views; with several traces, each row has its rank."""
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
    columns = connection.execute(f"SELECT * FROM {name} LIMIT 0").description or ()
    return View(name, tuple(str(column[0]) for column in columns))


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
    """Return the query for one table with its texts, in the order of COLUMNS."""
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
    """Return a text without halves of a character, which cannot be written as UTF-8."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def write_parquet(traces: Trace | Sequence[Trace], path: Path) -> None:
    """Write all events, ordered by start; several traces get a `rank` column. The file appears
    complete, by rename, or not at all."""
    import duckdb

    all_traces = (traces,) if isinstance(traces, Trace) else tuple(traces)
    scratch = path.with_name(f".{path.name}.part")
    connection = connect()
    try:
        register(connection, all_traces)
        target = str(scratch).replace("'", "''")
        connection.execute(
            f"COPY (SELECT * FROM events ORDER BY ts_ns, dur_ns DESC) TO '{target}' "
            "(FORMAT parquet, COMPRESSION zstd)"
        )
        scratch.replace(path)
    except (duckdb.Error, OSError) as error:
        raise RidgelineError(
            f"{path} could not be written: {str(error).splitlines()[0]}"
        ) from error
    finally:
        connection.close()
        scratch.unlink(missing_ok=True)
