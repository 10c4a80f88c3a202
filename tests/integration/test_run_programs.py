"""Programs of every shape under `ridgeline run`: what it saw is what the program itself counted.

Each program of tests/programs counts its own steps, calls and losses and prints them. It is run
plain and under the command; stdout must be the same to the byte, and the records must hold the
counts. Nothing is timed.
"""

from collections.abc import Iterator

import pytest

from ridgeline.records.facts import Reason
from ridgeline.records.run_summary import MissingCode
from ridgeline.records.verdict import LimitCode
from tests.integration.run_programs import Program, Ran, Runner

pytestmark = pytest.mark.reliability

FEW_CALLS = frozenset({"samples"})
"""Samples are not compared where the program has no one batch to speak of."""
CHILDREN = frozenset({"forwards"})
"""Nor forwards where the model is called past `__call__`, so that its children are outermost."""
INDUCTOR = ("inductor",)
QUICK = (
    Program("plain_loop"),
    Program("loader_workers", ("fork",), own_process=True),
    Program("loader_workers", ("spawn",), own_process=True),
    Program("accumulation"),
    Program("gan"),
    Program("critic_steps"),
    Program("handwritten_sgd", stepping="backward"),
    Program("own_optimizer", stepping="backward"),
    Program("inference", ("no_grad",), stepping="call"),
    Program("inference", ("inference_mode",), stepping="call"),
    Program("evaluation_between"),
    Program("lbfgs", without=FEW_CALLS),
    Program("episodes", without=FEW_CALLS),
    Program("agent"),
    Program("compiled", ("eager",)),
    Program("compiled", ("aot_eager,method",)),
    Program("compiled", ("aot_eager,blocks",)),
    Program("scaled"),
    Program("checkpointed"),
    Program("in_backward"),
    Program("said", stepping="said"),
    Program("forward_by_name", without=CHILDREN),
    Program("chained"),
    Program("tokens"),
    Program("prefetched", prefetches=True),
    Program("in_a_thread"),
    Program("stages"),
    Program("traced_model", stepping="call"),
    Program("frozen_norms"),
    Program("gradients_only"),
)
SLOW = (
    Program("compiled", INDUCTOR, own_process=True),
    Program("distributed", ("ddp",), ranks=2, own_process=True),
    Program("distributed", ("fsdp",), ranks=2, own_process=True),
    Program("with_lightning", own_process=True),
    Program("with_trainer", own_process=True, prefetches=True),
    Program("with_trainer", ("adafactor",), own_process=True, prefetches=True),
    Program("with_accelerate", own_process=True, prefetches=True),
    Program("generate", stepping="call", own_process=True, without=FEW_CALLS),
)
ODDITIES = Program("oddities", own_process=True)
SPAWNED = Program("spawned", ("fork",), own_process=True)


def _marks(program: Program) -> list[pytest.MarkDecorator]:
    return [pytest.mark.slow, *([pytest.mark.compiles] if program.arguments == INDUCTOR else [])]


EVERY = [
    *(pytest.param(program, id=str(program)) for program in QUICK),
    *(pytest.param(program, id=str(program), marks=_marks(program)) for program in SLOW),
]
of_every_program = pytest.mark.parametrize("program", EVERY)


@pytest.fixture(scope="session")
def runner(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Runner]:
    """Runs of all programs that the selected tests ask for."""
    asked = [
        item.callspec.params.get("program")
        for item in request.session.items
        if isinstance(item, pytest.Function) and hasattr(item, "callspec")
    ]
    programs = [one for one in dict.fromkeys(asked) if isinstance(one, Program)]
    made = Runner(tmp_path_factory.mktemp("programs"), programs)
    yield made
    made.close()


@pytest.fixture
def ran(program: Program, runner: Runner) -> Ran:
    return runner.profiled(program)


@of_every_program
def test_stdout_and_exit_code_are_the_programs_own(
    program: Program, runner: Runner, ran: Ran
) -> None:
    assert ran.code == 0, ran.err
    assert sorted(ran.out.splitlines()) == sorted(runner.plain_output(program).splitlines())
    if program.ranks == 1:  # two ranks may speak in any order
        assert ran.out == runner.plain_output(program)


@of_every_program
def test_steps_are_those_the_program_took(program: Program, ran: Ran) -> None:
    for rank in range(program.ranks):
        capture, taken = ran.capture(rank), ran.steps(rank)
        expected = len(ran.truth(rank)["steps"])
        assert (capture.stepping, capture.steps) == (program.stepping, expected)
        assert capture.steps_taken == expected
        assert [step.index for step in taken] == list(range(expected))
        assert (capture.ended, capture.problems) == ("finished", ())


@of_every_program
@pytest.mark.parametrize("figure", ["forwards", "backwards", "optimizer_steps", "skipped"])
def test_each_step_holds_what_the_program_counted(program: Program, ran: Ran, figure: str) -> None:
    if figure in program.without:
        pytest.skip(f"{figure} of this program have no one meaning")
    for rank in range(program.ranks):
        counted = [step[figure] for step in ran.truth(rank)["steps"]]
        assert [getattr(step, figure) for step in ran.steps(rank)] == counted


