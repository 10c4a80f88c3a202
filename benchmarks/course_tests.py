"""Runs the TinyTorch course's own tests with Ridgeline's profiler in the place of the course's.

    python benchmarks/course_tests.py --course PATH --python PYTHON

PATH is the course's `tinytorch` folder (the one with `src`, `tests` and the package), its modules
already exported as its own instructions say; PYTHON is an interpreter that can run its tests. The
folder is copied, the copy's `tinytorch/perf/profiling.py` becomes a few lines that import from
here, and one table says what passed. Nothing of the course is kept.
"""

import argparse
import ast
import json
import os
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).resolve().parent.parent / "src"
NAMES = (
    "BYTES_PER_FLOAT32", "KB_TO_BYTES", "MB_TO_BYTES", "MemoryProfiler", "Profiler", "Timer",
    "analyze_weight_distribution", "profile_memory", "quick_profile", "rng",
)  # fmt: skip
REPLACED = ("Profiler", "quick_profile", "analyze_weight_distribution")
MODULES = ("15_quantization", "16_compression", "17_acceleration", "18_memoization",
           "19_benchmarking", "20_capstone")  # fmt: skip
INLINE = ("15_quantization", "16_compression", "17_acceleration", "19_benchmarking")
PROFILING = Path("src/14_profiling/14_profiling.py")


class Result(NamedTuple):
    suite: str
    passed: int
    failed: int
    failures: tuple[str, ...] = ()


class Course:
    """A copy of the course with our profiler in it."""

    def __init__(self, folder: Path, python: str) -> None:
        self.folder = folder
        self.python = python
        target = folder / "tinytorch" / "perf" / "profiling.py"
        target.chmod(0o644)  # the course makes its generated modules read-only
        target.write_text(f"from ridgeline.integrations.profiler import {', '.join(NAMES)}\n")

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join((str(SOURCE), str(self.folder)))
        return subprocess.run(
            [self.python, *arguments],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": path, "TINYTORCH_QUIET": "1"},
            capture_output=True,
            text=True,
        )

    def profiler_home(self) -> str:
        """The module that the copy's Profiler comes from: the course swallows import errors."""
        code = "from tinytorch.perf.profiling import Profiler; print(Profiler.__module__)"
        done = self.run("-c", code)
        return done.stdout.strip() or done.stderr.strip().splitlines()[-1]

    def pytest(self, suite: str, place: str) -> Result:
        report = self.folder / "report.xml"
        report.unlink(missing_ok=True)
        done = self.run("-m", "pytest", place, "-q", f"--junitxml={report}")
        if not report.exists():
            return Result(suite, 0, 1, (done.stdout.strip()[-400:] or done.stderr.strip()[-400:],))
        cases = [c for c in ElementTree.parse(report).iter("testcase") if c.find("skipped") is None]
        bad = [c for c in cases if c.find("failure") is not None or c.find("error") is not None]
        names = tuple(str(case.get("name")) for case in bad)
        return Result(suite, len(cases) - len(bad), len(bad), names)

    def inline_profiling(self) -> Result:
        """The unit tests inside the profiling module: run as it stands it would test itself."""
        done = self.run(str(Path(__file__).resolve()), "--inline")
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        if not lines:
            return Result("14 inline", 0, 1, (done.stderr.strip()[-400:],))
        outcome = json.loads(lines[-1])
        failures = tuple(f"{name}: {why}" for name, why in outcome.items() if why)
        return Result("14 inline", len(outcome) - len(failures), len(failures), failures)


def run_inline() -> None:
    """In the course's interpreter: the module's imports, constants and tests, our three names."""
    import ridgeline.integrations.profiler as ours

    kept = [node for node in ast.parse(PROFILING.read_text()).body if _wanted(node)]
    space: dict[str, object] = {"__name__": "inline"}
    exec(compile(ast.Module(kept, []), str(PROFILING), "exec"), space)
    space.update({name: getattr(ours, name) for name in REPLACED})
    outcome: dict[str, str] = {}
    for name, test in list(space.items()):
        if name.startswith("test_") and callable(test):
            try:
                test()
                outcome[name] = ""
            except Exception as error:
                outcome[name] = f"{type(error).__name__}: {error}"
    print()
    print(json.dumps(outcome))


def _wanted(node: ast.stmt) -> bool:
    test = isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    return test or isinstance(node, (ast.Import, ast.ImportFrom, ast.Assign))


def run_all(course: Course) -> list[Result]:
    results = [course.pytest("14 profiling", "tests/14_profiling"), course.inline_profiling()]
    results += [course.pytest(name.replace("_", " "), f"tests/{name}") for name in MODULES]
    results += [
        course.pytest(f"{name.replace('_', ' ')} inline", f"src/{name}/{name}.py")
        for name in INLINE
    ]
    return results


def print_table(results: list[Result]) -> None:
    print(f"{'suite':<28}{'passed':>8}{'failed':>8}")
    for result in results:
        print(f"{result.suite:<28}{result.passed:>8}{result.failed:>8}")
    passed, failed = sum(r.passed for r in results), sum(r.failed for r in results)
    print(f"{'all':<28}{passed:>8}{failed:>8}")
    for result in results:
        for failure in result.failures:
            print(f"failed in {result.suite}: {failure}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--course", type=Path, help="the course's tinytorch folder, exported")
    parser.add_argument("--python", default=sys.executable, help="an interpreter for its tests")
    parser.add_argument("--inline", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inline:
        run_inline()
        return 0
    needed = Path("tinytorch") / "perf" / "profiling.py"
    if options.course is None or not (options.course / needed).is_file():
        print(
            f"course_tests needs --course PATH, a TinyTorch folder whose modules are exported "
            f"({needed} must be there)",
            file=sys.stderr,
        )
        return 2
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / "course"
        shutil.copytree(options.course, copy, ignore=shutil.ignore_patterns(".git", "__pycache__"))
        course = Course(copy, options.python)
        home = course.profiler_home()
        if home != "ridgeline.integrations.profiler.profiler":
            print(f"the course does not run on our profiler: {home}", file=sys.stderr)
            return 4
        results = run_all(course)
    print_table(results)
    return 3 if any(result.failed for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
