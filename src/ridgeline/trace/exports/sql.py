"""Any question to a trace, as SQL; the query sees the trace and nothing else of the machine."""

from collections.abc import Sequence
from typing import Any

from ridgeline.errors import RidgelineError
from ridgeline.trace.exports.views import View, connect, register
from ridgeline.trace.trace import Trace

MOST_ROWS = 1_000_000
"""An answer beyond it is a dump: -o FILE.parquet writes all events."""


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
            raise RidgelineError(_sentence(error), _hint(views)) from error
        except UnicodeError as error:
            raise RidgelineError("the query is not valid text") from error
    finally:
        connection.close()


def _sentence(error: Exception) -> str:
    """DuckDB's first paragraph: what it says before it repeats the query."""
    told = str(error).split("\n\n")[0].split("\nLINE ")[0]
    return f"the query failed: {' '.join(told.split())}"


def _hint(views: Sequence[View]) -> str:
    return "the views: " + "\n    ".join(f"{v.name}({', '.join(v.columns)})" for v in views)
