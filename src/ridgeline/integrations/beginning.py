"""A run begins: run.json, written before anything else of it."""

import os
import time
from datetime import datetime
from pathlib import Path

import msgspec

from ridgeline import __version__
from ridgeline.harness.capture.environment import environment
from ridgeline.records.run import RunFile, Settings, Target
from ridgeline.records.run_directory import RunDirectory, started


def begun(directory: RunDirectory, target: Target, settings: Settings, ranks: int = 1) -> None:
    run = RunFile(
        name=directory.name,
        target=target,
        settings=settings,
        environment=environment(Path.cwd()),
        pid=os.getpid(),
        pid_started=started(os.getpid()),
        began_at=datetime.now().astimezone().isoformat(timespec="seconds"),
        began_ns=time.perf_counter_ns(),
        ranks=ranks,
        ridgeline=__version__,
    )
    directory.write_whole(directory.run_file.name, msgspec.json.encode(run))
