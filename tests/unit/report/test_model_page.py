"""The page of models: figures that say what the record says."""

import msgspec
import pytest

from ridgeline.records.cost import ModuleCost, Totals
from ridgeline.report.document import Block, Cell, Document, Section, SplitChart
from ridgeline.report.drawings import IciclePlot, RooflinePlot
from ridgeline.report.renderers import html
from ridgeline.report.views.model_page import page
from tests.unit.report.made_up import COST, memory, placement, report
from tests.unit.report.made_up_trace import NASTY
from tests.unit.report.rendered import tables

MODULES = (
    *COST.modules,
    ModuleCost(path="b", type="Block", calls=2, parameters=20, phases={}),
    ModuleCost(path="b.inner", type="Linear", calls=2, parameters=12,
               phases={"forward": Totals(flops=9, all_flops=11, bytes=7)}),
    ModuleCost(path="lost.child", type="Linear", calls=1, parameters=1, phases={}),
)  # fmt: skip
WHOLE = report(cost=msgspec.structs.replace(COST, modules=MODULES))


def blocks(document: Document, kind: type) -> list[Block]:
    def all_of(some: tuple[Block, ...]) -> list[Block]:
        return [b for one in some for b in ([one] if not isinstance(one, Section) else
                                            all_of(one.blocks))]  # fmt: skip

    return [block for block in all_of(document.blocks) if isinstance(block, kind)]


def test_modules_stand_below_the_module_that_holds_them() -> None:
    (tree,) = blocks(page([WHOLE]), IciclePlot)
    assert isinstance(tree, IciclePlot)
    holder = {name: tree.parents[i] for i, name in enumerate(tree.names)}
    assert holder[WHOLE.model] == -1
    assert tree.names[holder["inner"]] == "b"
    assert "child" not in holder  # its holder is not known
    values = {m.name: m.values for m in tree.measures}
    assert values["parameters"][tree.names.index("b")] == 20
    assert values["FLOPs"][tree.names.index("inner")] == 11
    assert values["least time"][0] == pytest.approx(sum(r.device_ns for r in WHOLE.operators), 0.01)


def test_an_operator_stands_at_the_most_that_its_ceilings_allow() -> None:
    known = report(placement=placement(ceiling_flops=1e3, ceiling_bytes=1e2, ridge_intensity=10.0))
    (row,) = known.operators  # two modules, one operator, forward only
    assert row.op == "aten::mm"
    assert row.intensity == pytest.approx(1100 / 400)
    assert row.flops_s == pytest.approx(275.0)
    assert row.bound == "memory"
    assert row.device_ns == pytest.approx(4e9)
    (plot,) = blocks(page([known]), RooflinePlot)
    assert isinstance(plot, RooflinePlot)
    points = {group.name: group.points for group in plot.groups}
    assert points["operators"][0].is_bound
    assert not points["the whole model"][0].is_bound


def test_ceilings_that_are_not_to_be_used_class_nothing() -> None:
    (row,) = report(placement=placement(ceiling_state="disturbed")).operators
    assert row.bound == ""


def test_memory_at_the_peak_adds_up_to_what_the_record_holds() -> None:
    at_peak = {"parameters": 120, "activations": 380, "inputs": 0}
    known = report(inference_memory=memory(at_peak=at_peak, peak_bytes=500))
    charts = blocks(page([known]), SplitChart)
    held = [{p.name: p.value for p in c.parts} for c in charts if isinstance(c, SplitChart)]
    assert {"parameters": 120, "activations": 380} in held


def test_models_side_by_side_have_bars_to_scale() -> None:
    twice = report(parameters=msgspec.structs.replace(WHOLE.parameters, total=60))
    half = report(parameters=msgspec.structs.replace(WHOLE.parameters, total=30))
    table = tables(page([twice, half]))[0]
    cells: dict[str, tuple[Cell, ...]] = {r.cells[0].text: r.cells[1:] for r in table.rows}
    assert [cell.bar for cell in cells["parameters"]] == [1.0, 0.5]
    assert [cell.bar for cell in cells["target"]] == [None, None]


@pytest.mark.parametrize("nasty", [*NASTY, "</script><img src=x>"])
def test_hostile_names_stay_text(nasty: str) -> None:
    odd = report(model=nasty, cost=msgspec.structs.replace(COST, modules=(
        *MODULES, ModuleCost(path=nasty, type=nasty, calls=1, parameters=99, phases={}),
    )))  # fmt: skip
    for document in (page([odd]), page([odd, odd])):
        text = html.render(document)
        assert "<img src=x" not in text
        assert text.count("<script>") == 1
