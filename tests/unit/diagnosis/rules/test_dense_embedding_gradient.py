from typing import Any

import pytest
from msgspec.structs import replace

from ridgeline.diagnosis.rule import with_tolerance
from ridgeline.diagnosis.rules.dense_embedding_gradient import CACHE_FACTOR_ON_CPU, look
from ridgeline.diagnosis.rules.python_loops import python_loop
from ridgeline.records.run import Flags, OptimizerSeen
from ridgeline.records.run_summary import StepTimes
from ridgeline.records.sites import OpSite
from tests.unit.diagnosis import made_up_verdict as verdict
from tests.unit.diagnosis.rules.made_up_kernels import case, place, site

SOURCE = """\
class Net(nn.Module):
    def __init__(self):
        self.words = nn.Embedding(100, 64)
        self.table = nn.Embedding(1_000_000, 64)

    def forward(self, items):
        return self.table(items)
"""
TABLE = [1_000_000, 64]


def backward(rows: int = 1_000_000, used: int = 1024, ms: float = 20, **changed: Any) -> OpSite:
    return site(
        "aten::embedding_dense_backward", ([used, 64], [used], [], [], []), ms,
        concrete=("", "", str(rows), "-1", "False"), phase="backward", place=place(6), **changed,
    )  # fmt: skip


def update(ms: float = 30, **changed: Any) -> OpSite:
    """Three quarters of it over the table."""
    rest = [1_000_000, 64, 1]
    lists = [TABLE, TABLE, TABLE, rest]
    return site("aten::_foreach_add_", (lists, lists), ms, phase="optimizer", **changed)


def test_the_fill_and_the_tables_part_of_the_update_are_charged() -> None:
    (finding,) = look(case(backward(), update(), source=SOURCE))
    assert finding.share_pct == pytest.approx(20 + 0.75 * 30)
    assert (finding.line, finding.confidence) == (4, "high")
    assert finding.change == "self.table = nn.Embedding(1_000_000, 64, sparse=True)"
    assert "1,024 rows of an embedding of 1,000,000" in finding.claim


def test_on_a_processor_too() -> None:
    single = site("aten::add_", (TABLE, TABLE, []), 30, gpu=False, phase="optimizer")
    (finding,) = look(case(backward(gpu=False), single, gpu=False))
    assert finding.share_pct == pytest.approx(1.16 * 20 + 30)
    assert (finding.line, finding.confidence) == (6, "medium")


def test_the_bound_is_of_the_untraced_step() -> None:
    """Traced steps of 100 ms, untraced ones of 80: tracing did not lengthen these operators."""
    single = site("aten::add_", (TABLE, TABLE, []), 30, gpu=False, phase="optimizer")
    times = StepTimes(mean_ms=80.0, median_ms=80.0)
    (finding,) = look(case(backward(gpu=False), single, gpu=False, times=times))
    assert finding.share_pct == pytest.approx(53.2)
    assert finding.gain_bound == pytest.approx(
        with_tolerance(1 / (1 - CACHE_FACTOR_ON_CPU * 53.2 / 80)), abs=0.001
    )


def test_adam_gets_an_optimizer_for_sparse_rows_and_momentum_a_doubt() -> None:
    adam = (OptimizerSeen(name="AdamW", options={"weight_decay": "0.01"}),)
    (finding,) = look(case(backward(), source=SOURCE, flags=Flags(), optimizers=adam))
    assert "SparseAdam([model.table.weight]" in finding.change
    assert "weight decay" in finding.doubt
    small = case(backward(ms=9), source=SOURCE, flags=Flags(), optimizers=adam)
    assert not [*look(small)]


def test_a_twentieth_of_the_rows_is_the_limit() -> None:
    assert [*look(case(backward(used=50_000), update()))]
    assert not [*look(case(backward(used=50_001), update()))]


def test_a_table_tied_to_the_output_has_a_dense_gradient_anyway() -> None:
    head = site("aten::mm", ([1024, 64], [64, 1_000_000]), 10)
    assert not [*look(case(backward(), update(), head))]


def test_a_small_table_is_not_worth_a_word() -> None:
    assert not [*look(case(backward(ms=1.5), source=SOURCE))]


TWO = """\
class Net(nn.Module):
    def __init__(self, users, items):
        self.items = nn.Embedding(items, 64)
        self.users = nn.Embedding(users, 64)

    def forward(self, u, i):
        return self.users(u) * self.items(i)
"""


