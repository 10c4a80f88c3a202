"""Jobs of several ranks, simulated: every rank's clock, arrivals and work are known."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from traces_made import AUTOGRAD, HOST, Made

from ridgeline.records.trace import Ranks, Window
from ridgeline.trace.links import Links
from ridgeline.trace.ranks.job import ranks
from ridgeline.trace.trace import Trace

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
COMMUNICATION_STREAM = 20


def told(
    sequence: int,
    name: str = "allreduce",
    items: int = 250_000,
    size: int = 2,
    group: str = "0",
    members: str = "[0, 1]",
    out: int | None = None,
) -> dict[str, Any]:
    """What newer traces write beside a collective kernel; Float, so four bytes an item."""
    return {
        "Collective name": name, "In msg nelems": items,
        "Out msg nelems": items if out is None else out, "Group size": size, "dtype": "Float",
        "Process Group Name": group, "Process Group Ranks": members, "Seq": sequence,
    }  # fmt: skip


class Rank(Made):
    """One rank with its own clock: what is given in the job's time is written in its own (µs)."""

    def __init__(self, rank: int | None, behind: int = 0) -> None:
        beside = {} if rank is None else {"distributedInfo": {"rank": rank, "backend": "nccl"}}
        super().__init__(**beside)
        self.behind = behind
        self.calls_made = 0

    def event(self, cat: str, name: str, ts: float, dur: float, tid: Any, pid: Any = 100,
              **args: Any) -> "Made":  # fmt: skip
        return super().event(cat, name, ts - self.behind, dur, tid, pid, **args)

    def collective(self, start: int, end: int, name: str = ALL_REDUCE, tid: int = AUTOGRAD,
                   op: str = "c10d::allreduce_", **args: Any) -> "Rank":  # fmt: skip
        """Its kernel, from this rank's arrival to the end, launched 5 µs before."""
        self.calls_made += 1
        if op:
            self.op(op, start - 6, 4, tid)
        self.launch(name, start - 5, start, end - start, self.calls_made, tid,
                    stream=COMMUNICATION_STREAM, **args)  # fmt: skip
        return self

    def work(self, op: str, start: int, end: int, tid: int = HOST, around: str = "") -> "Rank":
        """A kernel of an operator that is launched 5 µs before it."""
        self.calls_made += 1
        if around:
            self.op(around, start - 8, 10, tid)
        self.op(op, start - 6, 7, tid)
        self.launch(f"kernel_of_{op}", start - 5, start, end - start, self.calls_made, tid)
        return self


def study(made: Sequence[Made], folder: Path) -> Ranks:
    return studied([one.trace(folder, f"{i}.json") for i, one in enumerate(made)])


def studied(traces: Sequence[Trace]) -> Ranks:
    links = [Links(trace) for trace in traces]
    return ranks(traces, links, [whole(trace) for trace in traces])


def whole(trace: Trace) -> Window:
    tables = [t for t in (trace.device, trace.ops, trace.annotations) if len(t)]
    low = min((int(t.ts.min()) for t in tables), default=0)
    high = max((int(t.end.max()) for t in tables), default=0)
    return Window(start_ns=low, end_ns=high, basis="all of it")
