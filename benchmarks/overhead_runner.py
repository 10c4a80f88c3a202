"""Programs of `overhead.py` held side by side, each waiting until it is asked for a block."""

import importlib.util
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

import psutil
from msgspec import Struct

PROGRAM = str(Path(__file__).parent / "overhead_program.py")
LONGEST_WARM_UP_S = 120.0


class Tool(Struct, frozen=True):
    """How a tool runs a script: what goes before it, what the script is told, what it needs."""

    name: str
    before: tuple[str, ...] = ()
    """`{folder}` is a folder of the run's own."""
    after: tuple[str, ...] = ()
    needs: str = ""
    """A module that must be there."""
    until_alone: bool = False
    """Blocks count once our windows are over."""
    most_steps: int = 1_000_000
    """In a block: a profiler that keeps every event to the end keeps gigabytes."""

    @property
    def missing(self) -> bool:
        return bool(self.needs) and importlib.util.find_spec(self.needs) is None


_RUN = ("-m", "ridgeline", "run", "-q", "-o", "{folder}/result.json")
PLAIN = Tool("plain")
CONTROL = Tool("plain, again")
LIGHT = Tool("ridgeline run, light window", (*_RUN, "--full", "--trace-steps", "0"))
ALONE = Tool("ridgeline run, after its windows", _RUN, until_alone=True)
PYTHON = Tool(
    "ridgeline run --python, light window",
    (*_RUN, "--python", "--full", "--trace-steps", "0"),
)
OFF, OFF_AGAIN = Tool("hooks off"), Tool("hooks off, again")
ON = Tool("hooks of the light window on")
PROFILER = Tool("torch.profiler, stacks and shapes", after=("--torch-profiler",), most_steps=5)
CPROFILE = Tool("cProfile", ("-m", "cProfile", "-o", "{folder}/out.prof"))
SCALENE = Tool(
    "scalene, CPU only",
    ("-m", "scalene", "run", "--cpu-only", "--outfile", "{folder}/out.json"),
    needs="scalene",
)
PYINSTRUMENT = Tool(
    "pyinstrument",
    ("-m", "pyinstrument", "-r", "speedscope", "-o", "{folder}/out.json"),
    needs="pyinstrument",
)


