"""How a model's cost grows, for people at a terminal: sweeps with their laws, and generation."""

from collections.abc import Callable

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ridgeline import units
from ridgeline.records.latency import Generation
from ridgeline.records.model import Sweep


def plain_table() -> Table:
    return Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")


def show_generation(g: Generation, console: Console) -> None:
    token = f"{g.uncached_token_ms:.3g} ms without KV cache"
    if g.cached_token_ms is not None:
        token = f"{g.cached_token_ms:.3g} ms with KV cache, {token}"
    if g.cache_speedup:
        token += f" ({g.cache_speedup:.2g} ×)"
    console.print(
        f" generation  first token {g.first_token_ms:.3g} ms after a prompt of {g.prompt_tokens} · "
        f"each further token {token} · {units.plural(g.tokens, 'token')}, batch {g.batch}",
        highlight=False,
    )
    for note in g.notes:
        console.print(f"   {escape(note)}", style="dim", highlight=False)
    console.print()


_UNITS: dict[str, Callable[[float], str]] = {
    "flops": units.flop,
    "peak_bytes": units.bytes_,
    "median_ms": lambda value: units.seconds(value / 1e3),
}
LEAST_R_SQUARED = 0.5
_NAMES = {"flops": "FLOPs", "peak_bytes": "peak memory", "median_ms": "latency"}


def show_sweep(sweep: Sweep, console: Console) -> None:
    table = plain_table()
    table.add_column(f" {sweep.dimension}")
    for name in sweep.laws:
        table.add_column(_NAMES[name], justify="right")
    for point in sweep.points:
        cells = (getattr(point, n) for n in sweep.laws)
        table.add_row(
            f" {point.size}",
            *("—" if v is None else _UNITS[n](v) for n, v in zip(sweep.laws, cells, strict=True)),
        )
    console.print(table)
    for name in sweep.laws:
        console.print(escape(f" {_law(sweep, name)}"), highlight=False)
    for note in sweep.notes:
        console.print(f" {escape(note)}", style="dim", highlight=False)
    console.print()


def _law(sweep: Sweep, name: str) -> str:
    law, unit = sweep.laws[name], _UNITS[name]
    worst = 100 * law.worst_relative_error
    fit = "exact" if law.exact else f"R² {law.r_squared:.4f}, worst {worst:.1f} % off"
    text = f"{_NAMES[name]}: {law.form}, {law.equation} ({fit})"
    if law.r_squared < LEAST_R_SQUARED and not law.exact:
        return f"{_NAMES[name]}: no law fits ({fit}); a quieter machine or more sizes may help"
    predicted, observed = sweep.predicted.get(name), sweep.observed.get(name)
    if predicted is None:
        return text
    text += f"; {sweep.dimension} {sweep.next_size} predicted {unit(predicted)}"
    if observed:
        text += f", found {unit(observed)} ({100 * (observed / predicted - 1):+.1f} %)"
    return text
