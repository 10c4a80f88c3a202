"""SQL over a trace, and its events as Parquet."""

import shlex
from pathlib import Path

import pytest

from ridgeline.errors import RidgelineError, UsageError
from ridgeline.report.views.trace import next_commands
from ridgeline.trace.exports.sql import query, write_parquet
from ridgeline.trace.study import study
from ridgeline.trace.trace import Trace
from tests.unit.trace.traces_made import Made


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    made = Made(distributedInfo={"rank": 1})
    made.op("aten::add", 10, 20, **{"Input Dims": [[2, 3], [2, 3]]})
    made.launch("k", 12, 30, 7, 1)
    made.kernel("k", 50, 9, 2)
    made.kernel("Memcpy HtoD", 60, 4, 3, cat="gpu_memcpy", bytes=4096)
    made.frame("train.py(63): step", 0, 100)
    made.span("ProfilerStep#1", 0, 100)
    made.allocation(11, -512, 1024)
    return made.trace(tmp_path)


def test_names_are_text_and_times_nanoseconds(trace: Trace) -> None:
    columns, rows = query([trace], "select name, count(*) n, sum(dur_ns) d from kernels group by 1")
    assert columns == ("name", "n", "d")
    assert rows == [("k", 2, 16_000)]


@pytest.mark.parametrize(
    ("view", "rows"),
    [("events", 8), ("kernels", 2), ("device_ops", 3), ("ops", 1), ("calls", 1), ("frames", 1),
     ("annotations", 1), ("memory", 1), ("syncs", 0)],
)  # fmt: skip
def test_each_sort_of_event_has_a_view(trace: Trace, view: str, rows: int) -> None:
    assert query([trace], f"select count(*) from {view}")[1] == [(rows,)]


def test_what_an_event_does_not_have_is_null(trace: Trace) -> None:
    _, rows = query([trace], "select kind, bytes, correlation from events order by kind")
    found = {kind: (size, correlation) for kind, size, correlation in rows}
    assert found["memcpy"] == (4096, 3)
    assert found["op"] == (None, None)
    assert found["memory"] == (-512, None)


def test_arguments_are_json(trace: Trace) -> None:
    _, rows = query([trace], "select shape->'$.\"Input Dims\"[0]' from ops")
    assert rows == [("[2,3]",)]


def test_a_call_joins_its_kernel(trace: Trace) -> None:
    sql = "select c.name, k.name from calls c join kernels k using (correlation)"
    assert query([trace], sql)[1] == [("cudaLaunchKernel", "k")]


def test_several_traces_have_a_rank(trace: Trace, tmp_path: Path) -> None:
    other = Made(distributedInfo={"rank": 0}).kernel("z", 0, 1).trace(tmp_path, "other.json")
    _, rows = query([trace, other], "select rank, count(*) from events group by 1 order by 1")
    assert rows == [(0, 1), (1, 8)]


def test_an_empty_trace_can_be_asked(tmp_path: Path) -> None:
    assert query([Made().trace(tmp_path)], "select count(*) from events")[1] == [(0,)]


@pytest.mark.parametrize(
    "sql",
    [
        "copy (select 1) to 'out.csv'",
        "copy (select 1) to '.tmp/out.csv'",
        "select * from read_text('/etc/hostname')",
        "select * from '/etc/hostname'",
        "select * from glob('/*')",
        "attach 'x.db'",
        "set enable_external_access = true",
        "install httpfs",
        "select * from traces",  # a variable of the caller
    ],
)
def test_a_query_cannot_reach_beyond_the_trace(
    trace: Trace, sql: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = sorted(tmp_path.iterdir())
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RidgelineError):
        query([trace], sql)
    assert sorted(tmp_path.iterdir()) == before


def test_a_wrong_query_is_a_sentence_with_the_views(trace: Trace) -> None:
    with pytest.raises(UsageError) as caught:
        query([trace], "select nme from kernels")
    assert '"nme"' in caught.value.message
    assert "\n" not in caught.value.message
    first, *views = caught.value.hint.splitlines()
    assert first.startswith("every view has kind, name, ts_ns, dur_ns")
    assert len(views) == 9
    assert views[1].endswith("bytes, graph, graph_node, info")
    assert views[1].split()[0] == "kernels"


@pytest.mark.parametrize(
    ("sql", "hinted"),
    [
        ("select * from kernel", True),
        ("select k.nme from kernels k", True),
        ("select x.name from kernels k", True),
        ("selec 1", False),
        ("select no_such_function(1)", False),
        ("select 'a'::integer", False),
        ("select * from read_text('/etc/hostname')", False),
    ],
)
def test_the_views_are_told_where_a_name_is_not_known(trace: Trace, sql: str, hinted: bool) -> None:
    with pytest.raises(UsageError) as caught:
        query([trace], sql)
    assert bool(caught.value.hint) == hinted


def test_rows_are_capped_with_one_more_to_tell(trace: Trace) -> None:
    assert len(query([trace], "select * from range(100)", most=10)[1]) == 11


def test_odd_text_can_be_asked_for(tmp_path: Path) -> None:
    trace = Made().kernel("half \ud800 'quoted' \x00", 0, 1).trace(tmp_path)
    ((name,),) = query([trace], "select name from kernels")[1]
    assert name.startswith("half ? 'quoted'")


def test_parquet_holds_every_event_with_its_texts(trace: Trace, tmp_path: Path) -> None:
    import duckdb

    path = tmp_path / "it's.parquet"
    write_parquet(trace, path)
    source = str(path).replace("'", "''")
    rows = duckdb.sql(f"select kind, name, ts_ns, thread from '{source}'").fetchall()
    assert len(rows) == 8
    assert ("kernel", "k", 30_000, "") in rows
    assert [row[2] for row in rows] == sorted(row[2] for row in rows)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["it's.parquet", "made.json"]


def test_parquet_into_nowhere_is_a_sentence(trace: Trace, tmp_path: Path) -> None:
    with pytest.raises(RidgelineError, match="could not be written"):
        write_parquet(trace, tmp_path / "none" / "x.parquet")


def test_the_time_of_nested_operators_adds_up_to_what_the_thread_took(tmp_path: Path) -> None:
    made = Made().op("aten::linear", 0, 100).op("aten::addmm", 10, 80).op("aten::copy_", 20, 30)
    made.op("aten::linear", 200, 50).frame("f", 0, 300).frame("g", 50, 100)
    trace = made.trace(tmp_path)
    _, rows = query([trace], "select name, sum(self_ns) from ops group by 1 order by 1")
    assert rows == [("aten::addmm", 50_000), ("aten::copy_", 30_000), ("aten::linear", 70_000)]
    assert query([trace], "select sum(self_ns) from frames")[1] == [(300_000,)]


def test_the_query_that_a_report_suggests_agrees_with_the_report(tmp_path: Path) -> None:
    made = Made().op("aten::linear", 0, 100).op("aten::addmm", 10, 80).op("aten::copy_", 20, 30)
    path = made.write(tmp_path)
    found, traces = study([path], cache=False)
    command = dict(next_commands(found, (), full=False))["ask it anything"]
    rows = query(traces, shlex.split(command)[-1])[1]
    assert dict(rows) == {row.name: row.host_self_ns for row in found.ops}
