"""Statements that read from the device, rewritten: run both ways, they come to the same."""

import pytest
import torch

from ridgeline.records.trace import Place
from ridgeline.source.file import SourceFiles
from ridgeline.source.on_device import without_branch, without_reading
from ridgeline.source.waiting import branches, calls, read_numbers

LOOP = """\
def main(data, kept, history):
    for step, x in enumerate(data):
        {}
    {}
    return kept, history
"""
HERE = Place(file="a.py", line=1, function="main")
DATA = [torch.tensor([3.0, -1.0]), torch.tensor([7.0, 2.0]), torch.tensor([5.0, 9.5])]


def outcome(text: str) -> object:
    names: dict[str, object] = {"torch": torch}
    exec(text, names)
    kept, history = names["main"]([x.clone() for x in DATA], 0.0, [])  # type: ignore[operator]
    return float(kept), [float(one) for one in history]


@pytest.mark.parametrize(
    "line",
    [
        "kept = x.sum().item()",
        "kept += float(x.sum())",
        "kept -= x[0].item()",
        "kept = max(kept, x.amax().item())",
        "kept = min(x.amin().item(), kept)",
        "kept = sum(y.item() for y in x)",
        "history = [y.item() for y in x]",
        "history.append(x[0].item())",
    ],
)
def test_readings_kept_on_the_device_come_to_the_same(line: str) -> None:
    text = LOOP.format(line, "")
    sources = SourceFiles(texts={"a.py": text})
    made = sources.get("a.py")
    assert made is not None
    changed = without_reading(made, read_numbers(sources, HERE)[0]).splitlines()
    after = changed[1] if len(changed) > 1 else ""
    assert changed[0].split("  #")[0] != line
    assert outcome(LOOP.format(changed[0], after)) == outcome(text)


@pytest.mark.parametrize(
    ("test", "done"),
    [
        ("x.sum() > 5", "kept += 1"),
        ("x.amax() > 5", "kept -= 2.5"),
        ("x.amax() > 5", "kept += x[0]"),
    ],
)
def test_branches_left_to_the_device_come_to_the_same(test: str, done: str) -> None:
    text = LOOP.format(f"if {test}:\n            {done}", "")
    sources = SourceFiles(texts={"a.py": text})
    made = sources.get("a.py")
    assert made is not None
    changed = without_branch(made, branches(sources, HERE)[0])
    assert outcome(LOOP.format(changed, "")) == outcome(text)


def test_memory_that_others_change_is_copied() -> None:
    text = LOOP.format("history.append(x.cpu())", "")
    sources = SourceFiles(texts={"a.py": text})
    made = sources.get("a.py")
    assert made is not None
    changed = without_reading(made, calls(sources, HERE, {"cpu"})[0])
    assert changed.startswith("history.append(x.detach().clone())")
