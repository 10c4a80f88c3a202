"""`ridgeline memory`: the peak of a memory snapshot, who owned it, what grew, what would help."""

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ridgeline.cli.output import PAGE_ENDINGS, check_output, output_options
from ridgeline.cli.runs import runs_dir_option, runs_folder
from ridgeline.errors import RidgelineError, UsageError

if TYPE_CHECKING:
    from ridgeline.records.memory import MemoryStudy

TRACK_ENDINGS = (".perfetto.json",)
ENDINGS = (*PAGE_ENDINGS, *TRACK_ENDINGS)
SNAPSHOT_ENDINGS = (".pickle", ".pkl", ".pickle.gz", ".pkl.gz")
_OF_A_RUN = re.compile(r"^(?P<what>oom|memory)-rank(?P<rank>\d+)\.pickle$")
EXAMPLES = """\b
Examples:
  ridgeline memory snapshot.pickle                     the peak, who owned it, what would help
  ridgeline memory snapshot.pickle --full              every line and every module
  ridgeline memory after.pickle --compare before.pickle
                                                       what needs more memory, what less
  ridgeline memory snapshot.pickle -o memory.html      memory over time, the peak as a flame graph
  ridgeline memory snapshot.pickle -o memory.perfetto.json
                                                       counter tracks, for ui.perfetto.dev
  ridgeline memory latest                              the snapshot of the newest recorded run

\b
To record a snapshot, around a few steps of the program:
  torch.cuda.memory._record_memory_history(max_entries=1_000_000, stacks="python")
  for batch in loader: step(batch)
  torch.cuda.memory._dump_snapshot("snapshot.pickle")
"""


@click.command("memory", epilog=EXAMPLES)
@click.argument("name", metavar="FILE | RUN")
@click.option(
    "--compare",
    "before",
    metavar="BEFORE",
    help="An earlier snapshot of the program: show what needs more memory since, and what less.",
)
@click.option(
    "--device",
    type=click.IntRange(min=0),
    metavar="N",
    help="Study this device alone.  [default: all; the report is of the one with the highest peak]",
)
@click.option(
    "--top",
    type=click.IntRange(min=1, max=100_000),
    metavar="N",
    help="Show at most N rows of each table.",
)
@click.option("--full", is_flag=True, help="Show every section and every row.")
@click.option(
    "--max-bytes",
    metavar="SIZE",
    help="Refuse a snapshot that is larger than this when unpacked, e.g. 4GiB.  [default: a sixth "
    "of the free memory]",
)
@runs_dir_option
@output_options(ENDINGS)
def command(
    name: str,
    before: str | None,
    device: int | None,
    top: int | None,
    full: bool,
    max_bytes: str | None,
    root: Path | None,
    as_json: bool,
    output: Path | None,
    quiet: bool,
    verbose: bool,
) -> None:
    """Show the peak of a memory snapshot: who owned it by line, module and kind, what grew from
    step to step, how fragmented memory was, and what would have helped.

    FILE is what torch.cuda.memory._dump_snapshot writes, plain or packed with gzip, from torch 2.1
    on. RUN is a recorded run: its name, a part of it, "latest", or its folder. Nothing in the file
    is run: what would call or import anything is refused. It needs no GPU and no network.

    Exit codes: 0 answered; 2 usage; 4 the file could not be read.
    """
    from ridgeline.cli.output import deliver, progress, say_written, write_whole
    from ridgeline.units import parse_size

    endings = PAGE_ENDINGS if before else ENDINGS
    ending = check_output(output, endings, ENDINGS)
    limit = parse_size(max_bytes) if max_bytes is not None else None
    path = _snapshot_path(name, root)
    earlier = None if before is None else _snapshot_path(before, root)
    _refuse_overwriting(output, (path, earlier))
    with progress(quiet) as say:
        say(f"reading {path.name}")
        study = _studied(path, device, limit)
        old = None if earlier is None else _studied(earlier, device, limit)
    if old is not None:
        _compare(old, study, as_json, output, full, top)
        return
    if ending in TRACK_ENDINGS and output is not None:
        import json

        from ridgeline.memory.perfetto import counter_tracks

        write_whole(output, json.dumps(counter_tracks(study)))
        say_written([output])
        if not as_json:
            return
        output = None
    from ridgeline.report.views.memory import memory_report

    report = memory_report(study, full=full, typed=sys.argv[1:])
    deliver(report, as_json, output, full=full, max_rows=top)


