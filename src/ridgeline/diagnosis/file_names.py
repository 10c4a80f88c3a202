"""One name for each file of the program in a report: as it was typed, or where it lies.

Kineto strips the search path from file names, the hooks in the program give whole paths, and the
command names the script as somebody typed it. One of them can be found from the others.
"""

import re
from collections.abc import Iterable
from pathlib import Path

from ridgeline.records.run import Capture, RunFile

_PLACE = re.compile(r"(.+?\.py)(:\d+.*)", re.DOTALL)


class FileNames:
    """Of a run: any name of a file to the one that is shown, without the run's own folder."""

    def __init__(self, run: RunFile, capture: Capture | None) -> None:
        self._folder = run.environment.folder.rstrip("/")
        script = run.target.name if run.target.kind == "script" else ""
        self._roots = [Path(self._folder)] if self._folder else []
        self._known = []
        if script:
            whole = Path(self._folder) / script
            self._roots.append(whole.parent)
            self._known.append(str(whole))
        self._known += _places(capture)
        self._found: dict[str, str] = {}

    def shown(self, file: str) -> str:
        if file not in self._found:
            whole = self._whole(file)
            self._found[file] = whole.removeprefix(f"{self._folder}/") if self._folder else whole
        return self._found[file]

    def place(self, text: str) -> str:
        """Likewise of `train.py:12`, and whatever follows."""
        parts = _PLACE.fullmatch(text)
        return self.shown(parts[1]) + parts[2] if parts is not None else self.shown(text)

    def short(self, text: str) -> str:
        """Without the folder the program ran in, wherever a path of it stands in a text."""
        if not self._folder:
            return text
        return re.sub(rf"(?<![\w./-]){re.escape(self._folder)}/", "", text)

    def _whole(self, file: str) -> str:
        """The path of a bare name: of the files that are known, else on the disk."""
        if not file or Path(file).is_absolute():
            return file
        ends = {one for one in self._known if one.endswith(f"/{file.removeprefix('./')}")}
        if len(ends) == 1:
            return ends.pop()
        there = (str(root / file) for root in self._roots if _is_file(root / file))
        return next(there, file)


def _places(capture: Capture | None) -> list[str]:
    if capture is None:
        return []
    seen: Iterable[str] = (
        one.place for part in (capture.loaders, capture.modules, capture.optimizers) for one in part
    )
    return [place.rpartition(":")[0] for place in seen if place.startswith("/")]


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False
