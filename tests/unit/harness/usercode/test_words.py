"""What an exception says, in a line."""

import pytest

from ridgeline.harness.usercode.load import first_words


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("no such data: 17", "no such data: 17"),
        ("\n\n  indented\nand more", "indented"),
        ("backend raised:\nAssertionError: 3\n\nmore", "backend raised: AssertionError: 3"),
        ("loading Net:\n\tMissing key(s): a", "loading Net: Missing key(s): a"),
        ("expected:", "expected:"),
        ("", ""),
    ],
)
def test_the_first_line_and_what_it_announces(said: str, told: str) -> None:
    assert first_words(RuntimeError(said)) == told
