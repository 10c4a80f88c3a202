"""What was not tried: few lines in a terminal, every reason elsewhere."""

import pytest
from msgspec.structs import replace
from rich.cells import cell_len

from ridgeline.records.facts import Reason, because
from ridgeline.records.optimized import Optimized, Rung, SearchCode
from ridgeline.records.reason_codes import Skip, SkipKind
from ridgeline.records.trial import TrialFailure
from ridgeline.report.reasons import explain
from ridgeline.report.renderers import markdown
from ridgeline.report.views.optimized import data, document, kind_of, untried_kinds
from tests.unit.report.made_up_optimized import climbed, rung
from tests.unit.report.rendered import at_terminal, bare_page

ON_A_CPU = (
    ("a larger batch", because(SearchCode.NEEDS_BATCH)),
    ("Linear layers in int8", because(SearchCode.NEEDS_ALLOW, fix="int8-dynamic")),
    ("a fused optimizer update", because(SearchCode.OUT_OF_TIME)),
    ("torch.compile", because(SearchCode.OUT_OF_TIME)),
    ("more batches made ahead", because(SearchCode.BOUND_TOO_SMALL, bound=1.01)),
    ("every core of the machine", because(Skip.NO_AFFINITY_LIMIT)),
    ("bfloat16 autocast", because(Skip.DTYPE_EMULATED, dtype="bfloat16")),
    ("float16 autocast with a scaled loss", because(Skip.NO_GPU)),
    ("channels-last convolutions", because(Skip.NO_CONVOLUTION)),
    ("activation checkpointing of repeated blocks", because(SearchCode.SAVES_MEMORY, goal="speed")),
    ("cross-entropy in chunks", because(SearchCode.SAVES_MEMORY, goal="speed")),
    ("cuDNN autotuning", because(Skip.NO_GPU)),
    ("batch norms folded into convolutions", because(Skip.TRAINS)),
    ("expandable memory segments", because(Skip.NO_GPU)),
    ("an optimizer update over lists of tensors",
     because(Skip.FUSED_IS_BETTER, optimizer="AdamW")),
    ("Linear layers in float8", because(Skip.NO_GPU)),
    ("inference mode", because(Skip.TRAINS)),
    ("copies to the GPU without waiting", because(Skip.NO_COPIES)),
    ("padded vocabulary", because(Skip.NO_GPU)),
    ("workers that stay between epochs", because(Skip.WORKERS_START_ONCE)),
    ("fused attention", because(Skip.NO_WRITTEN_ATTENTION)),
    ("gradients dropped, not zeroed", because(Skip.NO_ZERO_FILL)),
    ("TF32 in float32 products", because(Skip.NO_GPU)),
    ("threads of an operator", because(Skip.SET_BY_ENVIRONMENT, variable="OMP_NUM_THREADS=1")),
    ("a CUDA graph of the whole step", because(Skip.NO_GPU)),
    ("torch.compile for changing shapes", because(Skip.SAME_SHAPES)),
    ("torch.compile, products chosen by timing", because(Skip.NO_GPU)),
    ("something new", because(TrialFailure.RAISED, error="nobody has a code for it yet")),
)  # fmt: skip


def of(*pairs: tuple[str, Reason], applied: int = 0) -> Optimized:
    rungs = tuple(rung(title, title, "not tried", why) for title, why in pairs)
    missed = tuple(
        rung(f"m{i}", f"missed {i}", "not applied", f"nothing of the kind {i} was found")
        for i in range(applied)
    )
    return replace(climbed(), rungs=(*rungs, *missed))


def lines(found: Optimized, width: int) -> list[str]:
    """Return the lines of the terminal's section on what was not tried."""
    shown = at_terminal(document(found), width).splitlines()
    first = next(i for i, line in enumerate(shown) if line.startswith(" Not tried"))
    return shown[first : next(i for i in range(first, len(shown)) if not shown[i].strip())]


@pytest.mark.parametrize("width", [80, 100, 140])
@pytest.mark.parametrize("applied", [0, 3])
def test_all_that_a_cpu_rules_out_takes_nine_lines(width: int, applied: int) -> None:
    shown = lines(of(*ON_A_CPU, applied=applied), width)
    assert len(shown) <= 9
    assert all(len(line) <= width for line in shown)
    assert sum(f"{28 + applied} fixes" in line for line in shown) == 1


