"""The five questions, answered with numbers; and what is not known, with its reason."""

from msgspec.structs import replace

from ridgeline.diagnosis.answers import answers, short_name
from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.shares import Shares
from ridgeline.records.facts import Trust
from ridgeline.records.finding import AnswerCode, Question
from ridgeline.records.machine import Ceiling, Device
from ridgeline.records.run import Capture
from ridgeline.records.run_summary import MemoryUse, Telemetered
from ridgeline.records.sites import Sites
from ridgeline.records.trace import (
    CategoryRow,
    Idle,
    KernelRow,
    MemoryCurve,
    OpRow,
    TraceStudy,
)
from ridgeline.report.reasons import answer_text
from ridgeline.report.reasons import question as asked
from tests.unit.diagnosis import made_up_verdict as made

GIB = 2**30
H200 = Device(
    kind="cuda", index=0, name="H200", memory_bytes=141 * GIB,
    ceilings=(
        Ceiling(quantity="matmul", value=4e14, unit="FLOP/s", source="datasheet", dtype="float32"),
        Ceiling(quantity="copy", value=4e12, unit="B/s", source="datasheet"),
    ),
)  # fmt: skip
QUESTIONS = [
    "Is the device busy?", "Which kernels?", "Which intensity?", "Which gaps?",
    "Where is the peak?",
]  # fmt: skip


def kernel(name: str, share: float, op: str = "") -> KernelRow:
    return KernelRow(name=name, category="matmul", count=1, total_ns=1, share=share, mean_ns=1.0,
                     least_ns=1, most_ns=1, op=op)  # fmt: skip


def study() -> TraceStudy:
    curve = MemoryCurve(
        device="cuda:0", points=(), peak_bytes=7 * GIB, peak_ns=5, peak_step="ProfilerStep#2",
        peak_phase="forward", peak_module="GPT_0 / Block_3 / Attention_3 / Linear_9",
    )  # fmt: skip
    return replace(
        made.study({"input": 0.5, "launch-bound": 0.15}),
        kernels=(
            kernel("void at::native::(anonymous namespace)::gemm<4, float>(int)", 0.6, "aten::mm"),
            kernel("softmax", 0.2),
            kernel("add", 0.1),
            kernel("mul", 0.1),
        ),
        categories=(CategoryRow(category="matmul", device_ns=6, count=1, share=0.6),),
        memory=(curve,),
    )


def gpu() -> Case:
    of = {"input": 0.5, "transfer": 0.005, "overhead": 0.145, "communication": 0.0,
          "compute": 0.3, "memory": 0.05}  # fmt: skip
    return Case(
        on_gpu=True, times=made.times({"forward": 1.0}), work=replace(
            made.work(0.35), compute_share=0.8, compute_attained=0.41, memory_share=0.1,
        ),
        study=study(), shares=Shares(of=of), device=H200, sites=Sites(shapes=True),
        memory=MemoryUse(device_peak_bytes=8 * GIB, device_total_bytes=140 * GIB),
    )  # fmt: skip


def text(case: Case, question: str) -> str:
    return next(answer_text(a) for a in answers(case) if asked(a) == question)


def test_the_questions_stand_in_their_order() -> None:
    assert [asked(a) for a in answers(gpu())] == QUESTIONS
    assert [a.question for a in answers(Case())][1] == Question.OPERATORS


def test_an_idle_device_says_what_it_waits_for() -> None:
    assert text(gpu(), "Is the device busy?") == (
        "No: the GPU works 35 % of a step of 100 ms; it waits for data 50 %, "
        "the host (Python, launches) 14 %."
    )
    busy = replace(gpu(), work=made.work(0.93), shares=None)
    assert text(busy, "Is the device busy?") == "Yes: the GPU works 93 % of a step of 100 ms."


