"""The trace files that a person named: files, folders, and patterns the shell did not expand."""

import glob
from collections.abc import Iterable
from pathlib import Path

from ridgeline.errors import RidgelineError

ENDINGS = (".json", ".json.gz", ".json.zst")
OURS = (".speedscope.json", ".perfetto.json", ".perfetto.json.gz")
"""Files that this command writes beside the traces. It does not read them."""


def trace_files(named: Iterable[str]) -> tuple[Path, ...]:
    """Return each file once, in the order given; those of a folder by name, rank2 before rank10."""
    files: dict[Path, Path] = {}
    for text in named:
        try:
            named_files = _files_named(text)
        except OSError as error:  # a folder that may not be read, a name too long
            raise RidgelineError(f"{text}: {error.strerror or error}") from error
        for path in named_files:
            files.setdefault(path.absolute(), path)
    return tuple(files.values())


def _files_named(text: str) -> list[Path]:
    path = Path(text)
    if path.is_dir():
        inside = sorted((p for p in path.iterdir() if _is_trace(p)), key=lambda p: _order(p.name))
        if (path / "run.json").is_file():  # a run has other records beside its traces
            inside = [p for p in inside if p.name.startswith("trace-rank")]
        if not inside:
            raise RidgelineError(
                f"{text}: no trace in this folder",
                f"traces end in {', '.join(ENDINGS)}",
            )
        return inside
    if path.exists():
        return [path]
    if glob.has_magic(text):
        matched = [Path(p) for p in glob.glob(text, recursive=True) if Path(p).is_file()]
        if not matched:
            raise RidgelineError(f"{text}: no file has such a name", "ls shows what is there")
        return sorted(matched, key=lambda p: _order(str(p)))
    raise RidgelineError(f"{text}: there is no such file", "give a trace, or a folder of traces")


def _is_trace(path: Path) -> bool:
    name = path.name.lower()
    return (
        name.endswith(ENDINGS)
        and not name.endswith(OURS)
        and not name.startswith(".")
        and path.is_file()
    )


def _order(name: str) -> tuple[int, str]:
    """Return a key that sorts rank2 before rank10."""
    return len(name), name
