"""`ridgeline trace` as a person types it."""

import csv
import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.cold_and_warm import Outcome, Warm
from tests.unit.trace.traces_made import Made

USAGE, NOTHING_READ = 2, 4

IMPORTED = """
import sys
from ridgeline.cli import main
try:
    main()
except SystemExit as end:
    print("exit", end.code, file=sys.stderr)
print(*sorted({name.partition(".")[0] for name in sys.modules}), file=sys.stderr)
"""


def starved(rank: int | None = None, late: float = 0.0) -> Made:
    """Three steps of 1 ms: the loader takes 600 µs, two kernels 150 µs each."""
    beside = {} if rank is None else {"distributedInfo": {"rank": rank, "world_size": 2}}
    made = Made(**beside)
    made.frame("train.py(7): main", 0, 3000)
    for i in range(3):
        t = 1000.0 * i
        made.span(f"ProfilerStep#{i}", t, 1000)
        made.span("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", t, 600)
        made.op("aten::add", t + 610 + late, 30)
        made.launch("add_kernel", t + 615 + late, t + 640 + late, 150, 10 * i + 1)
        made.op("aten::mm", t + 650 + late, 30)
        made.launch("sgemm", t + 655 + late, t + 790 + late, 150, 10 * i + 2)
    return made


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    starved().write(folder, "run.json")
    starved().write(folder, "packed.json.gz")
    (folder / "ranks").mkdir()
    for rank in range(2):
        starved(rank, 50.0 * rank).write(folder / "ranks", f"rank{rank}.json.gz")
    (folder / "mixed").mkdir()
    starved().write(folder / "mixed", "good.json")
    (folder / "mixed" / "notes.json").write_text('{"lr": 1}')
    (folder / "empty").mkdir()
    (folder / "bad.json").write_text("hello")
    return folder


def trace(warm: Warm, runs: Path, *arguments: str) -> Outcome:
    done = warm(("trace", *arguments), runs)
    assert "Traceback" not in done.err
    return done


def test_the_json_says_why_the_device_idled(warm: Warm, runs: Path) -> None:
    done = trace(warm, runs, "run.json", "--json")
    assert done.code == 0, done.err
    found = done.document
    assert found["schema"] == "ridgeline.trace/1"
    # from the first kernel's start at 640 µs to the last one's end at 2940
    assert found["window"]["ms"] == pytest.approx(2.3)
    assert found["device"]["busy_ms"] == pytest.approx(0.9)
    assert found["device"]["idle_pct"] == pytest.approx(100 * 1.4 / 2.3)
    assert found["idle_causes"][0]["cause"] == "input"
    assert sum(c["ms"] for c in found["idle_causes"]) == pytest.approx(1.4)
    assert {k["name"] for k in found["kernels"]} == {"add_kernel", "sgemm"}


def test_the_terminal_says_the_verdict_first(warm: Warm, runs: Path) -> None:
    done = trace(warm, runs, "packed.json.gz")
    assert done.code == 0, done.err
    first = next(line for line in done.out.splitlines() if line.strip())
    assert "input" in first
    assert "\x1b" not in done.out
    assert "why the device was idle" in done.out
    assert "ridgeline trace packed.json.gz --full" in done.out


def test_a_folder_is_the_ranks_of_a_job(warm: Warm, runs: Path) -> None:
    found = trace(warm, runs, "ranks", "--json").document
    assert [Path(f).name for f in found["files"]] == ["rank0.json.gz", "rank1.json.gz"]
    assert [d["rank"] for d in found["devices"]] == [0, 1]
    same = trace(warm, runs, "ranks/*.gz", "--json").document  # as where no shell expands it
    assert same["files"] == found["files"]


