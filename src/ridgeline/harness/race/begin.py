"""Begins a race inside the program's process once the program has imported torch."""

import contextlib
import os
import sys
from pathlib import Path
from typing import Any

import msgspec

from ridgeline.harness.capture import launch
from ridgeline.harness.capture.program_exit import remove_temporary_files
from ridgeline.harness.race.requests import FileRequests
from ridgeline.harness.race.session import RaceSession
from ridgeline.harness.trials.begin import PLAN
from ridgeline.records.race import RacePlan


def begin(torch: Any, directory: str) -> None:
    try:
        _begin(torch, Path(directory))
    except Exception as error:  # the program would run to its end, for nothing
        print(f"ridgeline: no race: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(1)


def _begin(torch: Any, home: Path) -> None:
    plan = msgspec.json.decode((home / PLAN).read_bytes(), type=RacePlan)
    launch.seed_generators(torch, plan.seed)
    pid = os.getpid()

    def end() -> None:
        """End the program at once. Nothing of it runs after that."""
        if os.getpid() == pid:
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(Exception):
                    stream.flush()
            with contextlib.suppress(Exception):
                remove_temporary_files()
        os._exit(0)

    session = RaceSession(torch, home, plan, FileRequests(home), end)
    if not plan.trains:
        session.race_by_requests()
    session.begin()