def test_communication_is_work_and_wait_and_told_apart() -> None:
    of = {"input": 0.0, "transfer": 0.02, "overhead": 0.6, "communication": 0.3, "compute": 0.08,
          "memory": 0.0}  # fmt: skip
    assert text(replace(gpu(), shares=Shares(of=of)), "Is the device busy?").endswith(
        "; it waits for the host (Python, launches) 60 %; exposed: communication 30 %, copies 2 %."
    )


def test_a_device_that_mostly_copies_is_not_called_busy() -> None:
    of = {"input": 0.0, "transfer": 0.84, "overhead": 0.15, "communication": 0.0, "compute": 0.005,
          "memory": 0.001}  # fmt: skip
    copying = replace(gpu(), work=made.work(0.84), shares=Shares(of=of))
    assert text(copying, "Is the device busy?") == (
        "Only with copies: it computes 0.6 % of a step of 100 ms; it waits for the host "
        "(Python, launches) 15 %; exposed: copies 84 %."
    )


def test_a_run_has_one_step_length() -> None:
    """The median, as above it."""
    times = replace(made.times({"forward": 1.0}), median_ms=98.0)
    assert "a step of 98 ms" in text(replace(gpu(), times=times), "Is the device busy?")


def test_a_trace_of_the_host_alone_tells_nothing_of_its_gpus() -> None:
    op = OpRow(name="aten::mm", count=4, host_ns=8, host_self_ns=8, device_ns=0, device_self_ns=0,
               share=1.0)  # fmt: skip
    window = replace(study().window, start_ns=0, end_ns=10)
    alone = replace(study(), ops=(op,), backend="nccl", kernels=(), devices=(), window=window)
    case = replace(gpu(), kind="trace", on_gpu=False, study=alone, memory=MemoryUse())
    for question in ("Is the device busy?", "Which gaps?"):
        assert text(case, question) == (
            "Not known: only the host was recorded (activities without CUDA), though the program "
            "uses GPUs (nccl)."
        )
    cpu = replace(case, study=replace(alone, backend="gloo"))
    assert text(cpu, "Is the device busy?").startswith("The CPU works")
    little = replace(alone, backend="", window=replace(window, end_ns=10_000))
    assert text(replace(case, study=little), "Is the device busy?") == (
        "Not known: little was recorded: 4 operators, 8 ns of 10 µs."
    )


def test_a_tiny_share_has_no_row_of_zeros() -> None:
    idle = replace(study().idle, total_ns=1)
    case = replace(gpu(), study=replace(study(), idle=idle))
    assert text(case, "Which gaps?") == "None worth a word: the device idles < 0.1 % of the time."


def test_kernels_have_short_names_their_operator_and_a_share() -> None:
    assert text(gpu(), "Which kernels?") == (
        "Of device time: gemm (aten::mm) 60 %, softmax 20 %, add 10 %; 1 other kernel shares the "
        "rest. By kind: matmul 60 %."
    )
    assert short_name("x" * 80) == "x" * 59 + "…"
    assert short_name("void cutlass::Kernel2<cutlass_80_tensorop_s1688>(P)") == (
        "cutlass_80_tensorop_s1688"
    )
    assert short_name("<lambda>(int)") == "<lambda>(int)"


def test_intensity_stands_beside_the_ridge_and_the_ceilings() -> None:
    assert text(gpu(), "Which intensity?") == (
        "A step does 1 TFLOP on 954 MiB at least, 1000 FLOP/byte, above the ridge at 100 "
        "(float32). Of operator time 80 % is limited by arithmetic and reaches 41 % of that "
        "ceiling; 10 % is limited by memory and reaches 60 % of that ceiling; 10 % has no formula."
    )
    unknown = text(replace(gpu(), device=None), "Which intensity?")
    assert "where the ridge of this device is, is not known" in unknown