def test_a_file_that_is_no_trace_is_left_out_with_a_line(warm: Warm, runs: Path) -> None:
    done = trace(warm, runs, "mixed", "--json")
    assert done.code == 0
    assert [Path(f).name for f in done.document["files"]] == ["good.json"]
    assert done.err.count("left out") == 1
    assert "notes.json" in done.err
    (left,) = done.document["left_out"]
    assert Path(left["file"]).name == "notes.json"
    assert left["why"] in done.err
    asked = trace(warm, runs, "mixed", "--sql", "select 1", "--json")
    assert asked.document["left_out"] == [left]


def test_all_rows_are_in_the_json_and_as_many_as_asked_for(warm: Warm, tmp_path: Path) -> None:
    made = Made()
    for i in range(120):
        made.op(f"aten::op_{i}", 10.0 * i, 8)
        made.launch(f"kernel_{i}", 10.0 * i + 1, 10.0 * i + 4, 5, i + 1)
    made.write(tmp_path, "many.json")
    whole = trace(warm, tmp_path, "many.json", "--json").document
    assert (len(whole["kernels"]), len(whole["ops"])) == (120, 120)
    short = trace(warm, tmp_path, "many.json", "--json", "--top", "7").document
    assert (len(short["kernels"]), short["kernels_left_out"]) == (7, 113)
    full = trace(warm, tmp_path, "many.json", "--full").out
    assert all(f"kernel_{i} " in full for i in range(120))
    assert "and 114 more, with --full" in trace(warm, tmp_path, "many.json").out


