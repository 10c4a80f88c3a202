"""What to type after reading a trace's report."""

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
    again = f"ridgeline {' '.join(_quoted(word) for word in typed)}" if typed else base
    if len(again) > 160:
        again = "ridgeline trace …"
    found = []
    if not full:
        found.append(("everything", f"{again} --full"))
    if len(study.files) == 1:
        found.append(("on the timeline (ui.perfetto.dev)", f"{base} -o marked.perfetto.json.gz"))
    table = "kernels" if study.kernels else "ops"
    question = f"select name, sum(dur_ns) from {table} group by 1 order by 2 desc limit 9"
    found.append(("ask it anything", f'{base} --sql "{question}"'))
    return tuple(found)


def _quoted(word: str) -> str:
    return shlex.quote(printable(word))