def test_every_fix_is_counted_in_one_kind() -> None:
    found = of(*ON_A_CPU)
    counted = [one.title for _, rungs in untried_kinds(found) for one in rungs]
    assert sorted(counted) == sorted(title for title, _ in ON_A_CPU)


def test_actionable_kinds_come_first_and_are_never_merged() -> None:
    first, second, *_ = untried_kinds(of(*ON_A_CPU))
    assert first[0] is SkipKind.OUT_OF_TIME
    assert second[0] is SkipKind.ONLY_IF_ASKED
    assert [one.title for one in second[1]] == ["a larger batch", "Linear layers in int8"]
    _, _, time, asked, *_ = lines(of(*ON_A_CPU), 140)
    assert time.split("  ")[1].strip() == "too little time was left"
    assert "only if asked for: --allow, --batch" in asked


def test_reasons_with_the_same_words_share_a_line() -> None:
    by_kind = {kind: [one.title for one in rungs] for kind, rungs in untried_kinds(of(*ON_A_CPU))}
    assert {"bfloat16 autocast", "cuDNN autotuning", "TF32 in float32 products"} <= set(
        by_kind[SkipKind.MACHINE]
    )
    assert "something new" in by_kind[SkipKind.OTHER]


def test_a_reason_that_all_fixes_of_a_line_share_is_printed_itself() -> None:
    none = because(Skip.NO_CONVOLUTION)
    *_, last = lines(of(("A", none), ("B", none)), 100)
    assert last.split() == ["no", "convolution", "was", "seen", "A", "·", "B"]
    alone = lines(of(("A", because(TrialFailure.RAISED, error="for its own reason"))), 100)
    assert alone[0].strip() == "Not tried: 1 fix; the report and --json have every reason"
    assert alone[-1].split("  ")[1:] == [" for its own reason", "A"]


def test_the_kind_comes_from_the_code_and_not_from_the_words() -> None:
    assert kind_of(because(Skip.DOES_NOT_TRAIN)) is SkipKind.DOES_NOT_TRAIN
    assert kind_of(because(TrialFailure.RAISED, error="it needs a GPU")) is SkipKind.OTHER


@pytest.mark.parametrize("alters", [("rounding",), ("rounding", "rounding", "semantics")])
def test_fixes_excluded_by_keep_exact_name_the_option(alters: tuple[str, ...]) -> None:
    rungs = ((f"A{i}", because(SearchCode.NOT_EXACT, alters=a)) for i, a in enumerate(alters))
    found = of(*rungs)
    assert [kind for kind, _ in untried_kinds(found)] == [SkipKind.KEEP_EXACT]
    assert "not with --keep-exact" in lines(found, 100)[-1]


@pytest.mark.parametrize("width", [50, 60, 400])
def test_a_line_is_never_wider_than_the_terminal(width: int) -> None:
    odd = "wide 宽宽宽宽 \x1b[31m"
    found = of(*((f"{odd}{i}", because(Skip.NO_COPIES)) for i in range(9)))
    for line in lines(found, width):
        assert cell_len(line) <= width
        assert "\x1b" not in line


def test_the_whole_list_with_every_reason_is_in_every_other_form() -> None:
    found = of(*ON_A_CPU)
    ladder = {row["title"]: row["reason"] for row in data(found)["ladder"]}
    text, page = markdown.render(document(found)), bare_page(document(found))
    for title, why in ON_A_CPU:
        assert ladder[title] == explain(why)
        assert f"| {title} | not tried |" in text
        assert title in page
    fused = explain(because(Skip.FUSED_IS_BETTER, optimizer="AdamW"))
    assert fused in text
    assert fused in page


def test_a_function_has_no_report_to_look_in() -> None:
    found = replace(of(*ON_A_CPU), form="function")
    assert "`.rungs`" in lines(found, 100)[0]


def test_a_search_without_untried_fixes_has_no_such_section() -> None:
    kept: tuple[Rung, ...] = climbed().rungs[:1]
    assert "Not tried" not in at_terminal(document(replace(climbed(), rungs=kept)))
