"""small-files: lines that open and read."""

from ridgeline.diagnosis.rules.loader_faults import small_files as look
from ridgeline.records.run import ProcessSample, Telemetry
from ridgeline.records.sites import Callee
from tests.unit.diagnosis.rules.made_up_input import (
    FILE,
    MS,
    OPEN,
    PARSE,
    READ,
    case,
    line,
    traced,
    view,
)

GET = "Records.__getitem__"


def read(rate: float) -> tuple[Telemetry, ...]:
    return tuple(
        Telemetry(at_ns=i * 10**9, processes=(ProcessSample(pid=1, read_bytes=round(rate * i)),))
        for i in range(1, 4)
    )


def test_the_line_that_opens_is_named() -> None:
    open_, reads = Callee(name="open", ns=30 * MS), Callee(name="read", ns=10 * MS)
    (finding,) = look(case(input=traced(open_, reads, line=17, function="__getitem__", ms=40)))
    assert finding.claim == (
        "Training waits 40 % of each step while Records.__getitem__() opens and reads files"
    )
    assert finding.place == f"{FILE}:{OPEN}"
    assert finding.confidence == "high"


def test_in_workers_by_their_samples() -> None:
    seen = view(line(OPEN, GET, 0.3), line(READ, GET, 0.1), line(PARSE, "parse", 0.5), workers=2)
    (finding,) = look(case(workers=2, python=seen))
    assert finding.share_pct == 20.0
    assert finding.confidence == "medium"


def test_a_library_that_reads_is_known_by_its_name() -> None:
    seen = view(line(PARSE, "parse", 0.8, calls="pathlib.Path.read_bytes"), workers=2)
    assert [*look(case(workers=2, python=seen))]


def test_a_decoder_on_the_line_that_opens_is_no_reading() -> None:
    seen = view(line(OPEN, GET, 0.9, calls="PIL.Image.Image.convert"), workers=2)
    assert not [*look(case(workers=2, python=seen))]


def test_large_files_are_not_small() -> None:
    seen = view(line(OPEN, GET, 0.9), workers=2)
    assert not [*look(case(workers=2, python=seen, telemetry=read(500e6)))]
    assert [*look(case(workers=2, python=seen, telemetry=read(5e6)))]


def test_a_fed_device_and_little_reading_are_silent() -> None:
    assert not [*look(case(0.01, workers=2, python=view(line(OPEN, GET, 0.9), workers=2)))]
    seen = view(line(OPEN, GET, 0.1), line(PARSE, "parse", 0.9), workers=2)
    assert not [*look(case(workers=2, python=seen))]


def test_loading_of_arrays_is_reading() -> None:
    for calls in ("numpy.lib._npyio_impl.load", "numpy.lib.npyio.load", "torch.serialization.load",
                  "skimage.io._io.imread", "imread"):  # fmt: skip
        seen = view(line(PARSE, "parse", 0.8, calls=calls), workers=2)
        assert [*look(case(workers=2, python=seen))], calls
    named = line(PARSE, "parse", 0.8, source="return np.load(self.paths[index])")
    assert [*look(case(workers=2, python=view(named, workers=2)))]


def test_parsing_is_reading_where_the_same_function_opens_the_file() -> None:
    opened = line(READ, GET, 0.8, source="return json.load(file)", calls="json.load")
    (finding,) = look(case(workers=2, python=view(opened, workers=2)))
    assert finding.confidence == "medium"  # some of it is parsing
    given = line(PARSE, "parse", 0.8, source="return json.load(file)", calls="json.load")
    assert not [*look(case(workers=2, python=view(given, workers=2)))]
    text = line(PARSE, "parse", 0.8, calls="json.loads")
    assert not [*look(case(workers=2, python=view(text, workers=2)))]
