"""All events of a trace as one Parquet table, names as text: for pandas, Polars, DuckDB, Spark."""

from collections.abc import Sequence
from pathlib import Path

from ridgeline.errors import RidgelineError
from ridgeline.trace.exports.views import connect, register
from ridgeline.trace.trace import Trace


def write_parquet(traces: Trace | Sequence[Trace], path: Path) -> None:
    """Ordered by start; several traces get a `rank` column. Whole, by rename, or not at all."""
    import duckdb

    found = (traces,) if isinstance(traces, Trace) else tuple(traces)
    scratch = path.with_name(f".{path.name}.part")
    connection = connect()
    try:
        register(connection, found)
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
