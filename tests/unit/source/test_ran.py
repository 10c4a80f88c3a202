"""Lines that were seen running are told from lines that only could have run."""

import ast

import pytest

from ridgeline.records.trace import Place
from ridgeline.source.calls import calls_at
from ridgeline.source.file import SourceFile, SourceFiles
from ridgeline.source.loops import loops_at
from ridgeline.source.waiting import branches, makes_calls, read_numbers

TEXT = """\
def train(steps, debug):
    for step in range(steps):
        with torch.autocast("cuda"):
            loss = model(x)
        if debug:
            print(loss.item())
            for p in model.parameters():
                p.norm()
            if loss.isnan():
                print(loss)
        if loss.item() > 3:
            rare(float(loss))
        note(float(loss), loss.item() if debug else 0)
        if norm > loss.mean():
            pass
"""
CALLED = {4: frozenset({"Net"}), 11: frozenset({"item"}), 13: frozenset({"note"}),
          14: frozenset({"mean"})}  # fmt: skip
PLACE = Place(file="a.py", line=1, function="train")


def sources(called: dict[int, frozenset[str]] | None = None) -> SourceFiles:
    return SourceFiles(
        texts={"a.py": TEXT}, called={"/w/a.py": CALLED if called is None else called}
    )


def source(**changed: dict[int, frozenset[str]]) -> SourceFile:
    found = sources(**changed).get("a.py")
    assert found is not None
    return found


def test_lines_seen_running_come_first_and_lines_that_did_not_run_are_left_out() -> None:
    assert [line.number for line in read_numbers(sources(), PLACE)] == [11, 13, 13]
    assert [line.number for line in read_numbers(sources({}), PLACE)] == [6, 11, 12, 13, 13]


def test_branches_and_loops_that_were_not_reached_are_left_out() -> None:
    assert [line.number for line in branches(sources(), PLACE)] == [14]
    assert [loop.line for loop in loops_at(sources(), PLACE)] == [2]
    assert 9 in [line.number for line in branches(sources({}), PLACE)]
    assert 7 in [loop.line for loop in loops_at(sources({}), PLACE)]


def test_a_with_may_have_been_entered_before() -> None:
    assert [call.line for call in calls_at(sources(), PLACE, ("autocast",))] == [3]


def test_a_call_that_did_not_run_still_counts_as_contained() -> None:
    assert makes_calls(sources(), PLACE, {"print"})
    assert not calls_at(sources(), PLACE, ("print",))
    assert not makes_calls(sources(), PLACE, {"save"})


@pytest.mark.parametrize(
    ("text", "expected"),
    [("loss.item()", True), ("rare(float(loss))", False), ("p.norm()", False), ("model(x)", None)],
)
def test_what_is_known_of_a_call(text: str, expected: bool | None) -> None:
    found = source()
    nodes = [
        n for n in ast.walk(found.module) if isinstance(n, ast.Call) and ast.unparse(n) == text
    ]
    assert expected in [found.ran(node) for node in nodes]


def test_a_function_in_which_nothing_was_seen_tells_nothing() -> None:
    """It was compiled, or did not run while the trace did."""
    found = source(called={99: frozenset({"item"})})
    assert all(found.ran(node) is None for node in ast.walk(found.module))


def test_lines_that_call_a_function() -> None:
    assert source().lines_calling(1, "item") == (11,)
