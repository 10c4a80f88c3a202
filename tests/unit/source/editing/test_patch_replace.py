"""An expression of a statement by another."""

import pytest

from ridgeline.records.edit import Patched, Replace
from ridgeline.records.facts import because
from ridgeline.records.reason_codes import ByHand, Obstacle
from ridgeline.source.editing import patched
from tests.unit.source.editing.refusals import causes


def swap(text: str, before: str, after: str, line: int = 1) -> Patched:
    edit = Replace(file="f", line=line, before=before, after=after, why="w")
    return patched("f", text.encode(), [edit])


@pytest.mark.parametrize(
    ("text", "before", "after", "expected"),
    [
        ("y = f( a,b )", "f(a, b)", "g(a)", "y = g(a)  # ridgeline: w"),
        ("y = 2 * x", "x", "a + b", "y = 2 * (a + b)  # ridgeline: w"),
        ("y = 2 * (x)", "x", "a + b", "y = 2 * (a + b)  # ridgeline: w"),
        ("y = x", "x", "a + b", "y = a + b  # ridgeline: w"),
        ("y = f(x)", "x", "a if b else c", "y = f(a if b else c)  # ridgeline: w"),
        ("y = x.t()", "x", "a @ b", "y = (a @ b).t()  # ridgeline: w"),
        ("y = not'a'", "'a'", "b", "y = not b  # ridgeline: w"),
        ("x = f(x)", "x", "z", "x = f(z)  # ridgeline: w"),
        ("y = a.x + x", "x", "z", "y = a.x + z  # ridgeline: w"),
        ("y = f(x=x)", "x", "z", "y = f(x=z)  # ridgeline: w"),
        ("y = f(1)  # mine", "f(1)", "g", "# ridgeline: w\ny = g  # mine"),
    ],
)
def test_it_is_found_by_what_it_means(text: str, before: str, after: str, expected: str) -> None:
    assert swap(text, before, after).text == expected


def test_only_the_head_of_a_compound_statement_is_looked_at() -> None:
    text = "for i in x:\n    f(x)\n"
    assert swap(text, "x", "y").text == "for i in y:  # ridgeline: w\n    f(x)\n"
    text = "if a(x):\n    pass\nelif b(x):\n    pass\n"
    assert "elif b(y):  # ridgeline: w" in swap(text, "x", "y", 3).text


def test_none_or_several_are_refused() -> None:
    twice = because(Obstacle.NOT_THERE_ONCE, expression="x", times=2)
    assert causes(swap("x + x", "x", "y")) == [twice]
    never = because(Obstacle.NOT_THERE_ONCE, expression="x", times=0)
    assert causes(swap("z", "x", "y")) == [never]
    (refused,) = swap("z", "x", "y").refused
    assert refused.reason.code == ByHand.REPLACE
    assert refused.reason.facts == {"file": "f", "line": 1, "before": "x", "text": "    y"}


def test_what_holds_the_old_expression_is_not_put_in_twice() -> None:
    once = swap("m = model", "model", "compile(model)")
    assert swap(once.text, "model", "compile(model)").already


def test_code_that_is_no_expression_is_refused() -> None:
    assert swap("x", "x", "y = 1").refused
    assert swap("x", "x", "").refused
