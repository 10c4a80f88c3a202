"""repeated-decoding: the same work for the same sample, epoch after epoch."""

from ridgeline.diagnose.rules import loader_starves
from ridgeline.diagnose.rules.repeated_decoding import look
from ridgeline.records.input_site import Callee
from tests.unit.diagnose.rules.made_up_input import (
    DRAW,
    FILE,
    MS,
    PARSE,
    RETURN,
    case,
    line,
    traced,
    view,
)

LOADS, TENSOR = Callee(name="loads", within="json", ns=30 * MS), Callee(name="tensor", ns=10 * MS)


def test_the_line_that_decodes_is_named() -> None:
    told = case(epochs=3, input=traced(LOADS, TENSOR))
    (finding,) = look(told)
    assert "parse(), which gives the same result in every epoch" in finding.claim
    assert finding.place == f"{FILE}:{PARSE}"
    assert finding.share_pct == 45.0
    assert finding.confidence == "high"
    (other,) = loader_starves.look(told)
    assert other.confidence == "medium"  # it stays, behind this one


def test_one_epoch_repeats_nothing() -> None:
    assert not [*look(case(epochs=1, input=traced(LOADS, TENSOR)))]


def test_a_fed_device_is_silent() -> None:
    assert not [*look(case(0.01, epochs=3, input=traced(LOADS, TENSOR)))]


def test_what_draws_random_numbers_differs_each_time() -> None:
    drawn = view(line(DRAW, "flip", 0.9), workers=2)
    assert not [*look(case(epochs=3, workers=2, python=drawn))]


def test_behind_random_numbers_only_what_decodes_is_the_same() -> None:
    lines = (line(PARSE, "parse", 0.6), line(RETURN, "parse", 0.2), line(DRAW, "flip", 0.2))
    (finding,) = look(case(epochs=3, workers=2, python=view(*lines, workers=2)))
    assert finding.share_pct == 30.0
    assert finding.line == PARSE


def test_a_library_that_may_draw_is_not_trusted() -> None:
    unknown = line(RETURN, "parse", 0.9, calls="torchvision.transforms.transforms.Compose.__call__")
    assert not [*look(case(epochs=3, workers=2, python=view(unknown, workers=2)))]


def test_source_that_cannot_be_read_proves_nothing() -> None:
    gone = line(PARSE, "parse", 0.9, file="gone.py")
    assert not [*look(case(epochs=3, workers=2, python=view(gone, workers=2)))]
