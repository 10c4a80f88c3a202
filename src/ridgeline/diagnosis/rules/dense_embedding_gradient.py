"""The gradient of an embedding as large as its table, though few rows were used."""

import ast
from collections.abc import Iterator
from math import prod
from typing import Any, Literal

from ridgeline import units
from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import Rule, gain_without, make_finding, measured
from ridgeline.diagnosis.rules._operators import TYPE_BYTES, spent_ns
from ridgeline.diagnosis.rules.python_loops import python_loop
from ridgeline.diagnosis.step_times import share_of
from ridgeline.records.finding import Evidence, Finding
from ridgeline.records.sites import OpSite
from ridgeline.records.trace import Place
from ridgeline.source.calls import with_argument
from ridgeline.source.file import SourceFile, last_name
from ridgeline.source.layers import Layer, Lookups, layers, lookups_in_loop, value_of

MIN_SHARE = 0.02
MIN_OTHER_UPDATE_SHARE = 0.1
"""Share of the step that must be saved if the optimizer's moments or decay make the sparse update
another algorithm."""
MAX_USED_SHARE = 0.05
"""Largest share of the rows that a step uses. A sparse update sorts and scatters, at some ten times
the cost of a row streamed."""
CPU_FREEING_SHARE = 0.16
"""Giving the gradient's memory back on a CPU, as a share of the gradient's own time. It is no
operator's time: 61 MiB took 29 ms to make and 4.6 ms to free."""
_PHASES: tuple[Literal["backward"], Literal["optimizer"]] = ("backward", "optimizer")
"""The phases in which a table's gradient is made and used."""
MIN_LOOKUPS_IN_LOOP = 16
"""Lookups of one table from one function that count as a loop. Fewer are a model's inputs."""
_PRODUCTS = ("aten::mm", "aten::addmm", "aten::linear", "aten::matmul", "aten::bmm")

RULE = Rule(
    id="dense-embedding-gradient", family="kernels", budget="work", needs=("sites", "shapes")
)


def look(case: Case) -> Iterator[Finding]:
    by_table: dict[tuple[int, int], list[OpSite]] = {}
    for site in case.sites.ops:
        if site.op == "aten::embedding_dense_backward" and (table := _table(site)) is not None:
            by_table.setdefault(table, []).append(site)
    at: set[int] = set()
    for table, sites in by_table.items():
        for finding in _of_table(case, table, sites, at):
            at.add(finding.line or 0)
            yield finding


def _of_table(
    case: Case, table: tuple[int, int], backward: list[OpSite], taken: set[int]
) -> Iterator[Finding]:
    """Yield the finding of a table. `taken` are the lines of tables that have a finding already."""
    rows, width = table
    looked_up = sum(s.calls * prod(s.dims[1]) for s in backward)
    tables = max(sum(s.calls for s in backward), 1.0)  # several of one size, or one used twice
    if looked_up > MAX_USED_SHARE * rows * tables or _tied(case, table):
        return
    whole = [(s, part) for s in case.sites.ops if (part := _part(s, table)) > 0]
    making = case.exposed(*backward) * (1.0 if case.on_gpu else 1 + CPU_FREEING_SHARE)
    share = making + sum(case.exposed(s) * part for s, part in whole)
    names = [o.name for o in case.capture.optimizers] if case.capture is not None else []
    doubt = _doubt(case, names)
    if share < (MIN_OTHER_UPDATE_SHARE if doubt else MIN_SHARE):
        return
    place, line, layer = _made(case, backward[0], rows, taken)
    spent = spent_ns(case, backward)
    updated = sum(spent_ns(case, [s]) * part for s, part in whole)
    looped = _looped(backward, tables)
    table_bytes = rows * width * TYPE_BYTES.get(backward[0].types[0], 4)
    loop = lookups_in_loop(case.sources, backward[0].place) if looped else None
    if loop is not None:
        place, line = loop.place, loop.place.line
    behind = looped and _in_python_loop(case, backward[0].place)
    if behind:
        doubt = "; ".join(filter(None, (_WITH_LOOP, doubt)))
    change = _change(layer, names)
    yield make_finding(
        RULE,
        claim=_claim(rows, looked_up, tables, looped),
        share=share,
        bound=_bound(case, share, spent, updated),
        place=place,
        line=line,
        module=backward[0].module,
        change=_at_once(layer, loop, tables, change) if looped else change,
        confidence="low" if behind else "high" if layer is not None and not doubt else "medium",
        doubt=doubt,
        evidence=_evidence(table_bytes, tables, spent, updated, looked_up / rows / tables),
    )


