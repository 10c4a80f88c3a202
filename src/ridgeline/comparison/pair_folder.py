"""A folder of pairs: each `baseline_X.py` with every `optimized_X….py` beside it."""

import ast
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from ridgeline.comparison.contenders import Options, Say, SkippedError
from ridgeline.comparison.functions import compare_functions, skipped
from ridgeline.errors import RidgelineError, UsageError
from ridgeline.records.comparison import Pair, PairFolder, Skipped

BASELINE, OPTIMIZED, FUNCTION = "baseline_", "optimized_", "workload"


class Files(Struct, frozen=True):
    """The two files of a pair; one of them may be missing."""

    name: str
    baseline: Path | None
    optimized: Path | None


def find_pairs(folder: Path) -> list[Files]:
    """Return the pairs by name. `optimized_attention_flex.py` belongs to the baseline with the
    longest name that its own begins with."""
    baselines = {path.stem.removeprefix(BASELINE): path for path in folder.glob(f"{BASELINE}*.py")}
    found, used = [], set()
    for path in sorted(folder.glob(f"{OPTIMIZED}*.py")):
        name = path.stem.removeprefix(OPTIMIZED)
        fitting = [b for b in baselines if name == b or name.startswith(f"{b}_")]
        owner = max(fitting, key=len, default=None)
        used.add(owner)
        found.append(Files(name, baselines[owner] if owner is not None else None, path))
    found += [Files(name, path, None) for name, path in baselines.items() if name not in used]
    if not found:
        raise UsageError(
            f"there are no pairs in {folder}",
            f"a pair is {BASELINE}X.py and {OPTIMIZED}X.py, each with a function {FUNCTION}()",
        )
    return sorted(found, key=lambda files: files.name)


def compare_folder(
    folder: Path,
    options: Options,
    say: Say,
    finished: Callable[[Pair | Skipped], None] = lambda row: None,
) -> PairFolder:
    """Compare every pair; one that cannot be run is in the result, too. `finished` is called with
    each as it is done. Ctrl-C ends the comparison with the pairs so far."""
    rows: list[Pair | Skipped] = []
    pairs = find_pairs(folder)
    interrupted = False
    try:
        for number, files in enumerate(pairs, start=1):
            place = f"{files.name} ({number} of {len(pairs)})"
            row = _one(files, options, lambda now, place=place: say(f"{place}: {now}"))  # type: ignore[misc]
            rows.append(row)
            finished(row)
            if isinstance(row, Pair) and row.comparison.stopped == "interrupted":
                interrupted = True
                break
    except KeyboardInterrupt:
        interrupted = True
    return PairFolder(
        folder=str(folder), pairs=tuple(rows), interrupted=interrupted, found=len(pairs)
    )


def _one(files: Files, options: Options, say: Say) -> Pair | Skipped:
    if files.baseline is None or files.optimized is None:
        missing = BASELINE if files.baseline is None else OPTIMIZED
        return Skipped(
            name=files.name, status="BROKEN", reason=f"there is no {missing}{files.name}.py"
        )
    targets = [f"{path}:{FUNCTION}" for path in (files.baseline, files.optimized)]
    try:
        comparison = compare_functions(targets, options.started(), say)
    except (RidgelineError, SkippedError) as error:
        return skipped(files.name, error)
    return Pair(name=files.name, title=title_of(files.baseline), comparison=comparison)


def title_of(path: Path) -> str:
    """Return the first line of a file's docstring, without its full stop."""
    try:
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    except (SyntaxError, ValueError, OSError):
        return ""
    lines = (line.strip().rstrip(".") for line in text.splitlines() if line.strip())
    return next(lines, "")
