"""Of several ranks a case holds the first one's kernels, in the first one's own time."""

from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from ridgeline.diagnosis.attempts import Attempts
from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.case_of import case_of_trace
from ridgeline.diagnosis.conclusion import concluded_case
from ridgeline.diagnosis.findings import findings
from ridgeline.diagnosis.rules import layout_transposes
from ridgeline.records.run import DeviceSeen
from ridgeline.trace.study import study
from tests.unit.diagnosis import made_up_run_directory as recorded
from tests.unit.diagnosis.made_up_steps import step
from tests.unit.diagnosis.rules.made_up_kernels import case as case_of_layouts
from tests.unit.diagnosis.rules.test_layout_transposes import convolution, turning
from tests.unit.trace.traces_made import HOST, WORKER, Made

PRODUCT = "ampere_sgemm_128x64"
REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


def rank(number: int, *, ahead: int = 0, products: int = 1) -> Made:
    """Four collectives and some products of 100 µs, by a clock that may be ahead of others."""
    made = Made(distributedInfo={"rank": number, "backend": "nccl"})
    for call in range(4 + products):
        start = 1_000 + ahead + call * 110
        op, name = ("c10d::allreduce_", REDUCE) if call < 4 else ("aten::mm", PRODUCT)
        made.op(op, start - 6, 7, HOST)
        made.launch(name, start - 5, start, 100, call + 1, HOST)
    return made


def case_of(made: list[Made], folder: Path) -> Case:
    attempts = Attempts()
    found, traces = study(
        [one.write(folder, f"{i}.json") for i, one in enumerate(made)], cache=False
    )[:2]
    case = case_of_trace(found, traces, attempts)
    assert not attempts.failures
    return case


def test_kernels_of_four_ranks_are_not_added_up(tmp_path: Path) -> None:
    case = case_of([rank(number, products=2) for number in range(4)], tmp_path)
    assert case.study is not None
    of_all = {row.name: row.count for row in case.study.kernels}
    assert of_all[PRODUCT] == 8
    (one,) = [row for row in case.kernels if row.name == PRODUCT]
    assert (one.count, one.total_ns) == (2, 200_000)


def test_a_trace_alone_has_its_own(tmp_path: Path) -> None:
    case = case_of([rank(0)], tmp_path)
    assert case.study is not None
    assert case.kernels == case.study.kernels


@pytest.mark.parametrize("ahead", [0, 50_000, 10_000_000])
def test_a_longer_rank_with_another_clock_does_not_hide_the_first(
    ahead: int, tmp_path: Path
) -> None:
    case = case_of([rank(0), rank(1, ahead=ahead, products=3)], tmp_path)
    assert [row.count for row in case.kernels if row.name == PRODUCT] == [1]
    assert any(site.op == "aten::mm" for site in case.sites.ops)


def test_a_rule_charges_the_ranks_own_kernels() -> None:
    one = case_of_layouts(convolution(), kernels=(turning(10),))
    job = replace(one, study=one.study and replace(one.study, kernels=(turning(40),)))
    assert [f.share_pct for f in layout_transposes.look(job)] == [pytest.approx(40)]
    own = replace(job, rank_kernels=(turning(10),))
    assert [f.share_pct for f in layout_transposes.look(own)] == [pytest.approx(10)]


def test_traces_of_a_run_say_what_the_run_says_of_its_ranks(tmp_path: Path) -> None:
    cpu = DeviceSeen(kind="cpu")
    run = recorded.directory(
        tmp_path, run=recorded.run_file(ranks=2), captured=recorded.capture(device=cpu, world=2),
        stepped=[step(i, {"forward": 5, "backward": 80}) for i in range(40)],
    )  # fmt: skip
    other = recorded.capture(rank=1, world=2, device=cpu)
    run.capture_file(1).write_bytes(msgspec.json.encode(other))
    slow = [step(i, {"input": 70, "forward": 5, "backward": 10}) for i in range(40)]
    recorded.lines(run.steps_file(1), slow)
    for number in range(2):
        made = Made(distributedInfo={"rank": number, "backend": "gloo", "world_size": 2})
        made.span("ProfilerStep#0", 0, 1_000).op("aten::mm", 100, 400)
        made.frame("torch/autograd/__init__.py(200): backward", 550, 400)
        made.span("gloo:all_reduce", 600, 300, tid=WORKER)
        made.write(run.path, f"trace-rank{number}.json.gz")
    concluded = concluded_case(run)[1]
    found, traces = study([run.trace_file(n) for n in range(2)], cache=False)[:2]
    alone = case_of_trace(found, traces, Attempts())
    assert concluded is not None
    assert alone.late is not None
    assert alone.late.rank == 1
    assert alone.late == concluded.late
    (one,), (other_one,) = [
        [f for f in findings(case, Attempts()).findings if f.rule == "late-rank"]
        for case in (concluded, alone)
    ]
    assert (one.share_pct, one.gain_bound) == (other_one.share_pct, other_one.gain_bound)