def two_tables(source: str, **changed: Any) -> list[Any]:
    users = backward(600_000, ms=30, module="Net_0 / Embedding_0", gpu=False)
    items = backward(400_000, ms=20, module="Net_0 / Embedding_1", gpu=False)
    return [*look(case(users, items, source=source, gpu=False, **changed))]


def test_two_tables_are_told_by_the_order_of_their_lookups() -> None:
    users, items = two_tables(TWO)
    assert (users.line, users.change) == (4, "self.users = nn.Embedding(users, 64, sparse=True)")
    assert (items.line, items.change) == (3, "self.items = nn.Embedding(items, 64, sparse=True)")


def test_two_tables_have_no_line_in_common() -> None:
    """Nothing pairs them with the lookups: each has a line of its own."""
    first, second = two_tables(TWO.replace("self.users(u) * self.items(i)", "self.both(u, i)"))
    assert {first.line, second.line} == {3, 4}
    one = TWO.replace("        self.users = nn.Embedding(users, 64)\n", "\n")
    first, second = two_tables(one)
    assert (first.line, second.line) == (3, 6)


def test_the_bounds_of_two_tables_are_not_over_the_whole_step() -> None:
    """Traced 100 ms, untraced 60, a backward of 48 ms in it: 1.16 · 50 ms do not fit."""
    times = verdict.times({"forward": 0.2, "backward": 0.8}, gpu=False, ms=60.0)
    first, second = two_tables(TWO, times=times)
    gone = [1 - 1 / one.gain_bound for one in (first, second)]
    assert 0.8 <= sum(gone) < 1
    assert 0.48 <= gone[0] < 0.6


LOOP = """\
emb, lin = nn.Embedding(5000, 64), nn.Linear(64, 20)


def pool(batch):
    rows = []
    for d in batch:
        rows.append(emb(d).mean(0))
    return torch.stack(rows)
"""


def lookups(calls: float = 100.0) -> list[OpSite]:
    """Documents of two lengths, each looked up by itself."""
    given: dict[str, Any] = {
        "concrete": ("", "", "5000", "-1", "False"), "phase": "backward", "gpu": False,
        "place": place(4, "pool"), "module": "Embedding_0", "calls": calls,
    }  # fmt: skip
    op = "aten::embedding_dense_backward"
    return [
        site(op, ([n, 64], [n], [], [], []), 30, **given) for n in (20, 40)
    ]  # fmt: skip


def test_many_lookups_of_one_table_are_one_lookup_too_little() -> None:
    """200 a step of 30 rows on average: more rows in all than the table has."""
    (finding,) = look(case(*lookups(), source=LOOP, gpu=False))
    assert finding.claim.startswith(
        "One embedding of 5,000 rows is looked up 200 times a step, for some 30 rows each"
    )
    assert (finding.line, finding.function) == (7, "pool")
    assert finding.change.splitlines() == [
        "# one lookup in the place of 200",
        "rows = emb(torch.cat(batch)).split([len(d) for d in batch])",
        "# or, if it has to be many",
        "emb = nn.Embedding(5000, 64, sparse=True)",
    ]
    told = {one.what: one.text for one in finding.evidence}
    assert "a traced step for 200 × " in told["gradient of the table"]
    assert told["rows used"].endswith("a lookup")


def test_a_loop_that_another_rule_names_comes_first() -> None:
    small = [
        site("aten::embedding", ([100, 64], [20]), 5, calls=200.0, module="Embedding_0",
             place=place(4, "pool"), gpu=False),
        site("aten::mean", ([20, 64],), 5, calls=200.0, place=place(4, "pool"), gpu=False),
    ]  # fmt: skip
    made = case(*lookups(), *small, source=LOOP, gpu=False)
    made = replace(made, sites=replace(made.sites, stacks=True))
    assert [*python_loop(made)]
    (finding,) = look(made)
    assert finding.confidence == "low"
    assert "goes with the loop" in finding.doubt


def test_a_table_outside_a_class_keeps_its_own_name_for_sparse_adam() -> None:
    source = "emb = nn.Embedding(1_000_000, 64)\n\n\n\n\ndef forward(x):\n    return emb(x)\n"
    adam = (OptimizerSeen(name="Adam"),)
    (finding,) = look(case(backward(), source=source, flags=Flags(), optimizers=adam))
    first, second = finding.change.splitlines()
    assert first == "emb = nn.Embedding(1_000_000, 64, sparse=True)"
    assert "SparseAdam([emb.weight]" in second
