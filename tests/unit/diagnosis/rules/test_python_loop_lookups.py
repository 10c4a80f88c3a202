"""A loop of lookups in a table: small is what a call takes from it, not the table."""

from ridgeline.diagnosis.rules._launch import dims_of
from ridgeline.diagnosis.rules.python_loops import python_loop as look
from ridgeline.records.sites import OpSite
from tests.unit.diagnosis.rules.made_up_launch import case, gradients, site

SOURCE = """import torch
class Columns:
    def forward(self, x):
        found = []
        for column in range(x.shape[1]):
            found.append(self.table(x[:, column]))
        return torch.stack(found, 1)
"""
TABLE = (100_000, 64)  # 6.4 million elements


def lookups(index: tuple[int, ...], op: str = "embedding") -> list[OpSite]:
    back = "autograd::engine::evaluate_function: EmbeddingBackward0"
    at = ("forward", 3)
    return [
        site(op, 48, 6.0, at=at, dims=(TABLE, index), module="Embedding_0"),
        site("index_select", 48, 3.0, at=at, dims=(TABLE, (), index), within=(f"aten::{op}",),
             module="Embedding_0"),
        site(back, 48, 5.0, at=at, dims=(), phase="backward", module="Embedding_0"),
        site("mm", 1, 5.0, module="Linear_3"),
        site("mm", 1, 9.0, phase="backward", module="Linear_3"),
    ]  # fmt: skip


def test_a_loop_of_lookups_of_few_rows_is_found() -> None:
    for op in ("embedding", "embedding_bag"):
        (one,) = look(case([*lookups((32,), op), *gradients(4)], source=SOURCE))
        assert f"A Python loop in forward() calls {op} 48 times a step" in one.claim
        assert one.place == "train.py:5"
        assert any(told.text == f"aten::{op} of [32, 64]" for told in one.evidence)


def test_a_loop_of_large_lookups_is_not_small() -> None:
    assert not [*look(case([*lookups((8, 1024)), *gradients(4)], source=SOURCE))]  # 2 MiB a call


def test_sizes_of_a_lookup_are_those_of_its_rows() -> None:
    assert dims_of(site("embedding", dims=(TABLE, (8, 12)))) == (8, 12, 64)
    assert dims_of(site("embedding", dims=(TABLE, ()))) == (64,)
    assert dims_of(site("embedding", dims=(TABLE,))) == TABLE  # the index was not recorded
    assert dims_of(site("linear", dims=((8, 64), (64, 64)))) == (8, 64)
