"""loader-starves: who waits for whom, at which line, and when another rule speaks."""

from msgspec.structs import replace

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rules.loader_faults import loader_starves as look
from ridgeline.diagnosis.shares import HandFed
from ridgeline.records.run import Capture
from ridgeline.records.run_summary import StepTimes, Throughput
from ridgeline.records.sites import Callee, InputSite, InputSites
from ridgeline.records.trace import Place
from ridgeline.source.file import SourceFiles
from tests.unit.diagnosis.rules.made_up_input import (
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

LOADS = Callee(name="loads", within="json", ns=30 * MS)
TENSOR = Callee(name="tensor", ns=10 * MS)


def test_without_workers_the_line_the_trace_saw_is_named() -> None:
    (finding,) = look(case(gpu=True, input=traced(LOADS, TENSOR)))
    assert finding.claim == (
        "The GPU waits 50 % of each step for parse(): 1.56 ms a sample, no workers"
    )
    assert (finding.place, finding.function) == (f"{FILE}:{PARSE}", "parse")
    assert (finding.share_pct, finding.gain_bound, finding.confidence) == (50.0, 2.222, "high")
    assert "num_workers=2" in finding.change
    assert finding.fix == "loader-workers"
    before, after = finding.change.splitlines()
    assert before.startswith("# train.py:28, before: loader = DataLoader(")
    assert after.startswith("loader = DataLoader(")
    assert "pin_memory=True" in finding.change
    assert "persistent_workers=True" in finding.change


def test_samples_of_the_main_process_are_second_to_the_trace() -> None:
    """A plain run leaves the switch interval alone: samples fall where the lock is let go."""
    (finding,) = look(case(input=traced(LOADS, TENSOR), python=view(line(RETURN, "parse", 0.7))))
    assert finding.line == PARSE


def test_sampled_lines_where_no_trace_tells() -> None:
    (finding,) = look(case(python=view(line(PARSE, "parse", 0.7), line(RETURN, "parse", 0.2))))
    assert finding.line == PARSE
    assert finding.confidence == "high"


def test_few_samples_name_no_line() -> None:
    (finding,) = look(case(python=view(line(PARSE, "parse", 0.7), samples=5)))
    assert finding.line != PARSE


def test_own_python_between_calls_is_on_the_innermost_loop_or_the_function() -> None:
    (finding,) = look(case(input=traced(Callee(name="append", ns=2 * MS))))
    assert finding.line == 7  # nothing is called that the source shows: where it begins


def test_a_fed_device_is_silent() -> None:
    assert not [*look(case(0.0))]
    assert not [*look(case(0.06, input=traced(LOADS)))]  # what stacking samples takes on a CPU


def test_a_gpu_waits_for_less() -> None:
    (finding,) = look(case(0.06, gpu=True, input=traced(LOADS)))
    assert finding.share_pct == 6.0


def test_workers_on_full_processors_are_its_own() -> None:
    """None is idle: more of them would not help, the line has to become cheaper."""
    seen = view(line(PARSE, "parse", 0.8), workers=4)
    (finding,) = look(case(workers=4, cores=4, used=0.5, worker_cores=3.5, python=seen))
    assert "4 workers" in finding.claim
    assert finding.line == PARSE
    first, second = finding.change.splitlines()
    assert "cheaper" in first
    assert not second.startswith("#")  # the line itself


def test_idle_processors_leave_it_to_few_workers() -> None:
    seen = view(line(PARSE, "parse", 0.8), workers=4)
    assert not [*look(case(workers=4, cores=16, used=1.0, worker_cores=3.9, python=seen))]


def test_a_trace_alone_has_the_function() -> None:
    told = case(input=traced(LOADS), gpu=True)
    nothing = {"run": None, "capture": None, "times": StepTimes(), "throughput": Throughput()}
    (finding,) = look(replace(told, kind="trace", **nothing))
    assert finding.claim == "The GPU waits 50 % of each step for parse(): 50 ms a batch, no workers"
    assert finding.confidence == "medium"
    assert finding.line == PARSE


def test_a_trace_without_stacks_has_the_wait() -> None:
    told = case(input=InputSites(kind="multiple", ns=50.0 * MS), gpu=True)
    (finding,) = look(replace(told, kind="trace", run=None, capture=None, times=StepTimes()))
    assert finding.claim == "The GPU waits 50 % of each step for its batches"


def test_batches_made_by_hand() -> None:
    place = Place(file=FILE, line=7, function="get_batch", ns=45 * MS)
    by_hand = InputSites(kind="by hand", ns=50.0 * MS, sites=(InputSite(place=place),))
    told = case(input=by_hand, fed=HandFed(share=0.5, function="get_batch", place=f"{FILE}:7"))
    (finding,) = look(replace(told, capture=Capture(stepping="optimizer", steps=46)))
    assert "get_batch()" in finding.claim
    assert "by hand" in finding.claim
    assert finding.confidence == "medium"
    assert "by its name" in finding.doubt
    assert "pin_memory" not in finding.change  # there is no GPU to copy to
    (finding,) = look(replace(told, on_gpu=True, capture=Capture(stepping="optimizer", steps=46)))
    assert "pin_memory=True" in finding.change


def test_a_loader_that_a_trainer_makes_is_changed_by_its_arguments() -> None:
    text = SOURCE.partition("val_loader")[0].replace("THREADS", "1")
    text += "args = TrainingArguments('out')\nTrainer(args=args, train_dataset=Records()).train()\n"
    (finding,) = look(case(input=traced(LOADS), sources=SourceFiles(texts={FILE: text})))
    assert finding.change == (
        "# train.py:27\nargs = TrainingArguments('out', dataloader_num_workers=2, "
        "dataloader_persistent_workers=True)"
    )


def test_without_any_line_the_loader_itself_is_named() -> None:
    told = case()
    idle = told.study and replace(told.study, idle=replace(told.study.idle, causes=()))
    (finding,) = look(replace(told, study=idle))
    assert finding.line in (LOADER - 1, LOADER)


def _rows(share: float) -> Case:
    """A TensorDataset: the trace saw the loader, and no function of the user's in it."""
    told = case(share, input=InputSites(kind="single", ns=share * 100.0 * MS))
    assert told.capture is not None
    assert told.study is not None
    (loader,) = told.capture.loaders
    capture = replace(told.capture, loaders=(replace(loader, dataset="TensorDataset"),))
    idle = replace(told.study.idle, causes=())
    return replace(told, capture=capture, study=replace(told.study, idle=idle))


def test_stacking_rows_is_the_ordinary_price_of_a_loader() -> None:
    assert not [*look(_rows(0.32))]


def test_stacking_rows_that_takes_most_of_the_step_wants_whole_batches() -> None:
    (finding,) = look(_rows(0.5))
    assert finding.confidence == "medium"
    assert "BatchSampler(" in finding.change
    assert "num_workers" not in finding.change


def test_own_lines_that_only_index_are_ordinary_too() -> None:
    """20 µs a sample, of which the program's own lines take half."""
    indexed = case(0.2, input=traced(line=17, function="__getitem__", ms=10))
    many = Throughput(samples_per_step=1000.0)
    assert not [*look(replace(indexed, throughput=many))]
    assert [*look(replace(indexed, throughput=Throughput(samples_per_step=100.0)))]


def test_a_program_that_does_not_train_is_no_training() -> None:
    told = case(input=traced(LOADS, TENSOR))
    (finding,) = look(replace(told, capture=replace(told.capture, stepping="batches")))
    assert finding.claim.startswith("The program waits 50 %")


def test_a_loader_made_anew_in_each_epoch_is_to_be_made_once() -> None:
    told = case(input=traced(LOADS, TENSOR))
    assert told.capture is not None
    (loader,) = told.capture.loaders
    anew = replace(told.capture, loaders=(loader, replace(loader, begun=(46,))))
    (finding,) = look(replace(told, capture=anew))
    assert "once, before the loop" in finding.change


def test_a_comprehension_is_its_functions() -> None:
    (finding,) = look(case(input=traced(LOADS, line=PARSE, function="<listcomp>")))
    assert "for parse():" in finding.claim
    assert finding.function == "parse"


def test_the_gain_is_bounded_by_the_workers_that_are_advised() -> None:
    """Two workers make a batch in half the time, not in none. The bound was once 32 ×."""
    (finding,) = look(case(0.97, gpu=True, cores=2, input=traced(LOADS, TENSOR)))
    assert "num_workers=2" in finding.change
    assert finding.share_pct == 97.0
    assert 2.0 < finding.gain_bound < 3.0
