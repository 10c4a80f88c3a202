"""What trying changes came to, in words."""

from io import StringIO
from typing import Any

from rich.console import Console

from ridgeline.records.optimized import Optimized, Ratio, Rung, Total, Written
from ridgeline.records.parity import Parity
from ridgeline.report.optimized_rows import headline, notes, rows
from ridgeline.report.optimized_terminal import show

EQUAL = Parity(equality="equal", why="losses equal to 2e-7 over 8 steps")
TOTAL = Total(
    ratio=Ratio(value=1.84, ci_low=1.79, ci_high=1.9, pairs=4), before_ms=41.2, after_ms=22.4,
    parity=EQUAL, peak_before_bytes=2 * 2**30, peak_bytes=2**30, compile_s=31.0, pays_after=1650,
)  # fmt: skip


def rung(name: str, status: Any, **told: Any) -> Rung:
    return Rung(change=name, title=name, status=status, why=told.pop("why", ""), **told)


def shown(found: Optimized, width: int = 120) -> str:
    console = Console(width=width, record=True, file=StringIO())
    show(found, console)
    return console.export_text()


def test_the_answer_comes_first_with_its_interval_and_its_proof() -> None:
    found = Optimized(command="train.py", total=TOTAL, noise=0.012, trials=23, spent_s=300)
    assert headline(found) == "1.84 × [1.79, 1.90] as fast: 41.2 ms → 22.4 ms a step"
    said = notes(found)
    assert "results equal: losses equal to 2e-7 over 8 steps" in said
    assert "peak memory 2 GiB → 1 GiB" in said
    assert "compiling takes 31 s and has paid after 1,650 steps" in said
    assert "two processes of the same program differ by 1.2 % here" in said
    assert shown(found).lstrip().startswith("1.84 ×")


def test_every_change_has_a_row_and_a_reason_the_kept_ones_first() -> None:
    found = Optimized(
        command="train.py",
        rungs=(
            rung("bf16", "not tried", why="this processor emulates bfloat16"),
            rung(
                "fused", "kept", ratio=TOTAL.ratio, parity=EQUAL, peak_bytes=1100,
                peak_before_bytes=1000,
            ),
            rung("compile", "rejected", why="slower: 0.91 × [0.88, 0.94]", compile_s=31.0),
        ),
    )  # fmt: skip
    told = rows(found.rungs)
    assert [row.change for row in told] == ["fused", "compile", "bf16"]
    assert (told[0].faster, told[0].equal, told[0].memory) == (
        "1.84 × [1.79, 1.90]", "equal", "+10 %",
    )  # fmt: skip
    assert told[1].start == "31 s"
    text = shown(found)
    assert "this processor emulates bfloat16" in text
    assert "Kept, but not confirmed: fused" in text


def test_nothing_kept_is_said_plainly() -> None:
    found = Optimized(command="train.py", rungs=(rung("a", "rejected", ratio=TOTAL.ratio),))
    assert headline(found) == "Nothing to keep: 1 change tried, none faster and equal"


def test_what_was_written_and_what_is_left_to_do_by_hand() -> None:
    written = Written(
        files=("optimized_train.py",), by_hand=("in model.py, line 4: add bias=False",),
        checked="the copy by itself takes 22.5 ms a step, 1.83 ×",
    )  # fmt: skip
    said = notes(Optimized(command="train.py", total=TOTAL, written=written))
    assert "wrote optimized_train.py" in said
    assert "the copy by itself takes 22.5 ms a step, 1.83 ×" in said
    assert "by hand: in model.py, line 4: add bias=False" in said