@of_every_program
def test_samples_are_those_of_the_batches(program: Program, ran: Ran) -> None:
    if "samples" in program.without:
        pytest.skip("samples of this program have no one meaning")
    for rank in range(program.ranks):
        seen = [step.samples for step in ran.steps(rank)]
        counted = [step["samples"] for step in ran.truth(rank)["steps"]]
        if program.prefetches:  # a batch belongs to the step that fetched it
            assert abs(sum(seen) - sum(counted)) <= max(counted)
        else:
            assert seen == counted


@of_every_program
def test_losses_are_the_programs_own_to_the_bit(program: Program, ran: Ran) -> None:
    """In a traced step none is read: the copy would stand in the trace."""
    for rank in range(program.ranks):
        pairs = zip(ran.steps(rank), ran.truth(rank)["steps"], strict=True)
        seen = [(step.loss, truth["loss"]) for step, truth in pairs if step.window != "traced"]
        assert [ours for ours, _ in seen] == [theirs for _, theirs in seen]


@of_every_program
def test_phases_add_up_to_the_step(program: Program, ran: Ran) -> None:
    for rank in range(program.ranks):
        for step in ran.steps(rank):
            assert sum(step.host.values()) == step.dur_ns
            assert min(step.host.values()) >= 0
            assert ("backward" in step.host) == (step.backwards > 0)


@of_every_program
def test_calls_in_evaluation_are_not_training(program: Program, ran: Ran) -> None:
    for rank in range(program.ranks):
        counted = sum(module.evaluation_calls for module in ran.capture(rank).modules)
        expected = ran.truth(rank)["evaluations"]
        if program.stepping == "call":  # nothing trains: the calls themselves are the steps
            expected = 0
        assert counted == expected


@of_every_program
def test_the_run_is_summed_up(program: Program, ran: Ran) -> None:
    assert ran.summary.status == "finished"
    assert ran.summary.ranks == program.ranks
    assert ran.summary.step.counted == len(ran.truth()["steps"])
    assert ran.summary.problems == ()
    assert ran.result["run_dir"] == str(ran.directory)
    assert set(ran.result) >= {"verdict", "step", "throughput", "mfu", "memory", "energy"}


@pytest.mark.parametrize("program", [ODDITIES, SPAWNED], ids=str)
def test_nothing_comes_out_different(program: Program, runner: Runner, ran: Ran) -> None:
    assert ran.code == 0, ran.err
    assert ran.out == runner.plain_output(program)


@pytest.mark.parametrize("program", [SPAWNED], ids=str)
def test_a_parent_without_steps_says_so(program: Program, ran: Ran) -> None:
    assert (ran.capture().stepping, ran.capture().steps) == ("", 0)
    assert ran.summary.step.median_ms is None
    assert ran.summary.verdict.bound == "unknown"
    assert ran.summary.verdict.reason.code == LimitCode.STEPS_IN_CHILDREN
    assert [(one.function, one.processes) for one in ran.capture().children] == [("train", 2)]
    assert any(
        isinstance(reason, Reason) and reason.code == MissingCode.CHILDREN
        for reason in ran.summary.missing
    )


def only(script: str, *arguments: str) -> pytest.MarkDecorator:
    (found,) = [p for p in QUICK if (p.script, p.arguments) == (script, arguments)]
    return pytest.mark.parametrize("program", [pytest.param(found, id=str(found))])


@only("tokens")
def test_tokens_of_a_text_are_counted(program: Program, ran: Ran) -> None:
    assert {step.tokens for step in ran.steps()} == {ran.truth()["tokens"]}


@only("said")
def test_regions_are_timed_by_name(program: Program, ran: Ran) -> None:
    for step in ran.steps():
        assert list(step.regions) == ["make a batch"]
        assert 0 < step.regions["make a batch"] < step.dur_ns


@only("plain_loop")
def test_a_program_of_24_steps_has_its_trace(program: Program, ran: Ran) -> None:
    capture = ran.capture()
    assert [window.steps for window in capture.windows if window.kind == "traced"] == [3]
    assert (ran.directory / "trace-rank0.json.gz").stat().st_size > 1000
    assert [step.index for step in ran.steps() if step.window == "traced"] == [13, 14, 15]


@only("plain_loop")
def test_the_loader_and_the_loss_are_told_apart(program: Program, ran: Ran) -> None:
    capture = ran.capture()
    assert [(module.name, module.loss) for module in capture.modules] == [
        ("Sequential", False),
        ("CrossEntropyLoss", True),
    ]
    (loader,) = capture.loaders
    assert (loader.batch_size, loader.batches, loader.workers) == (4, 24, 0)
    assert loader.place.endswith("plain_loop.py:16")


@only("evaluation_between")
def test_evaluation_has_a_phase_of_its_own(program: Program, ran: Ran) -> None:
    after_an_evaluation = [7, 14]  # what is evaluated before the first step belongs to none
    phases = [step.index for step in ran.steps() if step.host.get("evaluation")]
    assert phases == after_an_evaluation


@only("lbfgs")
def test_time_inside_the_optimizer_is_counted_once(program: Program, ran: Ran) -> None:
    for step in ran.steps():
        assert set(step.host) >= {"forward", "backward", "optimizer"}


@only("gan")
def test_one_optimizer_of_several_marks_the_steps(program: Program, ran: Ran) -> None:
    optimizers = ran.capture().optimizers
    assert [optimizer.steps for optimizer in optimizers] == [20, 20]
    assert [optimizer.anchor for optimizer in optimizers].count(True) == 1
