"""The lines that make batches, as far as anything saw them.

In the program's own process the trace saw every call: functions and what they call, whose line the
source tells. Samples are second there: without a shorter switch interval, which a plain run does
not touch, they fall on lines that let go of the interpreter's lock (`torch.tensor(values)` in the
place of the loop that made the values). In workers the samples are all there is.
"""

import ast
import re
from collections import defaultdict

from ridgeline.diagnosis.case import Case
from ridgeline.records.input_site import InputSite
from ridgeline.records.python_view import PythonLine
from ridgeline.source.reading.calls import calls_at
from ridgeline.source.reading.sources import Source

FEWEST = 15
"""Samples: fewer tell nothing about where the time goes."""
_COMPREHENSION = re.compile(r"^<(?:listcomp|dictcomp|setcomp|genexpr)>$")


def batch_lines(case: Case) -> tuple[PythonLine, ...]:
    """Costliest first; shares are of the time a batch takes to make."""
    asked = case.run is not None and case.run.settings.python
    view = case.python.input if case.python is not None else None
    sampled = view is not None and view.main_samples + view.worker_samples >= FEWEST
    here = case.input.kind in ("single", "by hand") and case.input.sites
    if here and not (asked and sampled):
        return _traced(case)
    if view is None or not sampled:
        return ()
    return tuple(line for line in view.lines if line.file)


def _traced(case: Case) -> tuple[PythonLine, ...]:
    whole = max(case.input.ns, sum(site.place.ns for site in case.input.sites), 1.0)
    steps = case.study.window.steps if case.study is not None else 1
    found = []
    for site in case.input.sites:
        for (number, calls), ns in _by_line(case, site).items():
            source = case.sources.get(site.place.file)
            found.append(
                PythonLine(
                    file=site.place.file,
                    line=number,
                    function=_qualified(source, site),
                    source=source.line(number) if source is not None else "",
                    share=ns / whole,
                    total_share=ns / whole,
                    seconds=ns * max(steps, 1) / 1e9,
                    calls=calls,
                )
            )
    return tuple(sorted(found, key=lambda line: -line.share))


def _qualified(source: Source | None, site: InputSite) -> str:
    """Pictures.__getitem__: a trace has the last part alone. A comprehension is a part of the
    function it stands in."""
    scope = source.scope(site.place.line) if source is not None else None
    around = source.parents(scope) if source is not None and scope is not None else ()
    named = [node.name for node in around if isinstance(node, ast.ClassDef)]
    name = site.place.function
    if _COMPREHENSION.match(name) and source is not None:
        name = getattr(scope, "name", "<module>")
    return ".".join([*reversed(named), name])


def _by_line(case: Case, site: InputSite) -> dict[tuple[int, str], float]:
    """Each call's time on its line; what is in no call, or in one the source does not show (an
    operator's method), on the costliest of them."""
    lines: defaultdict[int, float] = defaultdict(float)
    calls: dict[int, str] = {}
    for callee in site.callees:
        at = calls_at(case.sources, site.place, {callee.name})
        if at:
            lines[at[0].line] += callee.ns
            named = f"{callee.within}.{callee.name}" if callee.within else callee.name
            calls.setdefault(at[0].line, named)
    rest = site.place.ns - sum(lines.values())
    if not lines:
        first = site.callees[0] if site.callees else None
        named = f"{first.within}.{first.name}" if first is not None and first.within else ""
        return {(_deepest(case, site), named): float(site.place.ns)}
    most = max(lines, key=lambda number: lines[number])
    if rest > lines[most]:  # the function's own Python takes more than any call
        most = _deepest(case, site)
    lines[most] += max(rest, 0.0)
    return {(number, calls.get(number, "")): ns for number, ns in lines.items()}


def _deepest(case: Case, site: InputSite) -> int:
    """The first line of the innermost loop, where a function spends its time if anywhere; else
    where it begins."""
    source = case.sources.get(site.place.file)
    if source is None:
        return site.place.line
    nodes = [n for n in source.walk(source.scope(site.place.line)) if hasattr(n, "lineno")]
    looped = [(-source.loops(n), n.lineno) for n in nodes if source.loops(n)]
    return min(looped)[1] if looped else site.place.line
