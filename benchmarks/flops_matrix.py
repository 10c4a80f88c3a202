"""Ridgeline against other FLOP counters on the 27 rows of the matrix, in one run.

    python benchmarks/flops_matrix.py                          # those installed here
    python benchmarks/flops_matrix.py -o docs/results/flops-matrix.md
    python benchmarks/flops_matrix.py --further --rows sdpa,LSTM --tools ridgeline,fvcore

A cell is count / truth, where truth is the arithmetic of tests/models, done by hand: 2 FLOPs a MAC,
matmul-like work only, the full square of attention. Each cell runs in a forked child (same weights,
same inputs, eval mode, one thread), so a tool that patches torch, prints or dies leaves the others
alone. Gradients are as each tool sets them, which is kind to those that leave them on: inference
without gradients takes fused paths that they cannot see. FlopCounterMode runs under no_grad, as
Ridgeline does. Times are of one call, on whatever machine this is: read their order.
"""

import argparse
import importlib.metadata
import importlib.util
import multiprocessing
import os
import platform
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # dispatch modes and checkpointing import it on first use: 1.2 s a child
from torch import nn

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from tests.models import further, matrix  # noqa: E402
from tests.models.row import Row  # noqa: E402

CELL_LIMIT_S = 120.0
Args = tuple[Any, ...]


def ridgeline(model: nn.Module, args: Args) -> float:
    from ridgeline.cost.counting import count

    return count(model, args, backend="real").cost.phases["forward"].flops


def flop_counter_mode(model: nn.Module, args: Args) -> float:
    from torch.utils.flop_counter import FlopCounterMode

    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(*args)
    return counter.get_total_flops()


def fvcore(model: nn.Module, args: Args) -> float:
    from fvcore.nn import FlopCountAnalysis

    return 2 * FlopCountAnalysis(model, args).total()


def deepspeed(model: nn.Module, args: Args) -> float:
    from deepspeed.profiling.flops_profiler import FlopsProfiler

    profiler = FlopsProfiler(model)
    profiler.start_profile()
    model(*args)
    profiler.stop_profile()
    return profiler.get_total_flops()


def torchinfo(model: nn.Module, args: Args) -> float:
    from torchinfo import summary

    return 2 * summary(model, input_data=list(args), verbose=0).total_mult_adds


def thop(model: nn.Module, args: Args) -> float:
    from thop import profile

    return 2 * profile(model, inputs=args, verbose=False)[0]


