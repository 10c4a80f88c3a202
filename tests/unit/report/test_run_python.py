"""The table of the costliest Python lines."""

import io

import msgspec
import pytest
from rich.console import Console

from ridgeline.records.run import PythonLine, PythonView
from ridgeline.report.run_python import lines_table, lines_text

VIEW = PythonView(
    main_samples=1240,
    worker_samples=4000,
    worker_idle_samples=1000,
    workers=4,
    interval_ns=7_500_000,
    lines=(
        PythonLine(
            file="/home/me/proj/train.py",
            line=20,
            function="main",
            source="for images, labels in loader:",
            share=0.91,
            seconds=8.4,
            calls="DataLoader, waiting for a batch",
        ),
        PythonLine(
            file="/home/me/proj/data.py",
            line=41,
            function="Augment.__call__",
            source="image = image.resize(self.size)",
            process="worker",
            share=0.62,
            seconds=14,
            calls="PIL.Image.Image.resize",
        ),
        PythonLine(file="/home/me/proj/data.py", line=7, function="f", share=0.0002),
    ),
)


def shown(view: PythonView, width: int = 160, limit: int = 8) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width, highlight=False).print(lines_table(view, limit))
    return out.getvalue().splitlines()


def test_a_line_says_where_how_much_and_what() -> None:
    rows = shown(VIEW)
    assert "proj/data.py:41" in rows[2]
    assert "62 %" in rows[2]
    assert "4 workers" in rows[2]
    assert "image = image.resize(self.size)" in rows[2]
    assert "Augment.__call__" in rows[2]
    assert "main" in rows[1]
    assert "waiting for a batch" in rows[1]


def test_it_says_what_the_shares_are_of() -> None:
    assert shown(VIEW)[-1].strip() == (
        "1,240 samples of the main process; 4,000 of 4 workers, 25 % of them waiting for work, "
        "not counted; one every 7.5 ms"
    )


def test_lines_too_small_to_matter_and_beyond_the_limit_are_not_shown() -> None:
    assert not [row for row in shown(VIEW) if "data.py:7" in row]
    assert not [row for row in shown(VIEW, limit=1) if "data.py" in row]


@pytest.mark.parametrize("width", [40, 60, 80, 100, 200])
def test_no_row_is_wider_than_the_terminal(width: int) -> None:
    rows = shown(VIEW, width)
    assert max(len(row) for row in rows) <= max(width, 45)
    assert "proj/data.py:41" in "\n".join(rows) or width < 60
    assert [row for row in rows if row.endswith(" ")] == []


def test_text_from_outside_moves_no_cursor_and_is_no_markup() -> None:
    odd = msgspec.structs.replace(
        VIEW.lines[0], source="x = '\x1b[31m[red]'", function="</b>|f", file="/a\u202e/t.py"
    )
    view = msgspec.structs.replace(VIEW, lines=(odd,))
    text = "\n".join(shown(view))
    assert "\x1b" not in text
    assert "[red]" in text
    assert "\u202e" not in text
    markdown = "\n".join(lines_text(view))
    assert "</b>" not in markdown
    assert "\x1b" not in markdown


def test_markdown_has_the_same_rows() -> None:
    lines = lines_text(VIEW)
    assert lines[0].startswith("| line | share |")
    assert "proj/data.py:41" in lines[3]
    assert "4 workers" in lines[3]
    assert lines[-1].startswith("1,240 samples")


def test_no_samples_are_said_and_not_an_empty_table() -> None:
    assert shown(PythonView()) == ["   no sample of the Python code: too short a time"]
    assert lines_text(PythonView())[-1].startswith("no sample")
    seen = PythonView(main_samples=5, interval_ns=7_500_000)
    assert "none was in the user's own code" in shown(seen)[0]
