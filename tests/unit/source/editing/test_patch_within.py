"""Whole statements put into a `with`."""

import pytest

from ridgeline.records.edit import Edit, Keyword, Patched, Replace, Within
from ridgeline.records.reason_codes import ByHand, Obstacle
from ridgeline.source.editing import patched
from tests.unit.source.editing.refusals import obstacles

HEADER = 'torch.autocast("cuda")'


def wrap(text: str, first: int, last: int, header: str = HEADER) -> Patched:
    edit = Within(file="f", first=first, last=last, header=header, why="w")
    return patched("f", text.encode(), [edit])


def test_the_statements_and_no_others_are_wrapped() -> None:
    text = "a\nfor x in y:\n  # about b\n  b = 1\n\n  # c\n  c = 2\n  d\n"
    assert wrap(text, 4, 7).text == (
        "a\nfor x in y:\n  # about b\n  # ridgeline: w\n"
        f"  with {HEADER}:\n    b = 1\n\n    # c\n    c = 2\n  d\n"
    )


def test_strings_keep_their_lines_and_continued_lines_go_along() -> None:
    text = "x = '''\n  a\n''' + \\\n  f(\n  1)\n"
    expected = f"# ridgeline: w\nwith {HEADER}:\n    x = '''\n  a\n''' + \\\n      f(\n      1)\n"
    assert wrap(text, 1, 5).text == expected


def test_the_run_is_widened_to_whole_statements() -> None:
    text = "x = f(\n    1,\n)\ny = g(\n    2,\n)\n"
    assert wrap(text, 2, 5).text == wrap(text, 1, 6).text
    assert wrap(text, 2, 5).text.count("        ") == 2


def test_tabs_and_form_feeds_are_kept() -> None:
    assert "\t\tx\n" in wrap("def f():\n\tx\n", 2, 2).text
    assert "\f    x = 1\n" in wrap("\fx = 1\n", 1, 1).text


@pytest.mark.parametrize(
    ("text", "first", "last", "obstacle"),
    [
        ("for x in y:\n    a\nb\n", 2, 3, Obstacle.DIFFERENT_BLOCKS),
        ("for x in y:\n    a\n    b\n", 1, 2, Obstacle.NOT_A_BLOCK_END),
        ("if x:\n    a\nelse:\n    b\n", 3, 4, Obstacle.PART_OF_STATEMENT),
        ("if x:\n    a\nelse:\n    b\n", 2, 4, Obstacle.DIFFERENT_BLOCKS),
        ('"""Doc."""\na\n', 1, 2, Obstacle.MUST_STAY_FIRST),
        ("from __future__ import annotations\n", 1, 1, Obstacle.MUST_STAY_FIRST),
        ("a\n", 5, 6, Obstacle.NO_STATEMENT),
    ],
)
def test_other_lines_are_refused(text: str, first: int, last: int, obstacle: Obstacle) -> None:
    result = wrap(text, first, last)
    assert result.text == text
    assert obstacles(result) == [obstacle]
    (refused,) = result.refused
    assert refused.reason.code == ByHand.PUT_WITHIN
    assert refused.reason.facts["header"] == HEADER


def test_one_that_is_there_already_is_left() -> None:
    for text in (
        f"with {HEADER}:\n    a\n    b\n",
        "with open(x), autocast('cpu', dtype=d):\n    for i in j:\n        a\n",
    ):
        last = text.count("\n")
        assert wrap(text, last, last).already
    assert wrap(f"with {HEADER}:\n    a\n", 1, 2).already
    assert wrap(f"with {HEADER}:\n    def f():\n        a\n", 3, 3).done


def test_edits_inside_move_with_it() -> None:
    text = "loader = DataLoader(\n    d,\n)\nout = model(x)\n"
    edits: list[Edit] = [
        Within(file="f", first=1, last=4, header="one()", why="w1"),
        Within(file="f", first=4, last=4, header="two()", why="w2"),
        Keyword(file="f", line=1, call="DataLoader", name="pin_memory", value="True", why="w3"),
        Replace(file="f", line=4, before="model(x)", after="fast(x)", why="w4"),
    ]
    assert patched("f", text.encode(), edits).text == (
        "# ridgeline: w1\nwith one():\n    loader = DataLoader(\n        d,\n"
        "        pin_memory=True,  # ridgeline: w3\n    )\n    # ridgeline: w2\n"
        "    with two():\n        out = fast(x)  # ridgeline: w4\n"
    )


def test_two_on_the_same_lines_stand_in_each_other() -> None:
    edits: list[Edit] = [
        Within(file="f", first=1, last=1, header=header, why="w") for header in ("one()", "two()")
    ]
    result = patched("f", b"a\n", edits)
    note = "# ridgeline: w\n"
    assert result.text == f"{note}with one():\n    {note}    with two():\n        a\n"


def test_two_that_cross_are_not_both_done() -> None:
    edits: list[Edit] = [
        Within(file="f", first=1, last=2, header="one()", why="w"),
        Within(file="f", first=2, last=3, header="two()", why="w"),
    ]
    result = patched("f", b"a\nb\nc\n", edits)
    assert (result.done, result.refused[0].edit) == ((edits[0],), edits[1])