def _claim(rows: int, looked_up: float, tables: float, looped: bool) -> str:
    each = max(round(looked_up / tables), 1)
    if looped:
        return (
            f"one embedding of {rows:,} rows is looked up {round(tables):,} times a step, for some "
            f"{each:,} rows each: every time a gradient of the whole table is made"
        )
    per = "step" if tables <= 1 else "lookup"
    return (
        f"{each:,} rows of an embedding of {rows:,} are used a {per}, and its gradient and its "
        "update go over all of them"
    )


def _evidence(
    table_bytes: int, tables: float, spent: float, updated: float, used: float
) -> tuple[Evidence, ...]:
    """Return the facts. Times are of a traced step, which is longer than the others."""
    times = f"{round(tables):,} × " if tables > 1 else ""
    seconds = f"{units.seconds(spent / 1e9)} a traced step"
    text = f"{seconds} for {times}{units.bytes_(table_bytes)}"
    each = " a lookup" if times else ""
    return (
        measured("gradient of the table", text, spent / 1e6),
        measured(
            "other operators over the whole table",
            f"{units.seconds(updated / 1e9)} a traced step",
            updated / 1e6,
        ),
        measured("rows used", f"{units.percent(used)}{each}", used),
    )


_WITH_LOOP = "it goes with the loop of lookups: one lookup makes one gradient"


def _looped(backward: list[OpSite], calls: float) -> bool:
    """Return whether one function looks one table up in a loop, which is then the cause."""
    modules = {site.module for site in backward}
    places = {(s.place.file, s.place.function) if s.place else ("", "") for s in backward}
    return calls >= MIN_LOOKUPS_IN_LOOP and len(modules) == 1 and len(places) == 1


def _in_python_loop(case: Case, place: Place | None) -> bool:
    """Return whether python-loop reports the same function."""
    if place is None or not case.sites.stacks:
        return False
    told = (found.function for found in python_loop(case) if found.file == place.file)
    return place.function in told


CACHE_FACTOR_ON_CPU = 1.1
"""The most that goes on a CPU, as a multiple of the time in operators over the table: they push the
data of forward and backward out of the cache. 3.36 × was gained where they took 65 %."""


def _bound(case: Case, share: float, spent: float, updated: float) -> float:
    """Return the bound. Tracing lengthens small operators, not these, so that they may be more of
    the untraced step, but no more than its backward and optimizer, in which other tables have their
    part too."""
    freed = 1.0 if case.on_gpu else 1 + CPU_FREEING_SHARE
    untraced = case.device_share(freed * spent + updated)
    room = sum(share_of(case.times, phase) for phase in _PHASES)
    ahead = spent_ns(case, [s for s in case.sites.ops if s.phase in _PHASES])
    if room and ahead:
        untraced = min(untraced, room * min((spent + updated) / ahead, 1.0))
    beside = 1.0 if case.on_gpu else CACHE_FACTOR_ON_CPU
    return gain_without(beside * max(share, untraced))


def _table(site: OpSite) -> tuple[int, int] | None:
    try:
        return int(site.concrete[2]), int(site.dims[0][-1])
    except (IndexError, ValueError, TypeError):
        return None


def _part(site: OpSite, table: tuple[int, int]) -> float:
    """Return the share of a site's work that is over tensors of the table's size."""
    if site.op == "aten::embedding_dense_backward" or site.phase == "forward":
        return 0.0
    for dims in site.dims:
        if _is(dims, table):
            return 1.0
        if dims and all(isinstance(one, list | tuple) for one in dims):
            whole = sum(prod(one) for one in dims)
            mine = sum(prod(one) for one in dims if _is(one, table))
            return mine / whole if whole else 0.0
    return 0.0


def _tied(case: Case, table: tuple[int, int]) -> bool:
    rows, width = table
    return any(
        s.op in _PRODUCTS and any(_is(d, table) or _is(d, (width, rows)) for d in s.dims)
        for s in case.sites.ops
    )


def _is(dims: Any, table: tuple[int, int]) -> bool:
    return isinstance(dims, list | tuple) and tuple(map(str, dims)) == tuple(map(str, table))