def test_gaps_have_a_cause_and_a_line() -> None:
    assert text(gpu(), "Which gaps?") == (
        "Of the idle time: input 77 % at train.py:63 main(), 3 gaps a step; "
        "launch-bound 23 % at train.py:63 main(), 3 gaps a step."
    )
    causes = tuple(replace(c, places=()) for c in study().idle.causes)
    blind = replace(gpu(), study=replace(study(), idle=replace(study().idle, causes=causes)))
    assert "with_stack=True" in text(blind, "Which gaps?")
    none = replace(gpu(), study=replace(study(), idle=Idle(total_ns=0)))
    assert text(none, "Which gaps?") == "None worth a word: the device idles 0 % of the time."


def test_the_peak_has_its_moment() -> None:
    assert text(gpu(), "Where is the peak?") == (
        "8 GiB of 140 GiB; of the traced steps the highest is 7 GiB, in step 2, in the forward, "
        "in Block_3 / Attention_3 / Linear_9."
    )
    alone = replace(gpu(), memory=MemoryUse())
    assert text(alone, "Where is the peak?").startswith("7 GiB on cuda:0, in step 2")
    growing = replace(gpu(), memory=MemoryUse(host_peak_bytes=GIB, growth_bytes_per_step=2.0**20),
                      on_gpu=False, study=None)  # fmt: skip
    assert text(growing, "Where is the peak?") == (
        "1 GiB resident, the program and its workers; when is not known: no allocation was "
        "traced. It grows 1 MiB a step."
    )


def test_what_is_not_known_says_why() -> None:
    for answer in answers(Case(on_gpu=True)):
        assert answer.clauses[0].code == AnswerCode.NOT_KNOWN
    capture = Capture(no_trace="profiles-itself")
    said = text(Case(on_gpu=True, capture=capture), "Which gaps?")
    assert said == "Not known: no trace: the program profiles itself."


def test_without_a_trace_the_driver_is_asked() -> None:
    seen = Case(on_gpu=True, telemetered=Telemetered(gpu_utilisation=0.97))
    assert text(seen, "Is the device busy?") == (
        "Not known: no step was traced. The driver saw a kernel run 97 % of the time, however "
        "small."
    )


def test_a_device_time_that_cannot_be_believed_is_not_told() -> None:
    why = "graph launches hide 97 % of the kernels"
    idle = Idle(total_ns=None, trust=Trust(confidence="unreliable", why=why))
    case = replace(gpu(), study=replace(study(), idle=idle))
    assert text(case, "Is the device busy?") == f"Not known: {why}."
    assert text(case, "Which gaps?") == f"Not known: {why}."


def test_formulas_that_tell_little_do_not_speak_for_the_step() -> None:
    case = replace(gpu(), work=replace(made.work(0.35), coverage=0.32))
    assert text(case, "Which intensity?").startswith(
        "The step's is not known: shapes and formulas tell only 32 % of operator time."
    )
    shapeless = replace(gpu(), work=replace(made.work(0.35), bytes=0.0), sites=Sites())
    assert "record_shapes=True" in text(shapeless, "Which intensity?")


def test_a_processor_is_asked_for_its_operators() -> None:
    row = OpRow(name="aten::mm", count=1, host_ns=1, host_self_ns=1, device_ns=0, device_self_ns=0,
                share=0.7)  # fmt: skip
    of = {"input": 0.2, "transfer": 0.0, "overhead": 0.1, "communication": 0.0, "compute": 0.7,
          "memory": 0.0}  # fmt: skip
    case = Case(
        work=made.work(0.7, gpu=False), study=replace(made.study({"input": 0.1}), ops=(row,)),
        shares=Shares(of=of), times=made.times({"forward": 1.0}, gpu=False),
    )  # fmt: skip
    assert text(case, "Which operators?") == "Of operator time: aten::mm 70 %."
    assert text(case, "Is the device busy?") == (
        "The CPU works 70 % of a step of 100 ms on the model; the rest is waiting for data 20 %, "
        "Python and starts of operators 10 %."
    )
    assert text(case, "Which gaps?").startswith("None to look for")
