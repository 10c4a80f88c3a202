"""Any question to a trace, as SQL; the query sees the trace and nothing else of the machine."""

import re
from collections.abc import Sequence
from typing import Any

from ridgeline.errors import RidgelineError, UsageError
from ridgeline.trace.exports.views import View, connect, register
from ridgeline.trace.trace import Trace

MOST_ROWS = 1_000_000
"""An answer beyond it is a dump: -o FILE.parquet writes all events."""

_UNKNOWN = re.compile(
    r"Table with name .* does not exist|Referenced (?:column|table) .* not found|"
    r"does not have a column named|column .* (?:not found|does not exist)",
    re.IGNORECASE,
)
"""DuckDB's words for a name it does not know."""


def query(
    traces: Sequence[Trace], sql: str, most: int = MOST_ROWS
) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    """Column names and rows, one row more than `most` where there are more."""
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
            if isinstance(error, _not_the_querys(duckdb)):
                raise RidgelineError(_sentence(error)) from error
            hint = _hint(views) if _UNKNOWN.search(str(error)) else ""
            raise UsageError(_sentence(error), hint) from error
        except UnicodeError as error:
            raise UsageError("the query is not valid text") from error
    finally:
        connection.close()


def _sentence(error: Exception) -> str:
    """DuckDB's first paragraph: what it says before it repeats the query."""
    told = str(error).split("\n\n")[0].split("\nLINE ")[0]
    return f"the query failed: {' '.join(told.split())}"


def _not_the_querys(duckdb: Any) -> tuple[type[Exception], ...]:
    """What goes wrong with a sound query: memory, a fault of the engine."""
    names = ("OutOfMemoryException", "InternalException", "FatalException")
    return tuple(getattr(duckdb, name) for name in names if hasattr(duckdb, name))


def _hint(views: Sequence[View]) -> str:
    """A line a view, with what it has beside the columns that all have."""
    common = [c for c in views[0].columns if all(c in v.columns for v in views)]
    width = max(len(v.name) for v in views)
    lines = [f"every view has {', '.join(common)}; and"]
    for view in views:
        own = ", ".join(c for c in view.columns if c not in common)
        lines.append(f"    {view.name:{width}}  {own or '(no more)'}")
    return "\n".join(lines)
