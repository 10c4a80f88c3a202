"""The words of `ridgeline optimize` as typed, with more time."""

import shlex
from collections.abc import Sequence

from ridgeline.cli.target import TargetCommand


class OptimizeCommand(TargetCommand):
    def longer(self, args: Sequence[str], budget_s: float) -> str:
        """The same with twice the time; what is known is gone on with."""
        ours, rest = self._split(args)
        kept, at = list[str](), 0
        while at < len(ours):
            if not ours[at].startswith("--budget=") and ours[at] not in ("--budget", "--fresh"):
                kept.append(ours[at])
            at += 2 if ours[at] == "--budget" else 1
        seconds = round(2 * budget_s)
        time = f"{seconds // 60}m" if seconds % 60 == 0 else f"{seconds}s"
        mark = ["--"] if list(args[len(ours) : len(ours) + 1]) == ["--"] else []
        return shlex.join(["ridgeline", "optimize", "--budget", time, *kept, *mark, *rest])
