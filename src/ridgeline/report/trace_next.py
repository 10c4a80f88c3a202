"""What to type after reading a trace's report."""

import re
import shlex
from collections.abc import Sequence

from ridgeline.records.trace import TraceStudy
from ridgeline.report.plain import printable


def next_commands(
    study: TraceStudy, typed: Sequence[str], full: bool
) -> tuple[tuple[str, str], ...]:
    """(why, command) pairs, at most three."""
    files = " ".join(_quoted(f) for f in study.files) if len(study.files) < 3 else "…"
    base = f"ridgeline trace {files}"
    asked = _without_output(typed) or ["trace", *study.files]
    end = asked.index("--") if "--" in asked else len(asked)
    words = (_quoted(word) for word in (*asked[:end], "--full", *asked[end:]))
    again = f"ridgeline {' '.join(words)}"
    found = []
    if not full:
        found.append(("everything", again if len(again) <= 160 else "ridgeline trace … --full"))
    if len(study.files) == 1:
        found.append(("on the timeline (ui.perfetto.dev)", f"{base} -o marked.perfetto.json.gz"))
    # kernels do not nest; operators do, and a sum of their durations counts inner ones twice
    summed = "sum(dur_ns) from kernels" if study.kernels else "sum(self_ns) from ops"
    question = f"select name, {summed} group by 1 order by 2 desc limit 9"
    found.append(("ask it anything", f'{base} --sql "{question}"'))
    return tuple(found)


_SHORT = re.compile(r"-[qv]*(?:(o)(.*)|[qv])")
_FLAGS = ("--json", "--quiet", "--verbose", "--full")
_WITH_VALUE = ("--output", "--top")


def _without_output(typed: Sequence[str]) -> list[str]:
    """The question itself, not where its answer went or how much of it was shown."""
    kept: list[str] = []
    words = iter(typed)
    for word in words:
        short = _SHORT.fullmatch(word)
        if word == "--":
            return [*kept, word, *words]
        if word in _WITH_VALUE or (short and short[1] and not short[2]):
            next(words, None)
        elif not (short or word in _FLAGS or word.startswith(tuple(f"{w}=" for w in _WITH_VALUE))):
            kept.append(word)
    return kept


def _quoted(word: str) -> str:
    return shlex.quote(printable(word))
