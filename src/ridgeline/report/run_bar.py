"""A step's phases to scale: one line where they fit on one, else a line each."""

from rich.text import Text

from ridgeline.records.run_summary import PhaseTime, StepTimes
from ridgeline.report.run_figures import milliseconds

BLOCKS = 40
"""Characters for the whole step on one line."""
LEAST = 0.005
"""Phases below half a percent of the step are left to `other`'s company in the document."""
COLOURS = {
    "input": "red",
    "transfer": "blue",
    "forward": "green",
    "backward": "green",
    "optimizer": "cyan",
    "evaluation": "magenta",
    "other": "bright_black",
}
_GAP = "    "


def bar(step: StepTimes, width: int) -> list[Text]:
    shown = [phase for phase in step.phases if phase.share >= LEAST]
    if not shown or width < 20:
        return []
    line = _on_one_line(shown)
    return [line] if line.cell_len <= width else _one_each(shown, width)


def _on_one_line(phases: list[PhaseTime]) -> Text:
    line = Text()
    for number, phase in enumerate(phases):
        line.append(_GAP if number else "")
        line.append(f"{phase.phase} ")
        line.append("█" * round(phase.share * BLOCKS) or "▏", style=COLOURS[phase.phase])
        line.append(f" {milliseconds(phase.ms)}")
    return line.append(" ms")


def _one_each(phases: list[PhaseTime], width: int) -> list[Text]:
    names = max(len(phase.phase) for phase in phases)
    times = max(len(milliseconds(phase.ms)) for phase in phases)
    room = min(max(width - names - times - 12, 4), BLOCKS)
    longest = max(phase.share for phase in phases)
    lines = []
    for phase in phases:
        blocks = "█" * round(phase.share / longest * room) or "▏"
        line = Text(f"{phase.phase:<{names}} ")
        line.append(f"{blocks:<{room}}", style=COLOURS[phase.phase])
        line.append(f" {milliseconds(phase.ms):>{times}} ms {100 * phase.share:3.0f} %")
        lines.append(line)
    return lines
