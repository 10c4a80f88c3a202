"""The roofline of a traced step from the sites of its operators."""

import pytest

from ridgeline.diagnosis.operator_roofline import module_tree, operator_roofline
from ridgeline.records.machine import Ceiling, Device
from ridgeline.records.sites import OpSite, SiteKernel, Sites
from ridgeline.records.trace import Place

PEAK, BANDWIDTH = 1e12, 1e11
"""FLOP/s and B/s: the ridge is at 10 FLOP/B."""
DEVICE = Device(
    kind="cuda", index=0, name="made up", memory_bytes=1 << 34,
    ceilings=(
        Ceiling(quantity="matmul", value=PEAK, unit="FLOP/s", source="measured", dtype="float32"),
        Ceiling(quantity="copy", value=BANDWIDTH, unit="B/s", source="datasheet"),
    ),
)  # fmt: skip
CODE = Place(file="train.py", line=7, function="forward")


def site(op: str, ns: float, flops: float, moved: float, **fields: object) -> OpSite:
    known: dict[str, object] = {"dtype": "float32", "calls": 1.0, "place": CODE, **fields}
    return OpSite(op=op, device_ns=ns, executed_flops=flops, bytes=moved, **known)  # type: ignore[arg-type]


MATMUL = site("aten::mm", 2e6, 1e9, 1e7, module="Net_0 / Block_0 / Linear_0")
ADD = site("aten::add", 1e6, 1e6, 5e7, module="Net_0 / Block_0")
TINY = site("aten::mul", 4e3, 10.0, 120.0, module="Net_0")
UNKNOWN = site("mine::op", 1e6, 0.0, 0.0)


def roofline(*sites: OpSite):  # type: ignore[no-untyped-def]
    return operator_roofline(Sites(ops=sites), DEVICE)


def test_each_operator_is_measured_against_the_ceiling_that_binds_it() -> None:
    found = roofline(MATMUL, ADD, TINY)
    rows = {row.op: row for row in found.rows}
    assert rows["aten::mm"].limit == "compute"
    assert rows["aten::mm"].attained == pytest.approx(1e9 / 2e-3 / PEAK)
    assert rows["aten::add"].limit == "memory"
    assert rows["aten::add"].attained == pytest.approx(5e7 / 1e-3 / BANDWIDTH)
    assert rows["aten::mul"].limit == "overhead"
    assert sum(row.share for row in found.rows) == pytest.approx(1.0)
    assert found.share_of("compute") == pytest.approx(2e6 / 3.004e6)
    assert found.attained_of("compute") == pytest.approx(0.5)
    assert found.ceilings == DEVICE.ceilings


def test_a_short_operator_that_reaches_its_roof_is_not_called_overhead() -> None:
    fast = site("aten::copy_", 5e3, 0.0, 4e2 * 1e3)
    (row,) = roofline(fast).rows
    assert row.attained == pytest.approx(0.8)
    assert row.limit == "memory"


def test_calls_with_equal_inputs_from_two_places_are_one_row_at_the_longer_place() -> None:
    other = Place(file="train.py", line=90, function="evaluate")
    found = roofline(MATMUL, site("aten::mm", 5e6, 2e9, 2e7, calls=2.0, place=other))
    (row,) = found.rows
    assert (row.count, row.device_ns, row.place) == (3, 7_000_000, other)
    assert row.flops * row.count == pytest.approx(3e9)


def test_work_without_a_formula_has_time_and_no_bound() -> None:
    found = roofline(MATMUL, UNKNOWN)
    row = next(row for row in found.rows if row.op == "mine::op")
    assert (row.limit, row.attained, row.intensity) == ("", None, 0.0)
    assert found.covered == pytest.approx(2 / 3)
    assert found.uncovered == (("mine::op", 1_000_000),)


def test_without_a_device_there_are_rates_and_no_bounds() -> None:
    found = operator_roofline(Sites(ops=(MATMUL,)), None)
    assert found.rows[0].flops_s == pytest.approx(5e11)
    assert (found.rows[0].limit, found.attained_of("compute"), found.ceilings) == ("", None, ())


def test_a_doubtful_ceiling_is_kept_but_binds_nothing() -> None:
    from msgspec.structs import replace

    busy = replace(DEVICE, ceilings=tuple(
        replace(c, source="measured", disturbed=True) for c in DEVICE.ceilings
    ))  # fmt: skip
    found = operator_roofline(Sites(ops=(MATMUL,)), busy)
    assert found.rows[0].limit == ""
    assert [c.state for c in found.ceilings] == ["disturbed", "disturbed"]


def test_a_module_has_the_work_it_calls_itself() -> None:
    found = roofline(MATMUL, ADD, TINY)
    own = {row.op: row for row in found.modules}
    assert own["Net_0 / Block_0"].device_ns == 1_000_000
    assert own["Net_0 / Block_0 / Linear_0"].limit == "compute"


def test_only_a_kernel_that_is_alone_in_its_operator_has_its_work() -> None:
    one = (SiteKernel(name="gemm", count=1, ns=2e6),)
    two = (*one, SiteKernel(name="fill", count=1, ns=1e3))
    found = roofline(
        site("aten::mm", 2e6, 1e9, 1e7, kernels=one), site("aten::bmm", 2e6, 1e9, 1e7, kernels=two)
    )
    assert [(row.op, row.device_ns) for row in found.kernels] == [("gemm", 2_000_000)]


def test_rows_are_bounded_and_the_longest_stay() -> None:
    sites = [site(f"aten::op{i}", 1e3 * (i + 1), 1e3, 1e3) for i in range(500)]
    found = operator_roofline(Sites(ops=tuple(sites)), DEVICE, limit=20)
    assert len(found.rows) == 20
    assert found.rows[0].op == "aten::op499"
    assert found.rows[0].share == pytest.approx(500 / sum(range(1, 501)))


def test_the_tree_of_modules_adds_up_what_is_inside() -> None:
    tree = module_tree(Sites(ops=(MATMUL, ADD, TINY, UNKNOWN)))
    by_name = {node.name: node for node in tree}
    assert by_name["Net_0"].ns == pytest.approx(3.004e6)
    assert by_name["Block_0"].flops == pytest.approx(1.001e9)
    assert by_name["Linear_0"].bytes == pytest.approx(1e7)
    assert all(node.parent < i for i, node in enumerate(tree))
    assert tree[by_name["Linear_0"].parent].name == "Block_0"


def test_a_large_tree_keeps_its_largest_modules_with_those_that_hold_them() -> None:
    sites = tuple(
        site("aten::mm", 1e3 * (i + 1), 1.0, 1.0, module=f"Net / Part_{i % 7} / Leaf_{i}")
        for i in range(300)
    )
    tree = module_tree(Sites(ops=sites), limit=50)
    assert len(tree) == 50
    assert tree[0].ns == pytest.approx(sum(s.device_ns for s in sites))
    assert all(node.parent >= 0 for node in tree[1:])
