"""What stands outside an edit stays as it is, byte for byte."""

import pytest

from ridgeline.records.edit import Edit, Insert, Keyword, Patched, Top, Within
from ridgeline.records.facts import because
from ridgeline.records.reason_codes import Obstacle
from ridgeline.source.editing import patched
from ridgeline.source.editing.tree import Tree, publicly
from tests.unit.source.editing.refusals import causes, obstacles

EDITS: list[Edit] = [
    Insert(file="f", line=2, where="before", text="new()", why="w"),
    Keyword(file="f", line=2, call="DataLoader", name="pin_memory", value="True", why="w"),
]
NEW = b"# ridgeline: w\nnew()\nx = DataLoader(d, pin_memory=True)"


def raw(result: Patched) -> bytes:
    return result.text.encode(result.encoding)


@pytest.mark.parametrize(
    "text",
    [
        b"a = 1  \n|\n   \n\t\nb = 2",
        b"a\n|\n\x0c\ndef f():\n \tif 1:\n \t   pass\n",
        b"a = '\x0c\xe2\x80\xa8\x1c'\n|\n",
        b"'''\xe2\x80\xa8'''\n|\n",
    ],
)
def test_whitespace_is_kept(text: bytes) -> None:
    old = text.replace(b"|", b"x = DataLoader(d)")
    result = patched("f", old, EDITS)
    assert len(result.done) == 2
    assert raw(result) == text.replace(b"|", NEW + b"  # ridgeline: w")


def test_crlf_is_kept_and_written() -> None:
    result = patched("f", b"a\r\nx = DataLoader(\r\n    d,\r\n)\r\n", EDITS)
    assert b"\n" not in raw(result).replace(b"\r\n", b"")
    assert len(result.done) == 2


def test_lines_that_end_differently_stay_so() -> None:
    result = patched("f", b"a\nx = DataLoader(d)\r\nb\n", EDITS)
    assert raw(result).startswith(b"a\n# ridgeline: w\r\nnew()\r\nx = ")
    assert raw(result).endswith(b"\r\nb\n")


def test_a_byte_order_mark_is_kept() -> None:
    result = patched("f", b"\xef\xbb\xbfa\nx = DataLoader(d)\n", EDITS)
    assert raw(result).startswith(b"\xef\xbb\xbfa\n# ridgeline: w\n")
    assert result.encoding == "utf-8-sig"


def test_a_declared_encoding_is_kept_and_the_comment_fits_it() -> None:
    old = b"# -*- coding: latin-1 -*-\nx = DataLoader(d, '\xe9')\n"
    edits: list[Edit] = [
        Insert(file="f", line=2, where="before", text="new()", why="1.2 × faster → é")
    ]
    assert b"# ridgeline: 1.2 \xd7 faster ? \xe9\nnew()\n" in raw(patched("f", old, edits))
    edits = [Insert(file="f", line=2, where="before", text="new('→')", why="w")]
    result = patched("f", old, edits)
    assert raw(result) == old
    assert causes(result) == [because(Obstacle.NOT_ENCODED, encoding="iso-8859-1")]


def test_a_reason_is_never_read_as_an_encoding() -> None:
    edits: list[Edit] = [
        Top(file="f", where="start", text="import a", why="decoding: latin-1\nis slow")
    ]
    result = patched("f", "x = 'é'\n".encode(), edits)
    assert result.text == "# ridgeline: decoding : latin-1 is slow\nimport a\nx = 'é'\n"
    compile(raw(result), "f", "exec")


def test_a_form_feed_before_a_statement_is_kept() -> None:
    edits: list[Edit] = [
        *EDITS,
        Within(file="f", first=2, last=2, header="c()", why="w"),
    ]
    result = patched("f", b"a\n\x0cx = DataLoader(d)\n", edits)
    assert b"with c():\n\x0c    x = DataLoader(d, pin_memory=True)" in raw(result)


@pytest.mark.parametrize(
    "text",
    [
        b"print 'two'\n",
        b"x = (\n",
        b"# coding: nonsense\nx\n",
        b"x = '\xff'\n",
        b"x = 1\x00\n",
        b"return 1\n",
        b"\xff\xfea\x00",
    ],
)
def test_a_file_that_python_cannot_read_is_refused_whole(text: bytes) -> None:
    result = patched("f", text, EDITS)
    assert raw_back(result) == text
    assert len(result.refused) == 2
    assert len(obstacles(result)) == 2
    assert result.diff == ""


def raw_back(result: Patched) -> bytes:
    return result.text.encode(result.encoding, "surrogateescape")


def test_the_difference_is_one_that_patch_can_apply() -> None:
    result = patched("f.py", b"a\nx = DataLoader(d)", EDITS)
    assert result.diff == (
        "--- f.py\n+++ f.py\n@@ -1,2 +1,4 @@\n a\n-x = DataLoader(d)\n"
        "\\ No newline at end of file\n+# ridgeline: w\n+new()\n"
        "+x = DataLoader(d, pin_memory=True)  # ridgeline: w\n\\ No newline at end of file\n"
    )


def test_no_edits_leave_the_text() -> None:
    result = patched("f", b"a\r", [])
    assert (result.text, result.diff, result.done) == ("a\r", "", ())


def test_the_parser_s_public_names_say_the_same() -> None:
    tree = Tree("def f(a, *, b=1):\n    # c\n    return [x\n        for x in a]  # d\n")
    code, ranges = publicly(tree.module)
    assert code == tree.text
    assert all(tree._range(node) == place for node, place in ranges.items())
