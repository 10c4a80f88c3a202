"""Begins a race inside the program's process once the program has imported torch."""

from pathlib import Path
from typing import Any

import msgspec

from ridgeline.harness.capture import launch
from ridgeline.harness.capture.program_exit import LastWords
from ridgeline.harness.race.requests import FileRequests
from ridgeline.harness.race.session import RaceSession
from ridgeline.records.race import RacePlan


def begin(torch: Any, directory: str) -> None:
    launch.begin_or_exit(lambda: _begin(torch, Path(directory)))


def _begin(torch: Any, home: Path) -> None:
    plan = msgspec.json.decode((home / launch.PLAN).read_bytes(), type=RacePlan)
    launch.seed_generators(torch, plan.seed)
    session = RaceSession(torch, home, plan, FileRequests(home), LastWords().at_once)
    session.feeds.endless = True
    if not plan.trains:
        session.race_by_requests()
    session.begin()
