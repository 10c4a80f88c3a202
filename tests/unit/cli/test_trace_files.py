from pathlib import Path

from ridgeline.cli.trace import trace_files


def made(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).write_text("{}")
    return folder


def test_only_traces_are_read_from_a_runs_directory(tmp_path: Path) -> None:
    records = ("run.json", "summary.json", "findings.json", "capture-rank0.json")
    folder = made(tmp_path, *records, "trace-rank0.json.gz", "trace-rank1.json.gz")
    found = trace_files([str(folder)])
    assert [path.name for path in found] == ["trace-rank0.json.gz", "trace-rank1.json.gz"]


def test_every_possible_trace_is_read_from_any_other_folder(tmp_path: Path) -> None:
    folder = made(tmp_path, "b.json", "a.json.gz", "made.perfetto.json")
    assert [path.name for path in trace_files([str(folder)])] == ["b.json", "a.json.gz"]
