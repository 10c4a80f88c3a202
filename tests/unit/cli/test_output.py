"""Where results go, and how wide they are."""

import io

import pytest

from ridgeline.cli.output import MIN_COLUMNS, PIPE_COLUMNS, report_console


class Stream(io.StringIO):
    def __init__(self, is_terminal: bool) -> None:
        super().__init__()
        self.is_terminal = is_terminal

    def isatty(self) -> bool:
        return self.is_terminal


@pytest.mark.parametrize(
    ("asked", "is_terminal", "width"),
    [("80", False, 80), ("", False, PIPE_COLUMNS), ("0", False, PIPE_COLUMNS),
     ("wide", False, PIPE_COLUMNS), ("80", True, 80), ("7", True, MIN_COLUMNS)],
)  # fmt: skip
def test_a_report_is_as_wide_as_columns_says_and_a_pipe_without_it_wider_than_a_terminal(
    asked: str, is_terminal: bool, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", asked)
    assert report_console(Stream(is_terminal)).width == width
