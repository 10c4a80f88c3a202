"""The figures of a run's work: what is drawn is bounded, and says what the facts say."""

import msgspec
import pytest

from ridgeline.records.machine import Ceiling
from ridgeline.records.run_page import ModuleWork, PythonStacks, StackNode
from ridgeline.records.trace import Place, Roofline, RooflineRow
from ridgeline.report.document import Document, Span
from ridgeline.report.renderers import html
from ridgeline.report.views.run_work import module_plot, python_plot
from ridgeline.report.views.trace_work import MAX_POINTS, roofline_plot
from tests.unit.report.made_up_trace import NASTY

CEILINGS = (
    Ceiling(quantity="matmul", value=7e14, unit="FLOP/s", source="measured", dtype="bfloat16"),
    Ceiling(quantity="matmul", value=9.9e14, unit="FLOP/s", source="datasheet", dtype="bfloat16"),
    Ceiling(quantity="matmul", value=2e15, unit="FLOP/s", source="datasheet", dtype="float8"),
    Ceiling(quantity="copy", value=3e12, unit="B/s", source="measured", disturbed=True),
)


def row(i: int, **fields: object) -> RooflineRow:
    known: dict[str, object] = {
        "op": f"aten::op{i}", "shape": f"[{i}, 64]", "dtype": "bfloat16", "count": 2,
        "device_ns": 1_000_000, "share": 0.001, "flops": 1e9, "bytes": 1e7, "flops_s": 1e15 / 3,
        "bytes_s": 1e10, "intensity": 100.0, "bound": "compute", "attained": 0.5,
        "place": Place(file="train.py", line=3), **fields,
    }  # fmt: skip
    return msgspec.convert(known, RooflineRow)


def test_points_are_bounded_and_carry_what_their_row_shows() -> None:
    plot = roofline_plot(Roofline(rows=tuple(row(i) for i in range(900)), ceilings=CEILINGS))
    assert plot is not None
    (group,) = plot.groups
    assert len(group.points) == MAX_POINTS
    assert (group.points[3].name, group.points[3].row) == ("aten::op3", "[3, 64]")
    assert (group.points[3].kind, group.points[3].attained) == ("compute", 0.5)
    assert len(msgspec.json.encode(plot)) < 100_000


def test_both_the_measured_and_the_listed_ceiling_of_used_types_are_drawn() -> None:
    plot = roofline_plot(Roofline(rows=(row(0),), ceilings=CEILINGS))
    assert plot is not None
    assert {(r.name, r.source, r.is_doubtful) for r in plot.roofs} == {
        ("bfloat16", "measured", False), ("bfloat16", "datasheet", False),
        ("memory", "measured", True),
    }  # fmt: skip


def test_an_operator_above_its_roof_has_no_share_of_it() -> None:
    plot = roofline_plot(Roofline(rows=(row(0, over_ceiling=True, attained=None),)))
    assert plot is not None
    assert plot.groups[0].points[0].attained is None


def test_without_known_work_there_is_no_figure() -> None:
    assert roofline_plot(Roofline(rows=(row(0, bytes=0.0),))) is None
    assert roofline_plot(Roofline()) is None
    assert python_plot(PythonStacks()) is None


def test_the_stacks_of_workers_stand_beside_those_of_the_program() -> None:
    nodes = (
        StackNode(parent=-1, function="<module>", file="train.py", line=4, is_own=True, main=9),
        StackNode(parent=-1, function="_worker_loop", file="torch/worker.py", worker=5),
    )
    plot = python_plot(PythonStacks(nodes=nodes, interval_s=0.01, main=9, worker=5))
    assert plot is not None
    assert {m.name: m.values for m in plot.measures} == {
        "main process": (0.09, 0.0), "workers": (0.0, 0.05),
    }  # fmt: skip
    assert plot.set_off == (0,)


@pytest.mark.parametrize("nasty", [*NASTY, "</script><img src=x>"])
def test_hostile_names_stay_inside_their_data(nasty: str) -> None:
    plot = roofline_plot(Roofline(rows=(row(0, op=nasty, shape=nasty, module=nasty),)))
    assert plot is not None
    page = html.render(Document(answer=(Span("x"),), blocks=(plot,)))
    assert page.count("</script") == 2
    assert "<img src=x" not in page


def test_modules_are_a_tree_with_all_measures() -> None:
    modules = (
        ModuleWork(name="Net", parent=-1, ns=10.0, flops=4.0, bytes=2.0),
        ModuleWork(name="Linear", parent=0, ns=7.0, flops=4.0, bytes=1.0),
    )
    plot = module_plot(modules)
    assert plot is not None
    assert [m.values for m in plot.measures] == [(10, 7), (4, 4), (2, 1)]
    assert plot.parents == (-1, 0)


def test_the_costliest_line_is_told_not_the_outermost() -> None:
    def node(parent: int, line: int, main: int, *, is_own: bool = True) -> StackNode:
        return StackNode(
            parent=parent, function="f", file="a/train.py", line=line, is_own=is_own, main=main
        )

    nodes = (node(-1, 1, 10), node(0, 2, 9), node(1, 0, 6, is_own=False), node(2, 3, 6))
    plot = python_plot(PythonStacks(nodes=nodes, interval_s=0.01, main=10))
    assert plot is not None
    assert plot.title.startswith("60 % of")
    assert "train.py:3 " in plot.title
