"""What a person sees at the terminal."""

from ridgeline.records.model import ModelReport
from ridgeline.report.views.model import document
from tests.unit.report.made_up import FIT, placement, report
from tests.unit.report.rendered import at_terminal


def shown(*reports: ModelReport) -> str:
    return at_terminal(document(reports))


def test_the_verdict_stands_before_the_numbers() -> None:
    text = shown(report())
    assert text.index("memory-bound: operators limited by arithmetic need 200 µs") < text.index(
        "parameters"
    )
    assert "2 ms [1.8 ms, 2.2 ms]" in text
    assert "2000 samples/s" in text


def test_operators_without_a_formula_are_always_named() -> None:
    text = shown(report())
    assert "93.1 %" in text
    assert "my::op" in text


def test_predicted_and_measured_peak_stand_with_their_gap() -> None:
    assert "measured peak 300 B (+21.0 %, what kernels take inside themselves)" in shown(report())


def test_the_largest_batch_and_the_first_that_does_not_fit() -> None:
    text = shown(report())
    assert "batch 7 at most" in text
    assert "batch 8 is 76 B over" in text


def test_a_model_that_does_not_fit_at_all_says_what_it_needs() -> None:
    from msgspec.structs import replace

    none = replace(FIT, batch=0, peak_bytes=0, next_batch=1, next_peak_bytes=4096)
    assert "does not fit 1 KiB: one sample of inference needs 4 KiB" in shown(report(fit=none))


def test_a_sweep_shows_its_law_and_its_check() -> None:
    text = shown(report())
    assert (
        "FLOPs: linear, 2 FLOP·n (exact); batch 4 predicted 8 FLOP, found 8 FLOP (+0.0 %)" in text
    )


def test_generation_without_a_cache_says_so() -> None:
    text = shown(report())
    assert "first token 3 ms after a prompt of 4" in text
    assert "each further token 1 ms without KV cache" in text
    assert "it takes no cache" in text


def test_several_models_share_one_table_and_one_roofline() -> None:
    text = shown(report(), report(model="Other", placement=placement(intensity=50.0)))
    assert "A  Net" in text
    assert "B  Other" in text
    assert "ridge 10 FLOP/B" in text


def test_a_shared_note_is_printed_once_and_others_under_their_model() -> None:
    text = shown(report(), report(model="Other", notes=("the machine was busy", "odd")))
    assert text.count("counted with care\n") == 1
    assert text.count("the machine was busy") == 1
    assert "Other: odd\n" in text


def test_markup_in_a_users_names_is_shown_as_written() -> None:
    text = shown(report(target="[bold]net.py:build[/bold]", notes=("[red]odd[/red]",)))
    assert "[bold]net.py:build[/bold]" in text
    assert "[red]odd[/red]" in text


def test_an_untimed_model_says_why() -> None:
    text = shown(report(latency=None, latency_missing="the model is on meta: counted, not run",
                        placement=placement(measured_ms=None, flops_per_second=None)))  # fmt: skip
    assert "latency     the model is on meta: counted, not run" in text
