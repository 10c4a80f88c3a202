"""A run is over: its traces packed, the summary drawn and written beside what was recorded."""

import contextlib

import msgspec
from msgspec.structs import replace

from ridgeline.capture.packing import pack
from ridgeline.diagnose.conclusion import conclude
from ridgeline.integrations.ceilings import Say, know_ceilings
from ridgeline.records.run_directory import RunDirectory
from ridgeline.records.run_summary import RunSummary


def concluded(
    directory: RunDirectory,
    ended_ns: int,
    exit_code: int | None = None,
    missing: str = "",
    say: Say = lambda text: None,
) -> RunSummary:
    pack(directory)
    know_ceilings(directory, say)
    run = directory.run()
    summary = conclude(directory)
    if missing:
        summary = replace(summary, missing=(*summary.missing, missing))
    ended = replace(
        run,
        status=summary.status,
        why=summary.why,
        exit_code=exit_code,
        ended_ns=ended_ns,
        bytes_on_disk=directory.size(),
    )
    with contextlib.suppress(OSError):
        directory.write_whole(directory.summary_file.name, msgspec.json.encode(summary))
        directory.write_whole(directory.findings_file.name, msgspec.json.encode(summary.findings))
        directory.write_whole(directory.run_file.name, msgspec.json.encode(ended))
    return summary