def ptflops(model: nn.Module, args: Args) -> float:
    from ptflops import get_model_complexity_info

    class OneArgument(nn.Module):
        """ptflops passes one argument, divides by its length, and returns None for a leaf."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, batch: list[Args]) -> Any:
            return self.inner(*batch[0])

    macs, _ = get_model_complexity_info(
        OneArgument(),
        (1,),
        input_constructor=lambda _: [args],
        as_strings=False,
        print_per_layer_stat=False,
    )
    if macs is None:
        raise RuntimeError("ptflops gave up")
    return 2 * macs


def calflops(model: nn.Module, args: Args) -> float:
    from calflops import calculate_flops

    flops, _, _ = calculate_flops(
        model, args=list(args), print_results=False, output_as_string=False
    )
    return flops


@dataclass(frozen=True)
class Tool:
    name: str
    module: str
    flops: Callable[[nn.Module, Args], float]

    @property
    def package(self) -> str:
        return self.module.partition(".")[0]

    @property
    def installed(self) -> bool:
        return importlib.util.find_spec(self.package) is not None

    @property
    def version(self) -> str:
        if self.name == "ridgeline":
            return "this checkout"
        return importlib.metadata.version(self.package) if self.installed else "not installed"


TOOLS = (
    Tool("ridgeline", "ridgeline.cost.counting", ridgeline),
    Tool("FlopCounterMode", "torch.utils.flop_counter", flop_counter_mode),
    Tool("fvcore", "fvcore.nn", fvcore),
    Tool("DeepSpeed", "deepspeed.profiling.flops_profiler", deepspeed),
    Tool("torchinfo", "torchinfo", torchinfo),
    Tool("thop", "thop", thop),
    Tool("ptflops", "ptflops", ptflops),
    Tool("calflops", "calflops", calflops),
)


@dataclass(frozen=True)
class Cell:
    ratio: float | None
    seconds: float = 0.0
    trouble: str = ""

    @property
    def text(self) -> str:
        return self.trouble if self.ratio is None else f"{self.ratio:.3f}"


def measure(row: Row, tool: Tool, answer: Connection) -> None:
    """In the child: count once, and send back the ratio or what went wrong."""
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    warnings.simplefilter("ignore")
    try:
        model, args = row.build()
        model.eval()
        importlib.import_module(tool.module)  # not part of the time
        start = time.perf_counter()
        flops = tool.flops(model, args)
        seconds = time.perf_counter() - start
        answer.send(Cell(flops / row.truth_flops, seconds))
    except BaseException as error:
        answer.send(Cell(None, trouble=f"err: {type(error).__name__}"))


def cell(row: Row, tool: Tool) -> Cell:
    if not tool.installed:
        return Cell(None, trouble="not installed")
    if row.needs and importlib.util.find_spec(row.needs) is None:
        return Cell(None, trouble=f"needs {row.needs}")
    fork = multiprocessing.get_context("fork")  # spawning would import torch 200 times
    receive, send = fork.Pipe(duplex=False)
    child = fork.Process(target=measure, args=(row, tool, send))
    child.start()
    send.close()
    try:
        return receive.recv() if receive.poll(CELL_LIMIT_S) else Cell(None, trouble="timeout")
    except EOFError:
        return Cell(None, trouble="died")
    finally:
        child.kill()
        child.join()


Table = dict[tuple[str, str], Cell]


def grid(head: list[str], body: list[list[str]]) -> str:
    """A Markdown table that also reads well in a terminal."""
    widths = [max(len(line[i]) for line in [head, *body]) for i in range(len(head))]

    def line(texts: list[str]) -> str:
        first, *rest = (t.ljust(w) for t, w in zip(texts, widths, strict=True))
        numbers = (t.strip().rjust(w) for t, w in zip(rest, widths[1:], strict=True))
        return "| " + " | ".join((first, *numbers)) + " |"

    rule = ["-" * widths[0], *("-" * (w - 1) + ":" for w in widths[1:])]
    return "\n".join([line(head), line(rule), *map(line, body)])


def summary(rows: list[Row], tools: list[Tool], table: Table) -> str:
    body = []
    for tool in tools:
        cells = [table[row.name, tool.name] for row in rows]
        ratios = [c.ratio for c in cells if c.ratio is not None]
        body.append(
            [
                tool.name,
                tool.version,
                f"{sum(abs(r - 1) <= 0.01 for r in ratios)} of {len(rows)}",
                f"{sum(1.01 < r <= 1.1 for r in ratios)}",
                f"{sum(r > 1.1 for r in ratios)}",
                f"{sum(0 < r < 0.99 for r in ratios)}",
                f"{sum(r == 0 for r in ratios)}",
                f"{len(cells) - len(ratios)}",
                f"{sum(c.seconds for c in cells):.1f}",
            ]
        )
    head = ["tool", "version", "right to 1 %", "≤ 10 % over", "far over", "under", "zero"]
    return grid([*head, "no count", "seconds in all"], body)


def report(rows: list[Row], tools: list[Tool], table: Table) -> str:
    names = [tool.name for tool in tools]
    ratios = [[row.name, *(table[row.name, n].text for n in names)] for row in rows]
    times = [
        [row.name, *(f"{1000 * c.seconds:.0f}" if c.ratio is not None else "–" for c in cells)]
        for row in rows
        for cells in [[table[row.name, n] for n in names]]
    ]
    return "\n\n".join(
        (
            "# FLOP counters on the matrix",
            f"Forward count / truth by hand; torch {torch.__version__}, Python "
            f"{platform.python_version()}, {platform.machine()}, eval mode, one thread, one run; "
            "FlopCounterMode and Ridgeline without gradients, the others as they set them. "
            "Up to 10 % over is mostly norms and activations counted as well, which weigh more "
            "here than in full-size models: a choice, not an error. “No count” is an exception, "
            "a crash, a timeout or a package that is not installed.",
            summary(rows, tools, table),
            "## Count / truth",
            grid(["row", *names], ratios),
            "## Milliseconds",
            grid(["row", *names], times),
        )
    )


def chosen(text: str, names: list[str]) -> set[str]:
    """Names that contain one of the comma-separated words, or all where none are given."""
    words = [word.strip().lower() for word in text.split(",") if word.strip()]
    return {n for n in names if not words or any(word in n.lower() for word in words)}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("-o", "--output", type=Path, help="also write the report here")
    parser.add_argument("--rows", default="", help="words that names of rows contain")
    parser.add_argument("--tools", default="", help="words that names of tools contain")
    parser.add_argument("--further", action="store_true", help="also the rows beyond the 27")
    options = parser.parse_args()

    torch.set_num_threads(1)  # forked children must not inherit a pool of threads
    every = [*matrix.ROWS, *(further.ROWS if options.further else ())]
    every = [row for row in every if row.truth_flops]
    rows = [r for r in every if r.name in chosen(options.rows, [r.name for r in every])]
    tools = [t for t in TOOLS if t.name in chosen(options.tools, [t.name for t in TOOLS])]
    for tool in tools:
        if not tool.installed:
            print(f"{tool.name} is not installed: pip install {tool.package}", file=sys.stderr)
    if any(row.needs for row in rows) and importlib.util.find_spec("transformers"):
        import transformers  # noqa: F401  once, before the children are forked

    table: Table = {}
    for row in rows:
        for tool in tools:
            table[row.name, tool.name] = cell(row, tool)
        if sys.stderr.isatty():
            print(f"\r{len(table) // len(tools)} of {len(rows)} rows", end="", file=sys.stderr)
    if sys.stderr.isatty():
        print(file=sys.stderr)

    text = report(rows, tools, table)
    print(text)
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
