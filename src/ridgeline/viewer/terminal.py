"""A run under way in a terminal, for people on ssh: the numbers of its page, once a second."""

import contextlib
import math
import time
from collections import deque
from collections.abc import Iterable, Sequence

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from ridgeline import units
from ridgeline.errors import RidgelineError
from ridgeline.records.run_directory import RunDirectory
from ridgeline.report.document import Part, SplitChart
from ridgeline.report.numbers import share
from ridgeline.report.plain import printable
from ridgeline.report.renderers.terminal_charts import split_lines
from ridgeline.viewer.library import program_of
from ridgeline.viewer.live import (
    News,
    Offsets,
    is_charted,
    look,
    shown_figures,
    stage_sentence,
)

POLL_INTERVAL_S = 1.0
MAX_POINTS = 400
"""Points of a curve: more than a terminal has columns."""
LABEL_COLUMNS = 24
_BLOCKS = "▁▂▃▄▅▆▇█"


class LiveView:
    """What is shown of one run. `update` takes the news, `picture` draws all that is known."""

    def __init__(self, name: str, program: str) -> None:
        self._title = f"{printable(name)}   {printable(program)}"
        self._news: News | None = None
        self._step_ms: deque[float] = deque(maxlen=MAX_POINTS)
        self._losses: deque[float] = deque(maxlen=MAX_POINTS)
        self._cores: deque[float] = deque(maxlen=MAX_POINTS)
        self._gpu_percent: deque[float] = deque(maxlen=MAX_POINTS)

    def update(self, news: News) -> None:
        self._news = news
        if news.began_over:
            self._step_ms.clear()
            self._losses.clear()
        charted = [step for step in news.steps if is_charted(step)]
        self._step_ms += [(step.device_ns or step.dur_ns) / 1e6 for step in charted]
        self._losses += [step.loss for step in news.steps if step.loss is not None]
        for point in news.telemetry:
            if point.program_cores is not None:
                self._cores.append(point.program_cores + (point.worker_cores or 0.0))
            if point.gpus and point.gpus[0].utilisation_percent is not None:
                self._gpu_percent.append(point.gpus[0].utilisation_percent)

    def picture(self, width: int) -> RenderableType:
        if self._news is None:
            return Text("reading …", "dim")
        lines = [Text(self._title, "bold"), Text(stage_sentence(self._news), "cyan"), Text()]
        lines += [
            Text.assemble((f"{label:<{LABEL_COLUMNS}}", "dim"), text)
            for label, text in shown_figures(self._news)
        ]
        room = max(width - LABEL_COLUMNS - 26, 10)
        curves = (
            ("step time, ms", self._step_ms), ("loss", self._losses),
            ("processors in use", self._cores), ("GPU in use, %", self._gpu_percent),
        )  # fmt: skip
        lines.append(Text())
        lines += [curve(label, values, room) for label, values in curves if len(values) > 1]
        phases = self._news.recent.phases
        total_ms = sum(ms for _, ms in phases)
        if total_ms:
            parts = tuple(
                Part(name, ms, units.seconds(ms / 1e3), share(ms / total_ms)) for name, ms in phases
            )
            chart = SplitChart(parts=parts, title="phases of a step")
            lines += [Text(), *split_lines(chart, width)]
        lines += [Text(), Text("Ctrl-C ends this view; the program runs on", "dim")]
        return Group(*lines)


def curve(label: str, values: Iterable[float], width: int) -> Text:
    """Return a line of blocks, the newest value to the right, with the lowest and highest value."""
    newest = list(values)[-width:]
    low, high = min(newest), max(newest)
    span = f"{units.significant(low)} to {units.significant(high)}"
    text = Text.assemble((f"{label:<{LABEL_COLUMNS}}", "dim"))
    text.append(blocks(newest), "blue")
    return text.append(f"  {span}", "dim")


def blocks(values: Sequence[float]) -> str:
    """Return a block for each value, from the lowest to the highest; a blank for what is no
    number."""
    known = [value for value in values if math.isfinite(value)]
    low, high = min(known, default=0.0), max(known, default=0.0)
    scale = (len(_BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(
        _BLOCKS[round((value - low) * scale)] if math.isfinite(value) else " " for value in values
    )


def show_live(run: RunDirectory, console: Console, interval_s: float = POLL_INTERVAL_S) -> None:
    """Show a run until it is over. Raise KeyboardInterrupt at Ctrl-C."""
    program = ""
    with contextlib.suppress(RidgelineError):  # a run that cannot be read is over at the first look
        program = program_of(run.run().target)
    view, offsets = LiveView(run.name, program), Offsets()
    with Live(console=console, auto_refresh=False, transient=True) as live:
        while True:
            news = look(run, offsets)
            offsets = news.offsets
            view.update(news)
            live.update(view.picture(console.width), refresh=True)
            if news.stage == "over":
                return
            time.sleep(interval_s)
