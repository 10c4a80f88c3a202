"""A change that edits another line than the finding's names it."""

import pytest

from ridgeline.diagnosis.rule import make_finding
from ridgeline.diagnosis.rules.loader_faults import LOADER_STARVES as RULE
from ridgeline.records.trace import Place


@pytest.mark.parametrize(
    ("file", "line", "lead"),
    [
        ("train.py", 12, "# train.py:12\n"),
        ("/home/x/train.py", 12, "# train.py:12\n"),
        ("/home/x/train.py", 40, ""),
        ("lib/data.py", 40, "# data.py:40\n"),
        ("lib/train.py", 40, ""),  # as typed, or from elsewhere: the same name and line
    ],
)
def test_another_line_is_named(file: str, line: int, lead: str) -> None:
    made = make_finding(
        RULE, claim="x", share=0.5, place=Place(file="train.py", line=40), change="a = 1",
        change_at=Place(file=file, line=line),
    )  # fmt: skip
    assert made.change == f"{lead}a = 1"


def test_another_file_of_the_same_name_has_its_folder() -> None:
    made = make_finding(
        RULE, claim="x", share=0.5, place=Place(file="a/__init__.py", line=4), change="a = 1",
        change_at=Place(file="b/__init__.py", line=4),
    )  # fmt: skip
    assert made.change.startswith("# b/__init__.py:4\n")
    bare = make_finding(
        RULE, claim="x", share=0.5, place=Place(file="a.py", line=4), change="a = 1"
    )
    assert bare.change == "a = 1"