def test_a_reader_that_goes_away_is_no_failure(runs: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as closed:
        for form in ([], ["--json"]):
            done = subprocess.run(
                [sys.executable, "-m", "ridgeline", "trace", "run.json", *form],
                stdout=closed, stderr=subprocess.PIPE, text=True, timeout=60, check=False, cwd=runs,
            )  # fmt: skip
            assert (done.returncode, done.stderr) == (0, "")


def test_a_pipe_is_as_wide_as_columns_says(runs: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ridgeline", "trace", "run.json"],
        capture_output=True, text=True, timeout=60, check=True, cwd=runs,
        env={**os.environ, "COLUMNS": "60"},
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if "ridgeline trace" not in line]
    assert 50 < max(len(line) for line in lines) <= 60


@pytest.mark.parametrize("named", ["bad.json", "none.json", "none*.json", "empty", "x" * 300])
def test_nothing_to_read_is_a_sentence_and_exit_4(warm: Warm, runs: Path, named: str) -> None:
    done = trace(warm, runs, named)
    assert done.code == NOTHING_READ
    assert done.out == ""
    assert done.err.startswith(f"ridgeline: {named}")


def test_none_of_several_can_be_read(warm: Warm, runs: Path) -> None:
    done = trace(warm, runs, "bad.json", "mixed/notes.json")
    assert done.code == NOTHING_READ
    assert done.err.count("left out") == 2


def test_two_traces_are_set_side_by_side(warm: Warm, runs: Path) -> None:
    done = trace(warm, runs, "run.json", "--compare", "packed.json.gz", "--json")
    assert done.code == 0, done.err
    assert done.document["change_ms"] == 0
    text = trace(warm, runs, "run.json", "--compare", "packed.json.gz", "-o", "c.md")
    assert text.code == 0, text.err
    assert (runs / "c.md").read_text().startswith("### ")


def test_a_question_in_sql(warm: Warm, runs: Path) -> None:
    sql = "select name, count(*) n from kernels group by 1 order by 1"
    done = trace(warm, runs, "run.json", "--sql", sql, "-o", "q.csv")
    assert done.code == 0, done.err
    assert (done.out, done.err) == ("", "wrote q.csv\n")
    assert (runs / "q.csv").read_text() == "name,n\nadd_kernel,3\nsgemm,3\n"
    assert trace(warm, runs, "run.json", "--sql", sql, "--json").document["rows"] == [
        ["add_kernel", 3],
        ["sgemm", 3],
    ]
    wrong = trace(warm, runs, "run.json", "--sql", "select nme from kernels")
    assert wrong.code == USAGE
    assert "\n    kernels      device, stream" in wrong.err


def test_every_ending_is_a_format(warm: Warm, runs: Path, tmp_path: Path) -> None:
    endings = ("json", "md", "csv", "html", "parquet", "speedscope.json", "perfetto.json",
               "perfetto.json.gz")  # fmt: skip
    for ending in endings:
        done = trace(warm, runs, "run.json", "-q", "-o", str(tmp_path / f"o.{ending}"))
        assert done.code == 0, done.err
        assert (done.out, done.err) == ("", f"wrote {tmp_path / f'o.{ending}'}\n")
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(f"o.{e}" for e in endings)
    assert json.loads((tmp_path / "o.json").read_text())["schema"] == "ridgeline.trace/1"
    assert (tmp_path / "o.md").read_text().startswith("### ")
    assert next(csv.reader((tmp_path / "o.csv").open()))[0] == "section"
    assert "<svg" in (tmp_path / "o.html").read_text()
    assert (tmp_path / "o.parquet").read_bytes().startswith(b"PAR1")
    assert json.loads((tmp_path / "o.speedscope.json").read_text())["profiles"]
    packed = json.loads(gzip.decompress((tmp_path / "o.perfetto.json.gz").read_bytes()))
    assert packed == json.loads((tmp_path / "o.perfetto.json").read_text())
    assert any(e["name"] == "idle: input" for e in packed["traceEvents"])


@pytest.mark.parametrize(
    "arguments",
    [
        ("run.json", "-o", "x.txt"),
        ("run.json", "-o", "none/x.json"),
        ("run.json", "-o", "run.json"),
        ("ranks", "-o", "x.perfetto.json"),
        ("run.json", "--sql", "select 1", "-o", "x.parquet"),
        ("run.json", "--sql", "select 1", "--compare", "run.json"),
        ("run.json", "--steps", "banana"),
        (),
    ],
)
def test_what_makes_no_sense_is_refused(warm: Warm, runs: Path, arguments: tuple[str, ...]) -> None:
    before = (runs / "run.json").read_bytes()
    done = trace(warm, runs, *arguments)
    assert done.code == USAGE
    assert done.out == ""
    assert (runs / "run.json").read_bytes() == before


def test_a_hostile_file_name_cannot_act_on_the_terminal(warm: Warm, runs: Path) -> None:
    name = "a\x1b]0;owned\x07[red].json"
    (runs / name).write_text("nonsense")
    done = trace(warm, runs, name)
    assert done.code == NOTHING_READ
    assert "\x1b" not in done.err
    starved().write(runs, name)
    done = trace(warm, runs, name)
    assert done.code == 0, done.err
    assert "\x1b" not in done.out + done.err
    (runs / name).unlink()


def test_reading_a_trace_needs_neither_torch_nor_duckdb(runs: Path) -> None:
    """duckdb is for questions, Parquet and the cache of large traces."""
    for arguments, without in (
        (["--help"], {"torch", "numpy", "duckdb", "rich"}),
        (["run.json", "--json"], {"torch", "duckdb"}),
    ):
        done = subprocess.run(
            [sys.executable, "-c", IMPORTED, "trace", *arguments],
            capture_output=True, text=True, timeout=60, check=True, cwd=runs,
        )  # fmt: skip
        status, modules = done.stderr.splitlines()[-2:]
        assert status == "exit 0"
        assert set(modules.split()) & without == set()


def test_the_help_teaches(warm: Warm, runs: Path) -> None:
    text = trace(warm, runs, "--help").out
    for option in ("--compare", "--steps", "--top", "--full", "--sql", "--no-cache", "--json"):
        assert option in text
    assert "ridgeline trace run.json.gz -o marked.perfetto.json.gz" in text
    assert "record_shapes=True, profile_memory=True, with_stack=True" in text
