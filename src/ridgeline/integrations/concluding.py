"""A run is over: its traces packed, the summary drawn and written beside what was recorded."""

import contextlib
import os

import msgspec
from msgspec.structs import replace

from ridgeline.diagnosis.conclusion import conclude
from ridgeline.harness.capture.tracing import pack
from ridgeline.integrations.ceilings import Say, know_ceilings, remember_exceeded
from ridgeline.records.run_directory import RunDirectory
from ridgeline.records.run_summary import RunSummary
from ridgeline.records.runs import remove_unfinished

ROOM_FOR_LAST_WORDS_BYTES = 64 * 1024
"""With less than this free on the disk, a program may have been unable to write how it ended."""


def concluded(
    directory: RunDirectory,
    ended_ns: int,
    exit_code: int | None = None,
    missing: str = "",
    say: Say = lambda text: None,
    oom_kills: int = 0,
) -> RunSummary:
    if not directory.open_ranks():
        remove_unfinished(directory)
    pack(directory)
    know_ceilings(directory, say)
    run = replace(directory.run(), exit_code=exit_code, oom_kills=oom_kills)
    with contextlib.suppress(OSError):  # the summary is drawn from run.json too
        directory.write_whole(directory.run_file.name, msgspec.json.encode(run))
    summary = conclude(directory)
    if summary.status == "killed" and _ended_unheard(directory, exit_code):
        lost = "what the program recorded last: no space is left on the disk"
        summary = replace(summary, status="finished", missing=(*summary.missing, lost))
    remember_exceeded(directory, summary.efficiency)
    if missing:
        summary = replace(summary, missing=(*summary.missing, missing))
    ended = replace(
        run,
        status=summary.status,
        why=summary.why,
        ended_ns=ended_ns,
        bytes_on_disk=directory.size(),
    )
    with contextlib.suppress(OSError):
        directory.write_whole(directory.summary_file.name, msgspec.json.encode(summary))
        directory.write_whole(directory.findings_file.name, msgspec.json.encode(summary.findings))
        directory.write_whole(directory.run_file.name, msgspec.json.encode(ended))
    return summary


def _ended_unheard(directory: RunDirectory, exit_code: int | None) -> bool:
    """Return whether the program ended by itself but could not write so: no signal ended it, and
    the disk is full."""
    if exit_code is None or exit_code < 0:
        return False
    try:
        disk = os.statvfs(directory.path)
    except OSError:
        return False
    return disk.f_bavail * disk.f_frsize < ROOM_FOR_LAST_WORDS_BYTES
