"""Statements put before or after another one."""

from typing import Literal

import pytest

from ridgeline.records.edit import Edit, Insert, Patched, Within
from ridgeline.records.reason_codes import ByHand, Obstacle
from ridgeline.source.editing import patched
from tests.unit.source.editing.refusals import obstacles


def put(
    text: str, line: int, where: Literal["before", "after"] = "before", code: str = "new()"
) -> Patched:
    return patched(
        "f", text.encode(), [Insert(file="f", line=line, where=where, text=code, why="w")]
    )


def test_it_stands_in_the_block_of_the_statement() -> None:
    text = "def f():\n\tx = (1,\n\t     2)\n\treturn x\n"
    new = "\t# ridgeline: w\n\tnew()\n"
    assert put(text, 2).text == text.replace("\tx", new + "\tx")
    assert put(text, 3, "after").text == text.replace("\treturn", new + "\treturn")


def test_several_lines_take_the_indentation_of_the_file_and_keep_their_strings() -> None:
    code = "if a:\n    b = '''\n  c\n'''"
    result = put("def f():\n\tpass\n", 2, code=code)
    assert result.text == "def f():\n\t# ridgeline: w\n\tif a:\n\t\tb = '''\n  c\n'''\n\tpass\n"


def test_comments_that_belong_to_the_statement_stay_with_it() -> None:
    assert put("a\n# about b\nb\n", 3).text == "a\n# ridgeline: w\nnew()\n# about b\nb\n"
    script = "#!/usr/bin/python\n# a licence\nb\n"
    assert put(script, 3).text == script.replace("b\n", "# ridgeline: w\nnew()\nb\n")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("@a\n@b\ndef f():\n    pass\n", 2),
        ("x = '''\n\n'''\n", 2),
        ("x = [\n    i\n    for i in y\n]\n", 3),
        ("f(lambda:\n  g())\n", 2),
        ("for x in y:\n    pass\n", 1),
    ],
)
def test_a_line_inside_a_statement_names_the_statement(text: str, line: int) -> None:
    assert put(text, line).text == "# ridgeline: w\nnew()\n" + text
    assert put(text, line, "after").text == text + "# ridgeline: w\nnew()\n"


def test_a_docstring_and_future_imports_stay_first() -> None:
    for head in ('"""Doc."""\n', "from __future__ import annotations\n"):
        assert put(head + "x\n", 1).text == head + "# ridgeline: w\nnew()\nx\n"
    text = '"""Doc."""\nfrom __future__ import annotations\nx\n'
    for where in ("before", "after"):
        assert put(text, 1, where).text == text.replace("x\n", "# ridgeline: w\nnew()\nx\n")
    text = 'def f():\n    """Doc."""\n'
    assert put(text, 2).text == text + "    # ridgeline: w\n    new()\n"


@pytest.mark.parametrize(
    ("text", "line", "where"),
    [
        ("if x: y\n", 1, "before"),
        ("if x:\n    y\nelse: z\n", 3, "before"),
        ("if x:\n    y\nelif z:\n    w\n", 3, "before"),
        ("def f():\n    return 1\n", 2, "after"),
        ("while 1:\n    break\n", 2, "after"),
        ("raise x\n", 1, "after"),
        ("if x:\n    # nothing here\n    y\n", 2, "before"),
    ],
)
def test_places_that_are_not_plain_are_refused(
    text: str, line: int, where: Literal["before", "after"]
) -> None:
    result = put(text, line, where)
    assert result.text == text
    (refused,) = result.refused
    facts = {"file": "f", "line": line, "where": where, "text": "    new()"}
    assert (refused.reason.code, refused.reason.facts) == (ByHand.PUT_BESIDE, facts)


def test_what_does_not_compile_there_is_taken_back_alone() -> None:
    edits: list[Edit] = [
        Insert(file="f", line=1, where="before", text="return 1", why="w"),
        Insert(file="f", line=2, where="before", text="new()", why="w"),
    ]
    result = patched("f", b"a\nb\n", edits)
    assert result.text == "a\n# ridgeline: w\nnew()\nb\n"
    assert obstacles(result) == [Obstacle.DOES_NOT_COMPILE]


def test_the_end_of_a_body_and_of_its_owner_are_different_places() -> None:
    text = "for x in y:\n    if x:\n        z\n"
    for lines in ((1, 2, 3), (3, 2, 1)):
        edits: list[Edit] = [
            Insert(file="f", line=line, where="after", text=f"after{line}()", why="w")
            for line in lines
        ]
        edits.append(Within(file="f", first=2, last=3, header="c()", why="w"))
        code = "".join(
            line + "\n"
            for line in patched("f", text.encode(), edits).text.splitlines()
            if "#" not in line
        )
        assert code == (
            "for x in y:\n    with c():\n        if x:\n            z\n            after3()\n"
            "    after2()\nafter1()\n"
        )


def test_a_file_that_does_not_end_its_last_line_goes_on_not_doing_so() -> None:
    assert put("a", 1, "after").text == "a\n# ridgeline: w\nnew()"
    assert put("a\r\nb", 2, "after").text == "a\r\nb\r\n# ridgeline: w\r\nnew()"


def test_before_a_line_of_several_statements_is_before_the_first() -> None:
    assert put("x\na; b\n", 2, "before").text == "x\n# ridgeline: w\nnew()\na; b\n"
