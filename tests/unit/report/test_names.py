"""Names of functions in sentences."""

import pytest

from ridgeline.records.trace import Place
from ridgeline.report.plain import function_label, place_name


@pytest.mark.parametrize(
    ("function", "label"),
    [
        ("decode", "decode()"),
        ("Pictures.__getitem__", "Pictures.__getitem__()"),
        ("main.<locals>.collate", "main.collate()"),
        ("<module>", "the top level of train.py"),
        ("", "the top level of train.py"),
        ("<lambda>", "a lambda in train.py"),
        ("main.<locals>.<listcomp>", "a list comprehension in main()"),
    ],
)
def test_code_without_a_name_is_described(function: str, label: str) -> None:
    assert function_label(function, "/home/me/project/train.py") == label


def test_a_table_shows_no_name_in_angle_brackets() -> None:
    assert place_name(Place(file="train.py", line=3, function="<module>")) == "train.py:3 top level"
