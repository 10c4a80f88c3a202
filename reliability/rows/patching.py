"""Row 19: the source is never harmed. Real Python files are patched at drawn places, in every
variant of their bytes, by `benchmarks/patching.py` in processes of its own."""

import re
import subprocess
from pathlib import Path

from reliability.outcome import python
from reliability.row import Asked, Row, each

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "patching.py"
FILES = 520
PARTS = 20
LONGEST_S = 1800
"""Of one part, 26 files: 20 s of a core, and the machine may be busy."""
_ENDED = re.compile(r"(\d+)/(\d+) files unharmed")


def run(asked: Asked) -> list[Row]:
    row = Row(19, "the source is never harmed", least=500)
    edits: list[int] = []
    files: list[int] = []

    def part(number: int) -> list[str]:
        command = [python(), str(PROGRAM), "--files", str(FILES)]
        command += ["--parts", str(PARTS), "--part", str(number)]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_S)
        ended = _ENDED.search(ran.stdout)
        if ended is None:
            return [f"it ended with exit code {ran.returncode}: {ran.stderr[-300:]!r}"]
        files.append(int(ended[2]))
        edits.extend(int(found) for found in re.findall(r"(\d+)  edits done", ran.stdout))
        harmed = int(ended[2]) - int(ended[1])
        return [line for line in ran.stdout.splitlines() if line.startswith("/")][:harmed]

    each(row, range(PARTS), part, asked, lambda number: f"part {number} of {PARTS}")
    row.done = sum(files)
    row.notes.append(f"{sum(edits)} edits, each as it is, with CRLF, a mark, tabs, no last newline")
    return [row]
