"""Whole lines by others: only where they are what they were."""

from ridgeline.records.edit import Edit, Insert, Keyword, Patched, Rewrite, Within
from ridgeline.records.facts import because
from ridgeline.records.reason_codes import ByHand, Obstacle
from ridgeline.source.editing import patched
from tests.unit.source.editing.refusals import causes

TEXT = "def f(q, k):\n    a = q @ k\n    # kept\n    b = a * 2\n    return b\nx = f(1, 2)\n"
BEFORE = "    a = q @ k\n    # kept\n    b = a * 2\n    return b"


def swap(text: str, after: str, before: str = BEFORE, first: int = 2) -> Patched:
    edit = Rewrite(
        file="f", first=first, last=first + before.count("\n"), before=before, after=after, why="w"
    )
    return patched("f", text.encode(), [edit])


def test_the_lines_are_replaced_and_a_comment_says_why() -> None:
    result = swap(TEXT, "    # kept\n    return 2 * (q @ k)")
    assert result.text == (
        "def f(q, k):\n    # ridgeline: w\n    # kept\n    return 2 * (q @ k)\nx = f(1, 2)\n"
    )


def test_the_file_s_own_newlines_are_kept() -> None:
    result = swap(TEXT.replace("\n", "\r\n"), "    return q @ k\n    # end")
    assert result.text.count("\r\n") == result.text.count("\n") == 5


def test_lines_that_are_not_what_they_were_are_left() -> None:
    result = swap(TEXT.replace("a * 2", "a * 3"), "    return q @ k")
    assert not result.done
    assert causes(result) == [because(Obstacle.LINES_CHANGED, first=2, last=5)]
    (refused,) = result.refused
    assert refused.reason.code == ByHand.REWRITE
    text = {"text": "    return q @ k"}
    assert refused.reason.facts == {"file": "f", "first": 2, "last": 5} | text


def test_a_part_of_a_statement_is_left() -> None:
    result = swap("x = f(\n    1,\n)\n", "    2,", before="    1,")
    assert result.text == "x = f(\n    1,\n)\n"


def test_it_moves_with_a_with_that_is_put_around_it() -> None:
    after = "    a = '''\n kept\n'''\n    return q"
    edits: list[Edit] = [
        Within(file="f", first=2, last=5, header="c()", why="v"),
        Rewrite(file="f", first=2, last=5, before=BEFORE, after=after, why="w"),
    ]
    assert patched("f", TEXT.encode(), edits).text == (
        "def f(q, k):\n    # ridgeline: v\n    with c():\n        # ridgeline: w\n"
        "        a = '''\n kept\n'''\n        return q\nx = f(1, 2)\n"
    )
    top = Rewrite(file="f", first=1, last=1, before="a = 1", after="b = 1", why="w")
    around = Within(file="f", first=1, last=1, header="c()", why="v")
    assert patched("f", b"a = 1\n", [around, top]).text == (
        "# ridgeline: v\nwith c():\n    # ridgeline: w\n    b = 1\n"
    )


def test_the_same_edits_again_change_nothing() -> None:
    for after in ("    return q", "    a = q\n    a = a\n    a = a\n    a = a\n    return a"):
        edits: list[Edit] = [
            Rewrite(file="f", first=2, last=5, before=BEFORE, after=after, why="w"),
            Keyword(file="f", line=6, call="f", name="z", value="3", why="k", positional=("*",)),
            Insert(file="f", line=6, where="before", text="y = 1", why="i"),
        ]
        once = patched("f", TEXT.encode(), edits)
        again = patched("f", once.text.encode(), edits)
        assert len(once.done) == 3
        assert (again.text, len(again.already)) == (once.text, 3)
