"""A run's summary as the conclusion would make it: a program that waits for its loader."""

from ridgeline.records.facts import Trust, because
from ridgeline.records.run import Phase, PythonLine, PythonView
from ridgeline.records.run_summary import (
    Efficiency,
    Energy,
    MemoryUse,
    MissingCode,
    NextCommand,
    PhaseTime,
    RunSummary,
    StepTimes,
    SyncPoint,
    Telemetered,
    Throughput,
)
from ridgeline.records.step_work import Uncounted
from ridgeline.records.verdict import Deciding, DecidingCode, DoubtCode, LimitCode, Verdict

MEAN = 152.4
PHASES: tuple[tuple[Phase, float], ...] = (
    ("input", 93.0),
    ("forward", 14.2),
    ("backward", 29.0),
    ("optimizer", 9.1),
    ("other", 7.1),
)


def summary() -> RunSummary:
    return RunSummary(
        name="1115-010203-train",
        run_dir=".ridgeline/runs/1115-010203-train",
        command="examples/train.py --epochs 1",
        status="finished",
        verdict=_verdict(),
        step=_step(),
        throughput=Throughput(
            samples_s=210.3, steps_s=6.57, samples_per_step=32.0,
        ),
        efficiency=Efficiency(
            flops_per_step=1.6e13, flops_s=1.05e14, mfu=0.11, ceiling_flops_s=9.894e14,
            ceiling_dtype="bfloat16", ceiling_source="datasheet", coverage=0.974,
            uncounted=(Uncounted(op="aten::_fft_r2c", calls=12, share=0.026),),
        ),
        memory=MemoryUse(
            device_peak_bytes=8_482_560_410, device_reserved_bytes=9_000_000_000,
            device_total_bytes=150_000_000_000, host_peak_bytes=4_000_000_000,
        ),
        energy=Energy(
            joules_per_step=41.2, joules_per_sample=1.29, mean_power_w=271.0,
            source="GPU energy counter", cost_per_million_samples=4.62,
            carbon_g_per_million_samples=143.0,
        ),
        telemetry=Telemetered(
            gpu_utilisation=0.34, sm_mhz=1980.0, sm_max_mhz=1980.0, power_w=271.0,
            temperature_c=41.0, program_cores=1.04, worker_cores=3.9, workers=4, samples=58,
        ),
        device="NVIDIA H200",
        losses=(6.931, 2.204),
        sync_points=(
            SyncPoint(place="train.py:63", call=".item()", per_step=2.0, ms_per_step=1.31),
        ),
        missing=(
            because(MissingCode.PARTIAL_FLOPS, share=0.974, operators="aten::_fft_r2c"),
        ),
        bytes_on_disk=3_100_000,
        next=(
            NextCommand("python", "ridgeline run --python examples/train.py --epochs 1"),
            NextCommand(
                "trace", "ridgeline trace .ridgeline/runs/1115-010203-train/trace-rank0.json.gz"
            ),
        ),
    )  # fmt: skip


def _verdict() -> Verdict:
    return Verdict(
        bound="input-bound",
        reason=because(LimitCode.GPU_WAITS_FOR_DATA, share=0.61),
        numbers=(
            Deciding(code=DecidingCode.INPUT, value=0.61),
            Deciding(code=DecidingCode.GPU_BUSY, value=0.3, source="derived"),
        ),
        place="data.py:41",
    )


def _step() -> StepTimes:
    return StepTimes(
        median_ms=152.1,
        ci=(149.3, 155.2),
        mean_ms=MEAN,
        phases=tuple(
            PhaseTime(phase=p, ms=ms, ci=(0.97 * ms, 1.03 * ms), share=ms / MEAN)
            for p, ms in PHASES
        ),
        steps=37,
        counted=240,
        taken=240,
        warmup_steps=3,
        compile_steps=(0,),
        clock="device",
        stepping="optimizer",
    )


def nothing() -> RunSummary:
    """A run that left nothing but its name."""
    return RunSummary(
        name="1115-010203-train",
        run_dir=".ridgeline/runs/1115-010203-train",
        command="",
        status="killed",
        verdict=Verdict(
            bound="unknown",
            reason=because(LimitCode.NO_STEP),
            trust=Trust(confidence="unreliable", doubts=(because(DoubtCode.NOTHING_TIMED),)),
        ),
    )


def python() -> PythonView:
    line = PythonLine(
        file="/home/me/data.py", line=41, function="decode", source="image = image.resize(SIZE)",
        process="worker", share=0.71, total_share=0.8, seconds=2.1, calls="PIL.Image.resize",
    )  # fmt: skip
    return PythonView(
        main_samples=400, worker_samples=1600, workers=4, interval_ns=10_000_000, lines=(line,)
    )
