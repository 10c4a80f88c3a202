"""What was not tried: few lines in a terminal, every reason elsewhere."""

from io import StringIO

import pytest
from msgspec.structs import replace
from rich.console import Console

from ridgeline.records.optimized import Optimized, Rung
from ridgeline.report.optimized_document import document
from ridgeline.report.optimized_html import page
from ridgeline.report.optimized_markdown import markdown
from ridgeline.report.optimized_terminal import show
from ridgeline.report.optimized_untried import kinds, told
from tests.unit.report.made_up_optimized import climbed, rung

ON_A_CPU = (
    ("a larger batch", "another batch size trains otherwise: --batch"),
    ("Linear layers in int8", "it alters what is computed: --allow int8-dynamic"),
    ("a fused optimizer update", "too little time was left"),
    ("torch.compile", "too little time was left"),
    ("more batches made ahead", "at most 1.01 × to gain"),
    ("every core of the machine", "no affinity was found to hold the program back"),
    ("bfloat16 autocast", "this processor emulates bfloat16: 5 to 20 times slower"),
    ("float16 autocast with a scaled loss", "it is for a GPU's tensor cores"),
    ("channels-last convolutions", "no convolution was seen"),
    ("activation checkpointing of repeated blocks",
     "it saves memory and takes time: speed was asked for"),
    ("cross-entropy in chunks", "it saves memory and takes time: speed was asked for"),
    ("cuDNN autotuning", "a CPU has no cuDNN"),
    ("batch norms folded into convolutions",
     "the program trains: batch norms use each batch's own statistics"),
    ("expandable memory segments", "it is an option of the GPU's allocator"),
    ("an optimizer update over lists of tensors",
     "torch has a fused AdamW, which passes over memory once"),
    ("Linear layers in float8", "it is for a GPU's tensor cores"),
    ("inference mode", "the program trains"),
    ("copies to the GPU without waiting",
     "batches stay on the CPU: there is no copy to wait for"),
    ("padded vocabulary", "only a GPU's tensor cores mind a product's alignment"),
    ("workers that stay between epochs",
     "no loader with workers was begun a second time in the steps looked at"),
    ("fused attention", "no attention is written out"),
    ("gradients dropped, not zeroed", "no time is lost on filling gradients with zeros"),
    ("TF32 in float32 products", "a CPU has no TF32"),
    ("threads of an operator", "OMP_NUM_THREADS=1 is set around the program"),
    ("a CUDA graph of the whole step", "a CPU has no CUDA graphs"),
    ("torch.compile for changing shapes", "the shapes are the same at every step"),
    ("torch.compile, products chosen by timing", "it chooses among GPU kernels"),
    ("something new", "for a reason that nobody has written yet"),
)  # fmt: skip


def of(*pairs: tuple[str, str], applied: int = 0) -> Optimized:
    rungs = tuple(rung(title, title, "not tried", why) for title, why in pairs)
    missed = tuple(
        rung(f"m{at}", f"missed {at}", "not applied", f"nothing of the kind {at} was found")
        for at in range(applied)
    )
    return replace(climbed(), rungs=(*rungs, *missed))


def lines(found: Optimized, width: int) -> list[str]:
    """Of the terminal, from the first that was not tried to what was written."""
    console = Console(width=width, file=StringIO(), force_terminal=False, highlight=False)
    show(found, console)
    assert isinstance(console.file, StringIO)
    shown = console.file.getvalue().splitlines()
    first = next(at for at, line in enumerate(shown) if line.startswith(" not "))
    return shown[first : next(at for at in range(first, len(shown)) if not shown[at].strip())]


@pytest.mark.parametrize("width", [80, 100, 140])
@pytest.mark.parametrize("applied", [0, 3])
def test_all_that_a_cpu_rules_out_takes_eight_lines(width: int, applied: int) -> None:
    shown = lines(of(*ON_A_CPU, applied=applied), width)
    assert len(shown) <= 8
    assert all(len(line) <= width for line in shown)
    assert sum("28 changes" in line for line in shown) == 1


def test_every_change_is_counted_in_one_kind() -> None:
    found = of(*ON_A_CPU)
    counted = [one.title for kind in kinds(found) for one in kind.rungs]
    assert sorted(counted) == sorted(title for title, _ in ON_A_CPU)


def test_what_a_person_can_do_something_about_comes_first_and_stays() -> None:
    first, second, *_ = kinds(of(*ON_A_CPU))
    assert first.why == "too little time was left"
    assert second.why == "only if asked for, with --allow or --batch"
    assert [one.title for one in second.rungs] == ["a larger batch", "Linear layers in int8"]


def test_reasons_that_are_one_to_a_reader_are_one_line() -> None:
    by_why = {kind.why: [one.title for one in kind.rungs] for kind in kinds(of(*ON_A_CPU))}
    assert {"bfloat16 autocast", "cuDNN autotuning", "TF32 in float32 products"} <= set(
        by_why["not for this machine"]
    )
    assert "something new" in by_why["for other reasons"]


def test_a_reason_that_all_of_a_line_share_is_said_as_it_is() -> None:
    shown = lines(of(("A", "no convolution was seen"), ("B", "no convolution was seen")), 100)
    assert shown[1].strip() == "no convolution was seen: A · B"
    alone = lines(of(("A", "for a reason of its own")), 100)
    assert [line.split("  ")[-1].strip() for line in alone] == [
        "1 change, see the report, or --json:", "for a reason of its own: A",
    ]  # fmt: skip


def test_what_is_ruled_out_because_nothing_trains_does_not_say_that_it_trains() -> None:
    found = of(
        ("A", "nothing trains, so nothing is kept for a backward"),
        ("B", "nothing trains: there is no backward"),
        ("C", "the program trains"),
        ("D", "the program trains, and 8-bit weights have no gradients"),
    )
    by_why = {kind.why: [one.title for one in kind.rungs] for kind in kinds(found)}
    assert by_why == {"this program does not train": ["A", "B"], "this program trains": ["C", "D"]}


@pytest.mark.parametrize("whys", [("rounding",), ("rounding", "rounding", "semantics")])
def test_what_keep_exact_rules_out_names_the_option(whys: tuple[str, ...]) -> None:
    (kind,) = kinds(of(*((f"A{at}", f"it alters {why}") for at, why in enumerate(whys))))
    assert kind.why == kind.name == "not with --keep-exact"


@pytest.mark.parametrize("room", [12, 30, 60, 400])
def test_a_line_is_never_wider_than_its_room(room: int) -> None:
    odd = "wide 宽宽宽宽 \x1b[31m"
    ((_, text),) = told(of(*((f"{odd}{at}", "no such thing") for at in range(9))), room)
    for line in text.splitlines()[1:]:
        assert len(line) <= room
        assert "\x1b" not in line


def test_the_whole_list_with_every_reason_is_in_every_other_form() -> None:
    found = of(*ON_A_CPU)
    ladder = {row["title"]: row["reason"] for row in document(found)["ladder"]}
    text, html = markdown(found), page(found)
    for title, why in ON_A_CPU:
        assert ladder[title] == why
        assert f"| {title} | not tried |" in text
        assert title in html
    assert "torch has a fused AdamW, which passes over memory once" in text
    assert "torch has a fused AdamW, which passes over memory once" in html


def test_a_function_has_no_report_to_look_in() -> None:
    found = replace(of(*ON_A_CPU), form="function")
    assert "`.rungs`" in lines(found, 100)[0]


def test_without_any_there_is_no_line() -> None:
    kept: tuple[Rung, ...] = climbed().rungs[:1]
    assert told(replace(climbed(), rungs=kept), 80) == []
