"""torch.cuda.synchronize(), or an event's or a stream's, left in the loop."""

from collections.abc import Iterator

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import Rule
from ridgeline.diagnosis.rules._sync import Waiting, often, wait_finding, waiting
from ridgeline.records.finding import Finding
from ridgeline.source.reading.waiting_lines import Line, calls, makes_calls

RULE = Rule(
    id="explicit-synchronize",
    family="synchronisation",
    title="The program asks to wait for the device",
    budget="overhead",
    needs=("trace", "gpu"),
    looks_at="Waiting calls of the runtime outside any operator: torch.cuda.synchronize(), "
    "Event.synchronize(), Stream.synchronize(); and the device's idle time after each.",
    threshold="1 % of the step lost. Waits of the profiler, and of threads beside the program, do "
    "not count.",
    why="After a synchronisation the device has nothing left to do, and idles until the host has "
    "launched more. Mostly it was put there to time something, and stayed. Order between kernels "
    "needs no such wait: a stream keeps it by itself.",
    fix="""Take it out. To time parts of a step, let the device take the times:

```python
marks = []                                 # before the loop
...
began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
began.record()
...                                        # what is timed
ended.record()
marks.append((began, ended))
...
torch.cuda.synchronize()                   # once, after the loop
milliseconds = sum(began.elapsed_time(ended) for began, ended in marks)
```

Where events are used already: read `elapsed_time` after the loop, not in each step.

Between streams: `stream.wait_stream(other)` makes the device wait, not the host.""",
    wrong_when="Something outside torch reads the memory (another library, a file by DMA): then "
    "the wait is needed, and an event on that stream is the narrowest one.",
)
_READ = """\
torch.cuda.synchronize()  # once, after the loop
milliseconds = sum(began.elapsed_time(ended) for began, ended in marks)"""
_EVENTS = f"""\
marks = []  # once, before the loop
began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
began.record()
...  # what is to be timed
ended.record()
marks.append((began, ended))
{_READ}"""
_LATER = f"""\
marks = []  # once, before the loop
marks.append((began, ended))  # the step's two events: their time is read later
{_READ}"""


def look(case: Case) -> Iterator[Finding]:
    for wait in waiting(case, "explicit"):
        lines = calls(case.sources, wait.place, {"synchronize"})
        what = f"`{lines[0].expression}`" if lines else "A synchronisation asked for"
        yield wait_finding(
            RULE,
            case,
            wait,
            claim=f"{what} makes the host wait for the GPU {often(wait.times)}",
            lines=lines,
            change=_change(case, wait, lines),
        )


def _change(case: Case, wait: Waiting, lines: tuple[Line, ...]) -> str:
    gone = f"# take out: {lines[0].text}" if lines else "# take the synchronisation out"
    if "Event" in wait.call or makes_calls(case.sources, wait.place, {"elapsed_time"}):
        return f"{gone}\n{_LATER}"
    timed = makes_calls(
        case.sources, wait.place, {"perf_counter", "perf_counter_ns", "time", "monotonic"}
    )
    return f"{gone}\n{_EVENTS}" if timed or not lines else gone
