"""torch.cuda.synchronize(), or an event's or a stream's, left in the loop."""

from collections.abc import Iterator, Sequence

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import Rule
from ridgeline.diagnosis.rules._waits import Waiting, often, wait_findings
from ridgeline.records.finding import Finding
from ridgeline.source.file import SourceFile
from ridgeline.source.waiting import Line, calls, makes_calls

RULE = Rule(
    id="explicit-synchronize", family="synchronisation", budget="overhead", needs=("trace", "gpu")
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
    yield from wait_findings(RULE, case, "explicit", _lines, _claim, _change)


def _lines(case: Case, wait: Waiting) -> tuple[Line, ...]:
    return calls(case.sources, wait.place, {"synchronize"})


def _claim(wait: Waiting, lines: Sequence[Line]) -> str:
    what = f"`{lines[0].expression}`" if lines else "A synchronisation asked for"
    return f"{what} makes the host wait for the GPU {often(wait.times)}"


def _change(case: Case, source: SourceFile | None, wait: Waiting, lines: Sequence[Line]) -> str:
    gone = f"# take out: {lines[0].text}" if lines else "# take the synchronisation out"
    called = wait.sites[0].call  # cudaStreamSynchronize, cudaEventSynchronize …
    if "Event" in called or makes_calls(case.sources, wait.place, {"elapsed_time"}):
        return f"{gone}\n{_LATER}"
    timed = makes_calls(
        case.sources, wait.place, {"perf_counter", "perf_counter_ns", "time", "monotonic"}
    )
    return f"{gone}\n{_EVENTS}" if timed or not lines else gone
