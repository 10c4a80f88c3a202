"""Rows 1 and 2: the script cannot tell, and its results are the same to the bit."""

import shutil
import tempfile
from collections import Counter
from pathlib import Path

from reliability.arms import Done, run_arm
from reliability.case import Case, read_all
from reliability.row import Asked, Row, each
from reliability.same import differences

AGAIN = 4
"""Plain runs more where one differs: a program that races with itself may end in several ways, and
is then held against all of them."""


def run(asked: Asked) -> list[Row]:
    base = Path(tempfile.mkdtemp(prefix="reliability-"))
    row = Row(1, "the script cannot tell", least=300)
    results = Row(2, "same results, to the bit", least=80)
    seen: Counter[str] = Counter()

    def do(case: Case) -> list[str]:
        """Cases that have to differ are said in a note, and must differ."""
        folder = base / case.name
        plain = run_arm(case, "plain", folder)
        found: list[str] = []
        for arm in arms_of(case, asked):
            ours = run_arm(case, arm, folder)
            unlike, said = unlikeness(case, arm, plain, ours)
            for _ in range(AGAIN if unlike and not case.why and not asked.plain else 0):
                if not unlikeness(case, arm, run_arm(case, "plain", folder), ours)[0]:
                    row.notes.append(f"it does so plain, too: {case.name} [{arm}]: {unlike[0]}")
                    unlike = []
                    break
            row.notes += [f"said why it is not recorded: {case.name}: {one}" for one in said]
            found += [f"[{arm}] {one}" for one in unlike]
            count(seen, case, arm, ours)
            row.done += 1
            if case.proves_results:
                results.done += 1
                results.failures += [f"{case.name} [{arm}]: {one}" for one in unlike]
        row.done -= 1  # `each` counts the case itself
        if not (found and asked.keep):
            shutil.rmtree(folder, ignore_errors=True)
        if case.why and not asked.plain:
            row.notes.append(f"differs, as it has to: {case.name}: {case.why}")
            # Some differ in one arm only, and a short run does not take both.
            stale = not found and asked.all
            return ["does not differ any more: say so no longer"] if stale else []
        return found

    each(row, chosen(asked), do, asked, lambda case: case.name)
    if not asked.keep:
        shutil.rmtree(base, ignore_errors=True)
    row.notes += [f"{what}: {times}" for what, times in sorted(seen.items())]
    results.seconds = row.seconds
    if not seen["torch programs with a traced window"] and not asked.part and not asked.plain:
        row.failures.append("no program got a traced window: nothing was proven of it")
    return [row, results]


def unlikeness(case: Case, arm: str, plain: Done, ours: Done) -> tuple[list[str], list[str]]:
    quiet = arm in ("light", "plain")
    return differences(plain, ours, quiet=quiet, merged=case.streams == "merged")


def chosen(asked: Asked) -> list[Case]:
    """All of them, or in the short run each second one of those with torch, by the seed."""
    cases = read_all(asked.group)
    if asked.all or asked.part or asked.plain:
        return cases
    heavy = [case for case in cases if case.torch]
    return [case for case in cases if not case.torch] + heavy[asked.seed % 2 :: 2]


def arms_of(case: Case, asked: Asked) -> tuple[str, ...]:
    """A program without torch has no windows: in the short run one arm says it all."""
    if asked.plain:
        return ("plain",)
    if not case.torch and not asked.all and not asked.only:
        return ("light",)
    return ("light", "traced")


def count(seen: Counter[str], case: Case, arm: str, ours: Done) -> None:
    if arm == "plain":
        return
    kind = "torch" if case.torch else "plain"
    seen[f"{kind} programs, {arm}"] += 1
    if ours.run_dirs == 0:
        seen[f"{kind} programs that left no run: {case.name}"] += 1
    if case.torch and arm == "traced" and "traced" in ours.windows:
        seen["torch programs with a traced window"] += 1
    if case.torch and arm == "light" and ours.steps:
        seen["torch programs with steps seen"] += 1
