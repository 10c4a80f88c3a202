"""Row 3: if we break, the script goes on. The Nth call of each of our seams fails, six ways.

The command and the watcher are failed end to end, around a program without torch; the program's
own side in forks of a process that has torch (see `inject/zygote.py`), and a few end to end too.
"""

import itertools
import random
import shutil
import tempfile
from collections import Counter
from pathlib import Path

from reliability.arms import ridgeline
from reliability.outcome import Outcome, python, start, surroundings
from reliability.row import Asked, Row, each
from reliability.zygote import INJECT, TARGET, Zygote

SMALL = "import sys\nprint('hello')\nsys.exit(3)\n"
ERRORS = ("ENOSPC", "EROFS", "EMFILE", "EACCES", "MemoryError", "RuntimeError")
MOST_OF_A_SEAM = 10
"""All N of a seam called up to so often; of others the first few and some at random."""
MOST_INNER = 100
NOT_OURS = ("cli:import",)
"""A command whose own modules cannot be imported cannot start anything."""
LOOKS_FOR_THE_SCRIPT = "cli:look"
"""Its first call: where that fails there is no script, and nothing to go on with."""
SAID = 4
"""Lines on stderr that a fault may cost."""


def run(asked: Asked) -> list[Row]:
    row = Row(3, "if we break, the script goes on", least=300)
    base = Path(tempfile.mkdtemp(prefix="reliability-"))
    (base / "small.py").write_text(SMALL)
    chance = random.Random(asked.seed)
    plain = start([python(), "small.py"], base, surroundings())
    points = chosen(counted(base, "small.py"), chance, MOST_OF_A_SEAM)
    ends = Ends(base, plain)
    each(row, points, ends.small, asked, lambda point: f"small {point}")
    with Zygote() as zygote:
        inner = chosen(zygote.counted(), chance, MOST_OF_A_SEAM)

        def beside(point: str) -> list[str]:
            got, plain = zygote.ask(point.removeprefix("program:")), zygote.plain
            err = str(got["err"]).encode()
            return judged(plain["code"], str(plain["out"]), got["code"], str(got["out"]), err)

        each(row, inner, beside, asked, lambda point: f"torch {point}")
        whole = chance.sample([p for p in inner if ":inner:" not in p], 12)
        ends.torch = zygote.plain
        each(row, whole, ends.whole, asked, lambda point: f"whole {point}")
    kinds = Counter(point.split(":")[1] for point in itertools.chain(points, inner))
    row.notes.append("seams: " + ", ".join(f"{seam} {n}" for seam, n in sorted(kinds.items())))
    shutil.rmtree(base, ignore_errors=True)
    return [row]


def counted(base: Path, script: str) -> Counter[str]:
    """How often each seam is called in a run of this program, by process."""
    log = base / "calls"
    folder = base / "count"
    folder.mkdir()
    shutil.copy(base / script, folder)
    start(
        [*ridgeline(), "run", "-q", script], folder,
        surroundings({"PYTHONPATH": str(INJECT), "FAULT_COUNT": str(log)}),
    )  # fmt: skip
    return Counter(log.read_text().split())


def chosen(calls: Counter[str], chance: random.Random, most: int) -> list[str]:
    """process:seam:N:error, for every N of the rarer seams; the first call fails in all ways."""
    errors = itertools.cycle(ERRORS)
    points = []
    for key, times in sorted(calls.items()):
        if key in NOT_OURS:
            continue
        limit = MOST_INNER if key.endswith(":inner") else most
        numbers = range(1, times + 1)
        if times > limit:
            numbers = [1, 2, 3, times, *chance.sample(range(4, times), limit - 4)]  # type: ignore[assignment]
        points += [f"{key}:1:{error}" for error in ERRORS if key != LOOKS_FOR_THE_SCRIPT]
        points += [f"{key}:{number}:{next(errors)}" for number in numbers if number > 1]
    return points


class Ends:
    """Whole runs with one fault in them."""

    def __init__(self, base: Path, plain: Outcome) -> None:
        self._base = base
        self._plain = plain
        self.torch: dict[str, object] = {}
        self._number = itertools.count()

    def small(self, point: str) -> list[str]:
        done = self._run(point, self._base / "small.py")
        return judged(
            self._plain.code, self._plain.out.decode(), done.code, done.out.decode(), done.err
        )

    def whole(self, point: str) -> list[str]:
        done = self._run(point, TARGET)
        code, out = self.torch["code"], str(self.torch["out"])
        return judged(code, out, done.code, done.out.decode(), done.err)

    def _run(self, point: str, script: Path) -> Outcome:
        folder = self._base / f"case-{next(self._number)}"
        folder.mkdir()
        env = surroundings({"PYTHONPATH": str(INJECT), "FAULT": point})
        try:
            command = [*ridgeline(), "run", "-q", "--steps", "4", str(script)]
            return start(command, folder, env)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def judged(code: object, out: str, got: object, said: str, err: bytes) -> list[str]:
    """What differs, a sentence each."""
    found = []
    words = err.decode(errors="replace")
    if got != code:
        found.append(f"exit: {code} → {got}; stderr {words[-700:]!r}")
    if said != out:
        found.append(f"stdout: {said[:200]!r}; stderr {words[-700:]!r}")
    # without our dup(2) Kineto's own line, at its start and at its stop, reaches the terminal
    lines = [line for line in words.splitlines() if "ActivityProfiler" not in line]
    if "Traceback" in words:
        found.append(f"a traceback: {words[-700:]!r}")
    elif len(lines) > SAID or not all(line.startswith(("ridgeline", " ")) for line in lines):
        found.append(f"stderr: {words[:400]!r}")
    return found