class Program:
    """One process. Its blocks are asked for one at a time; between them it waits on its stdin."""

    def __init__(self, tool: Tool, workload: str) -> None:
        self.tool = tool
        self._folder = tempfile.TemporaryDirectory(prefix="overhead-", ignore_cleanup_errors=True)
        folder = self._folder.name
        before = [part.format(folder=folder) for part in tool.before]
        command = [sys.executable, *before, PROGRAM, workload, *tool.after]
        self._errors = open(f"{folder}/stderr", "w+")  # noqa: SIM115
        self.started_ns = time.monotonic_ns()
        self._process = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=self._errors, text=True, bufsize=1,
        )  # fmt: skip
        self.first_line_ns, self.torch_ns = (n - self.started_ns for n in self._heard("began"))

    def block(self, steps: int) -> tuple[float, float]:
        """Nanoseconds a step, by the clock and of processor time."""
        steps = min(steps, self.tool.most_steps)
        self._ask(str(steps))
        wall, used = self._heard("block")
        return wall / steps, used / steps

    def switch(self, on: bool) -> None:
        """Our hooks, inside the process."""
        self._ask("on" if on else "off")

    def warm(self, steps: int) -> None:
        """Half a second, or until our windows are over."""
        began = time.monotonic()
        while time.monotonic() - began < LONGEST_WARM_UP_S:
            self.block(steps)
            enough = time.monotonic() - began > 0.5
            if enough and (not self.tool.until_alone or self._alone()):
                return
        raise RuntimeError(f"{self.tool.name}: its windows never ended")

    def wait(self) -> int:
        """Lets it end by itself; nanoseconds from its last word until it was gone."""
        last = self._heard("over")[0]
        self._process.wait(timeout=LONGEST_WARM_UP_S)
        return time.monotonic_ns() - last

    def watcher_cpu_s(self) -> float | None:
        """Processor time of the process that watches, where there is one."""
        found = [
            process
            for process in psutil.process_iter(["cmdline", "cwd"])
            if process.info["cwd"] == self._folder.name and process.pid != self._process.pid
        ]
        return sum(p.cpu_times().user + p.cpu_times().system for p in found) if found else None

    def close(self) -> None:
        if self._process.poll() is None:
            self._ask("end")
            self._process.wait(timeout=LONGEST_WARM_UP_S)
        self._errors.close()
        self._folder.cleanup()

    def __enter__(self) -> "Program":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if error is not None:
            self._process.kill()
        self.close()

    def _ask(self, word: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()

    def _heard(self, word: str) -> list[int]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(f"{word} "):
                return [int(part) for part in line.split()[1:]]
        self._process.wait()
        self._errors.seek(0)
        raise RuntimeError(f"{self.tool.name} ended early:\n{self._errors.read()[-2000:]}")

    def _alone(self) -> bool:
        for path in Path(self._folder.name).glob(".ridgeline/runs/*/capture-rank0.json"):
            windows = json.loads(path.read_text()).get("windows", [])
            if windows and windows[-1]["kind"] == "alone":
                return True
        return False


class Rounds(Struct):
    """Blocks of all arms of a group: a row a round, nanoseconds a step."""

    tools: tuple[Tool, ...]
    samples: list[list[float]] = []
    used: list[list[float]] = []
    """Of processor time: what a busy machine blurs least."""
    process: list[int] = []
    """Which set of processes each round ran in."""
    watcher_share: list[float] = []
    """Of one processor, a set."""

    def add(self, number: int, blocks: Sequence[tuple[float, float]]) -> None:
        self.samples.append([wall for wall, _ in blocks])
        self.used.append([used for _, used in blocks])
        self.process.append(number)


def take(
    tools: Sequence[Tool], workload: str, *, sets: int, rounds: int, block_s: float,
    say: Callable[[str], None],
) -> Rounds:  # fmt: skip
    """`sets` times fresh processes of each tool, `rounds` blocks of each in an order drawn anew."""
    found = Rounds(tuple(tools))
    order = random.Random(0)
    for number in range(sets):
        say(f"{workload}: set {number + 1} of {sets} starts")
        programs: list[Program] = []
        try:
            for tool in order.sample(list(tools), len(tools)):
                programs.append(Program(tool, workload))
            programs.sort(key=lambda program: tools.index(program.tool))
            steps = _steps(programs[0], block_s)
            for program in programs:
                program.warm(steps)
            _rounds(programs, steps, rounds, number, order, found, say)
        finally:
            for program in programs:
                program.close()
    return found


def take_within(
    workload: str, *, sets: int, rounds: int, block_s: float, say: Callable[[str], None]
) -> Rounds:
    """The light window's hooks taken off and put on again, block by block, in one process: nothing
    else differs, not even where things lie in memory."""
    arms = (OFF, OFF_AGAIN, ON)
    found = Rounds(arms)
    order = random.Random(2)
    for number in range(sets):
        say(f"{workload}, within: set {number + 1} of {sets} starts")
        with Program(LIGHT, workload) as program:
            steps = _steps(program, block_s)
            program.warm(steps)
            for _ in range(rounds):
                blocks = [(0.0, 0.0)] * len(arms)
                for place in order.sample(range(len(arms)), len(arms)):
                    program.switch(arms[place] is ON)
                    program.block(1)  # the first step after a switch fills caches again
                    blocks[place] = program.block(steps)
                found.add(number, blocks)
    return found


def _steps(program: Program, block_s: float) -> int:
    """In a block of `block_s`, after the first slow steps."""
    program.block(3)
    return max(1, round(block_s * 1e9 / program.block(5)[0]))


def _rounds(
    programs: Sequence[Program], steps: int, rounds: int, number: int, order: random.Random,
    found: Rounds, say: Callable[[str], None],
) -> None:  # fmt: skip
    watched = next((p for p in programs if p.tool is LIGHT), None)
    began, before = time.monotonic(), watched.watcher_cpu_s() if watched else None
    for at in range(rounds):
        say(f"set {number + 1}, round {at + 1} of {rounds}")
        blocks = [(0.0, 0.0)] * len(programs)
        for place in order.sample(range(len(programs)), len(programs)):
            blocks[place] = programs[place].block(steps)
        found.add(number, blocks)
    after = watched.watcher_cpu_s() if watched else None
    if before is not None and after is not None:
        found.watcher_share.append((after - before) / (time.monotonic() - began))


class Started(Struct):
    """One start: seconds until the script's first line, until torch is there, and to be gone."""

    first_line_s: float
    torch_s: float
    end_s: float


def starts(tools: Sequence[Tool], rounds: int, say: Callable[[str], None]) -> list[list[Started]]:
    """A list a round, in the order of `tools`; the first is not kept (bytecode, file cache)."""
    kept = []
    order = random.Random(1)
    for at in range(rounds + 1):
        say(f"start-up, round {at} of {rounds}")
        found: dict[int, Started] = {}
        for place in order.sample(range(len(tools)), len(tools)):
            with Program(tools[place], "start") as program:
                end_s = program.wait() / 1e9
                found[place] = Started(program.first_line_ns / 1e9, program.torch_ns / 1e9, end_s)
        kept.append([found[place] for place in range(len(tools))])
    return kept[1:]


def installed() -> dict[str, str]:
    """Versions of the peers, for the page."""
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for name in ("torch", "scalene", "pyinstrument"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def threads() -> str:
    return os.environ.get("OMP_NUM_THREADS", "as torch chooses")
