"""repeated-decoding: the same work for the same sample, epoch after epoch."""

from msgspec.structs import replace

from ridgeline.diagnosis.rules.loader_faults import loader_starves
from ridgeline.diagnosis.rules.loader_faults import repeated_decoding as look
from ridgeline.records.sites import Callee
from ridgeline.source.file import SourceFiles
from tests.unit.diagnosis.rules.made_up_input import (
    DRAW,
    FILE,
    LOADER,
    MS,
    PARSE,
    RETURN,
    SOURCE,
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
    (other,) = loader_starves(told)
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


def _collated(by: str) -> SourceFiles:
    """The same program, whose loader puts batches together with `by`."""
    lines = SOURCE.replace("WORKERS", "0").replace("THREADS", "1").splitlines()
    lines[LOADER - 1] = f"loader = DataLoader(Records(), 32, shuffle=True, collate_fn={by})"
    return SourceFiles(
        texts={FILE: "\n".join([*lines, "def join(items):", "    return parse(items)"])}
    )


def test_a_collate_fn_and_what_it_calls_meet_other_samples_each_time() -> None:
    told = case(epochs=3, input=traced(LOADS, TENSOR))
    for by in ("parse", "join", "partial(join, pad=0)", "lambda items: parse(items)"):
        assert not [*look(replace(told, sources=_collated(by)))]
    assert [*look(replace(told, sources=_collated("torch.stack")))]


def test_loaders_made_anew_in_each_epoch_are_one_with_many_epochs() -> None:
    told = case(epochs=1, input=traced(LOADS, TENSOR))
    assert told.capture is not None
    (loader,) = told.capture.loaders
    anew = replace(told.capture, loaders=(loader, replace(loader, begun=(46,))))
    (finding,) = look(replace(told, capture=anew))
    assert any(e.what == "epochs" and e.value == 2 for e in finding.evidence)
    other = replace(told.capture, loaders=(loader, replace(loader, length=5)))  # an evaluation's
    assert not [*look(replace(told, capture=other))]


def test_the_change_is_the_programs_own_call() -> None:
    told = case(epochs=3, input=traced(LOADS, TENSOR))
    text = SOURCE.replace("WORKERS", "0").replace("THREADS", "1")
    direct = text.replace("return parse(text)", "return parse(self.texts[index])")
    (finding,) = look(replace(told, sources=SourceFiles(texts={FILE: direct})))
    assert finding.change.splitlines() == [
        "# in __init__: once a sample",
        "self.decoded = [parse(self.texts[index]) for index in range(len(self))]",
        "# in __getitem__, in the place of parse(self.texts[index])",
        "self.decoded[index]",
    ]
    (finding,) = look(told)  # what __getitem__ itself read is not there in __init__
    assert "[parse(one) for one in …]" in finding.change
