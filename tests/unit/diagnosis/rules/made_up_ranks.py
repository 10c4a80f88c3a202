"""Two ranks that exchange gradients, made up: steps of 100 ms."""

from collections.abc import Sequence

from ridgeline.diagnosis.case import Case
from ridgeline.records.facts import Trust
from ridgeline.records.run import Capture, DeviceSeen, ModuleSeen, Step
from ridgeline.records.sites import CollectiveSite, Exchange, RankPlace, SitePhase, Sites
from ridgeline.records.trace import Activity, CollectiveRow, Place, Ranks, RankTime
from ridgeline.source.file import SourceFiles
from tests.unit.diagnosis import made_up_verdict as made
from tests.unit.diagnosis.made_up_steps import MS

MIB = 2**20


def site(
    ms: float, *, calls: float = 1, size: int | None = 4 * MIB, name: str = "all_reduce",
    phase: SitePhase = "backward", exposed: float | None = None, function: str = "main",
    line: int = 1, least: float | None = None,
) -> CollectiveSite:  # fmt: skip
    """`ms`: of all its calls in a step."""
    shown = ms if exposed is None else exposed
    return CollectiveSite(
        name=name, bytes=size, calls=calls, ns=ms * MS, exposed_ns=shown * MS, phase=phase,
        least_ns=(ms / calls if least is None else least) * MS,
        place=Place(file="train.py", line=line, function=function) if function else None,
    )  # fmt: skip


def case(
    *sites: CollectiveSite, gpu: bool = True, source: str = "", backwards: int = 1,
    parameters: int = 0, across: Ranks | None = None, places: Sequence[RankPlace] = (),
    run: bool = True, traced_backwards: float = 0.0,
) -> Case:  # fmt: skip
    whole = sum(one.ns for one in sites)
    steps = [
        Step(index=i, start_ns=i * 100 * MS, dur_ns=100 * MS, backwards=backwards,
             optimizer_steps=1)
        for i in range(20)
    ]  # fmt: skip
    module = ModuleSeen(
        name="Net", wrappers=("DistributedDataParallel",), calls=20, parameter_bytes=parameters,
        place="train.py:7",
    )  # fmt: skip
    seen = Capture(world=2, modules=(module,), device=DeviceSeen(kind="cuda" if gpu else "cpu"))
    return Case(
        kind="run" if run else "trace",
        on_gpu=gpu,
        capture=seen if run else None,
        steps=tuple(steps) if run else (),
        times=made.times({"forward": 0.3, "backward": 0.6}, gpu=gpu),
        work=made.work(0.8, gpu=gpu),
        study=made.study({"other host": 0.1}),
        sites=Sites(steps=3, stacks=True),
        exchange=Exchange(
            sites=sites, ns=whole, exposed_ns=sum(one.exposed_ns for one in sites),
            backwards=traced_backwards,
        ),
        across=across,
        rank_places=tuple(places),
        across_ns=300 * MS,
        sources=SourceFiles(texts={"train.py": source} if source else {}),
    )  # fmt: skip


def ranks(
    caused: Sequence[float],
    *,
    count: int = 6,
    waits: Sequence[float] = (),
    trust: Trust | None = None,
) -> Ranks:
    """`caused`: milliseconds all others waited for each rank, over three steps."""
    total = sum(caused) or 1.0
    return Ranks(
        ranks=tuple(
            RankTime(
                rank=i, label=f"rank {i}", busy_ns=None, idle_ns=None, window_ns=300 * MS,
                compute_ns=0, communication_ns=60 * MS,
                wait_ns=round(MS * (waits[i] if waits else 0)),
                transfer_ns=30 * MS, late_count=round(count * ms / total),
                caused_wait_ns=round(ms * MS),
                doing=(Activity(side="host", name="aten::mm", ns=MS),) if ms else (),
            )
            for i, ms in enumerate(caused)
        ),
        collectives=(
            CollectiveRow(name="all_reduce", count=count, wire_ns=MS, wait_ns=0, skew_ns=0),
        ),
        matched=count,
        trust=trust or Trust(),
    )  # fmt: skip


def rank_place(rank: int, ms: float, others: float, function: str, line: int) -> RankPlace:
    place = Place(file="train.py", line=line, function=function)
    return RankPlace(rank=rank, place=place, ns=ms * MS, others_ns=others * MS)