def _studied(path: Path, device: int | None, max_bytes: int | None) -> "MemoryStudy":
    from ridgeline.memory.study import study_snapshot

    try:
        total, outside = _device_facts(path)
        return study_snapshot(
            path, device=device, max_bytes=max_bytes, total_bytes=total, outside_bytes=outside
        )
    except RidgelineError as error:
        from ridgeline.report.plain import printable

        error.message, error.hint = printable(error.message), printable(error.hint)
        raise


def _compare(
    before: "MemoryStudy",
    after: "MemoryStudy",
    as_json: bool,
    output: Path | None,
    full: bool,
    top: int | None,
) -> None:
    from ridgeline.cli.output import deliver
    from ridgeline.memory.differences import differences
    from ridgeline.report.views.memory_comparison import memory_comparison_report

    for study in (before, after):
        if not study.devices:
            raise RidgelineError(f"{study.source}: an empty snapshot cannot be compared")
    report = memory_comparison_report(differences(before, after))
    deliver(report, as_json, output, full=full, max_rows=top)


def _refuse_overwriting(output: Path | None, inputs: tuple[Path | None, ...]) -> None:
    if output is None or not output.exists():
        return
    if any(path is not None and output.samefile(path) for path in inputs):
        raise UsageError(
            f"-o {output}: this is the snapshot itself", "give the report another name"
        )


# ------------------------------------------------------------------------------------ which file


def _snapshot_path(name: str, root: Path | None) -> Path:
    """Return the snapshot that a word of the command line names: a file, a folder with one in it,
    or a recorded run."""
    path = Path(name)
    if path.is_dir():
        return _in_folder(path)
    if path.exists():
        return path
    if "/" in name or name.lower().endswith(SNAPSHOT_ENDINGS):
        raise RidgelineError(
            f"{name}: there is no such file",
            "torch.cuda.memory._dump_snapshot writes one; --help shows how",
        )
    from ridgeline.records.runs import find

    try:
        run = find(runs_folder(root), name)
    except UsageError:
        raise
    except RidgelineError as error:
        raise RidgelineError(
            f"{name}: there is no such file, and {error.message}", error.hint
        ) from error
    return _in_folder(run.path)


def _in_folder(folder: Path) -> Path:
    """Return the snapshot of a folder. Of a run's, one made when memory ran out comes first; of
    several ranks the first."""
    try:
        names = sorted(path.name for path in folder.iterdir() if path.is_file())
    except OSError as error:
        raise RidgelineError(f"{folder}: {error.strerror or error}") from error
    of_run = [(m["what"] != "oom", int(m["rank"]), m[0]) for m in map(_OF_A_RUN.match, names) if m]
    if of_run:
        return folder / min(of_run)[2]
    found = [name for name in names if name.lower().endswith(SNAPSHOT_ENDINGS)]
    if len(found) == 1:
        return folder / found[0]
    if found:
        raise UsageError(
            f"{folder} has {len(found)} snapshots: {', '.join(found[:5])}", "name one of them"
        )
    raise RidgelineError(
        f"{folder}: no memory snapshot in this folder",
        "ridgeline run records one on a GPU, and whenever a GPU runs out of memory",
    )


def _device_facts(path: Path) -> tuple[int, int | None]:
    """Return what a run recorded that the snapshot of its shortage does not have: the size of the
    device, and what was in use there outside of torch's allocator."""
    match = _OF_A_RUN.match(path.name)
    if match is None or not (path.parent / "run.json").is_file():
        return 0, None
    from ridgeline.records.run_directory import RunDirectory

    try:
        capture = RunDirectory(path.parent).capture(int(match["rank"]))
    except RidgelineError:
        return 0, None
    shortage = capture.out_of_memory if capture is not None else None
    if shortage is None or shortage.on != "device" or shortage.snapshot != path.name:
        return 0, None
    used = shortage.total_bytes - shortage.free_bytes - shortage.reserved_bytes
    return shortage.total_bytes, max(used, 0)
