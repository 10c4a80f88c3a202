"""The static look: files found by the names a trace gives them, and what stands where."""

import ast
from pathlib import Path

from ridgeline.records.trace import Place
from ridgeline.source.calls import all_calls, calls_at, line_of
from ridgeline.source.file import SourceFiles

TEXT = """\
import torch

@decorated
def train(model, loader):
    first = model(0).item()
    for batch in loader:
        loss = (
            model(batch)
            .sum()
        )
        print(
            loss.item()
        )
        values = [x.item() for x in batch]

    def inner(loss):
        return loss.item()


class Net:
    def forward(self, x):
        return x.to("cpu")
"""


def sources() -> SourceFiles:
    return SourceFiles(texts={"train.py": TEXT})


def test_calls_are_found_in_the_function_a_place_names_those_in_loops_first() -> None:
    place = Place(file="train.py", line=3, function="train")  # a code object begins at a decorator
    found = calls_at(sources(), place, {"item"})
    assert [(call.line, call.on, call.loops) for call in found] == [
        (14, "x", 2), (12, "loss", 1), (5, "model(0)", 0),
    ]  # fmt: skip


def test_a_line_inside_a_function_names_it_too() -> None:
    found = calls_at(sources(), Place(file="train.py", line=6), {"print"})
    assert [call.line for call in found] == [11]


def test_a_function_inside_is_its_own() -> None:
    found = calls_at(sources(), Place(file="train.py", line=16, function="inner"), {"item"})
    assert [call.line for call in found] == [17]


def test_a_chain_over_several_lines_is_at_the_line_of_its_last_part() -> None:
    (call,) = calls_at(sources(), Place(file="train.py", line=4), {"sum"})
    assert call.line == 9


def test_the_line_of_a_node_is_that_in_the_innermost_loop() -> None:
    place = Place(file="train.py", line=4)
    assert line_of(sources(), place, lambda node: isinstance(node, ast.ListComp)) == 14
    assert line_of(sources(), place, lambda node: isinstance(node, ast.While)) is None


def test_calls_of_the_whole_file() -> None:
    source = sources().get("train.py")
    assert source is not None
    assert sorted(call.line for call in all_calls(source, {"item", "to"})) == [5, 12, 14, 17, 22]


def test_files_are_looked_for_beneath_the_roots(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "loader.py").write_text("def f():\n    return 1\n")
    source = SourceFiles((tmp_path,)).get("data/loader.py")
    assert source is not None
    assert source.line(2) == "return 1"


def test_what_cannot_be_read_or_parsed_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("def f(:\n")
    (tmp_path / "binary.py").write_bytes(b"\0\1\2")
    found = SourceFiles((tmp_path,))
    assert found.get("broken.py") is None
    assert found.get("binary.py") is None
    assert found.get("absent.py") is None
    assert found.get("<string>") is None
    assert calls_at(found, Place(file="absent.py", line=1), {"item"}) == ()
