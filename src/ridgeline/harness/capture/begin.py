"""The program has imported torch: a session begins, and the seams go on."""

import os
from pathlib import Path
from typing import Any

from ridgeline.harness.capture import live, marks
from ridgeline.harness.capture.seams import Seams
from ridgeline.harness.capture.session import Session
from ridgeline.records.run import Settings, Status
from ridgeline.records.run_directory import RunDirectory


def begin(torch: Any, directory: str, settings: Settings | None = None) -> Session:
    path = Path(directory)
    rank = int(os.environ.get("RANK", "0") or 0)
    world = int(os.environ.get("WORLD_SIZE", "1") or 1)
    asked = settings or RunDirectory(path).run().settings
    session = Session(torch, path, asked, rank, world)
    Seams(torch, session).put_on()
    live.follow_forks()
    live.session = marks.listener = session
    return session


def end(session: Session, ended: Status, why: str) -> None:
    """Of a block: the seams come off, and the process goes on."""
    session.farewell(ended, why)
    progress = session.progress
    progress.detach(progress.compiling.seen, progress.recording.tracing.names_modules, False)
    live.session = marks.listener = None