def _made(
    case: Case, site: OpSite, rows: int, taken: set[int]
) -> tuple[Place | None, int | None, Layer | None]:
    """Return where the table is made, in the file of the function that looks it up: by its size,
    else by which of the function's lookups it is, else the first that no other table has."""
    source = case.sources.get(site.place.file) if site.place is not None else None
    if source is None or site.place is None:
        return site.place, None, None
    dense = [
        layer
        for layer in layers(source, ("Embedding", "EmbeddingBag"))
        if layer.keywords.get("sparse") != "True"
    ]
    sizes = {one.line: value_of(source, one.given("num_embeddings", 0)) for one in dense}
    sized = [one for one in dense if sizes[one.line] == rows]
    named = _looked_up(case, source, site)
    called = [one for one in dense if one.name and one.name == named]
    unsized = [one for one in dense if sizes[one.line] is None]
    for layer in [*sized, *called, *unsized, *dense]:
        if layer.line in taken and layer.name:  # without a name several may be made there
            continue
        place = Place(file=site.place.file, line=layer.line, function=layer.function)
        return place, layer.line, layer
    return site.place, None, None


def _looked_up(case: Case, source: SourceFile, site: OpSite) -> str:
    """Return items for self.items(i), or "" if the lookups do not pair. torch numbers the modules
    of a class in the order of their first call: a function's second number is its second lookup."""
    assert site.place is not None
    at = (site.place.file, site.place.line)
    numbers = sorted({
        number for s in case.sites.ops
        if s.place is not None and (s.place.file, s.place.line) == at
        and (number := _number(s)) is not None
    })  # fmt: skip
    own = {one.name for one in layers(source, ("Embedding", "EmbeddingBag")) if one.name}
    lookups = [
        n for n in source.walk(source.scope(site.place.line))
        if isinstance(n, ast.Call) and last_name(n) in own
    ]  # fmt: skip
    lookups.sort(key=lambda n: (n.lineno, n.col_offset))
    names = [*dict.fromkeys(last_name(n) for n in lookups)]
    number = _number(site)
    return names[numbers.index(number)] if number is not None and len(names) == len(numbers) else ""


def _number(site: OpSite) -> int | None:
    """Return 1 for TwoTower_0 / Embedding_1."""
    kind, _, number = site.module.rpartition("/")[2].strip().rpartition("_")
    told = kind.startswith("Embedding") and number.isdigit()
    return int(number) if told else None


def _change(layer: Layer | None, optimizers: list[str]) -> str:
    text = with_argument(layer.text, "sparse=True") if layer is not None else (
        "nn.Embedding(rows, width, sparse=True)"
    )  # fmt: skip
    target = layer.target if layer is not None else "table"
    change = f"{target} = {text}" if target else text
    if any("Adam" in one for one in optimizers):
        name = (layer.name if layer is not None else "") or "table"
        held = target if target and not target.startswith("self.") else f"model.{name}"
        change += (
            f"\nsparse = torch.optim.SparseAdam([{held}.weight], lr=lr)"
            "  # beside the optimizer of all else"
        )
    return change


def _at_once(layer: Layer | None, loop: Lookups | None, calls: float, change: str) -> str:
    """Return code that makes one lookup, and so one gradient: 4 times as fast as many sparse ones
    where 256 were seen."""
    table = (layer.target if layer is not None else "") or "table"
    once = (loop.at_once if loop is not None else "") or (
        f"rows = {table}(torch.cat(indices)).split(lengths)"
    )
    return (
        f"# one lookup in the place of {round(calls):,}\n{once}\n"
        f"# or, if it has to be many\n{change}"
    )


def _doubt(case: Case, names: list[str]) -> str:
    for one in case.capture.optimizers if case.capture is not None else ():
        slow = [key for key in ("momentum", "weight_decay") if _set(one.options.get(key, ""))]
        if slow:
            said = " and ".join(slow).replace("_", " ")
            return f"{one.name} has {said}, which a sparse gradient cannot have"
    moments = [name for name in names if "Adam" in name]
    if moments:
        return f"SparseAdam leaves the moments of unused rows alone, {moments[0]} does not"
    return ""


def _set(text: str) -> bool:
    try:
        return float(text) != 0
    except ValueError:
        return False
