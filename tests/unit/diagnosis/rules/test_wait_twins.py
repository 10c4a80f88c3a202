"""In every example of a wait or a copy the finding names the faulty line, and no other rule of the
two families speaks: by the example's own source, with the evidence a GPU's trace gives."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from ridgeline.diagnosis.rule import registered
from ridgeline.records.sites import CopySite, SyncSite
from ridgeline.records.trace import Place
from ridgeline.source.file import SourceFiles
from tests.unit.diagnosis.rules.made_up_waits import ITEM, MS, TO, case, copy, held, wait

FAULTS = Path(__file__).parents[4] / "examples" / "faults"
FORWARD, MAIN = "def forward(", "        optimizer.zero_grad()"
SEEN: dict[str, tuple[str, SyncSite | None, CopySite | None]] = {
    "item_sync": (FORWARD, wait(), None),
    "host_copy_sync": (FORWARD, wait(ops=TO, via=("cpu",), bytes=20 * 4096), None),
    "tensor_branch": (FORWARD, wait(ops=("aten::is_nonzero", *ITEM), via=()), None),
    "dynamic_shape_sync": (FORWARD, wait(ops=("aten::index", "aten::nonzero"), via=()), None),
    "explicit_synchronize": (
        FORWARD,
        wait(ops=(), call="cudaDeviceSynchronize", direction="",
             via=("torch/cuda/__init__.py:synchronize", "_cuda_synchronize")),
        None,
    ),
    "print_tensor": (MAIN, wait(ops=(), via=("print", "torch/_tensor.py:__repr__")), None),
    "results_to_host": (
        MAIN,
        wait(ops=TO, via=("cpu",), times=1.0, bytes=16 * 2**20, device_ns=2 * MS),
        None,
    ),
    "blocking_copy": (MAIN, held(), copy(1.5, pageable=False)),
    "repeated_copy": (FORWARD, held(), copy()),
    "pageable_copy": (MAIN, held(), copy()),
}  # fmt: skip


@pytest.mark.parametrize("name", SEEN)
def test_the_faulty_line_is_named_by_its_rule_alone(name: str) -> None:
    path = FAULTS / f"{name}.py"
    text = path.read_text()
    lines = text.splitlines()
    begins, waited, copied = SEEN[name]
    at = next(i for i, line in enumerate(lines, 1) if begins.strip() in line)
    place = Place(file=path.name, line=at)
    made = replace(
        case(
            waits=(replace(waited, place=place),) if waited else (),
            copies=(replace(copied, place=place),) if copied else (),
        ),
        sources=SourceFiles(texts={path.name: text}),
    )
    families = ("synchronisation", "transfer")
    rules = [one for one in registered() if one.rule.family in families]
    found = [finding for one in rules for finding in one.look(made)]
    (finding,) = found
    assert finding.rule == name.replace("_", "-")
    assert lines[(finding.line or 0) - 1].endswith("# fault")
    assert f"fault: {finding.rule}" in text


@pytest.mark.parametrize("name", SEEN)
def test_every_example_has_a_twin_without_the_fault(name: str) -> None:
    twin = (FAULTS / f"{name}_fixed.py").read_text()
    assert "# fault" not in twin
    assert f"fault: {name.replace('_', '-')}" in twin
