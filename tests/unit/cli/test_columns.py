"""How wide a console is: a terminal's own, what COLUMNS says, else a pipe's."""

import pytest

from ridgeline.cli.output import PIPE_COLUMNS, columns


@pytest.mark.parametrize(
    ("told", "is_terminal", "width"),
    [("80", False, None), ("", False, PIPE_COLUMNS), ("0", False, PIPE_COLUMNS),
     ("wide", False, PIPE_COLUMNS), ("", True, None), ("80", True, None)],
)  # fmt: skip
def test_a_pipe_has_what_columns_says(
    told: str, is_terminal: bool, width: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None: rich asks the terminal, or COLUMNS itself."""
    monkeypatch.setenv("COLUMNS", told)
    assert columns(is_terminal) == width
