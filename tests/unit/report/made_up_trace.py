"""A study as the analyses would make it, of a run that waits for its loader; and nasty names."""

from ridgeline.records.facts import Check, Trust, because
from ridgeline.records.trace import (
    Activity,
    CategoryRow,
    CollectiveRow,
    CriticalPath,
    DeviceTime,
    Difference,
    Gap,
    Idle,
    IdleCause,
    KernelRow,
    Launch,
    MemoryCurve,
    ModuleRow,
    OpRow,
    Overlap,
    PathShare,
    Phase,
    Place,
    Ranks,
    RankTime,
    Region,
    Roofline,
    RooflineRow,
    StepTime,
    StreamTime,
    TraceComparison,
    TraceStudy,
    TraceVerdict,
    Window,
)

MS = 1_000_000
START = 1_700_000_000_000_000_000
WINDOW = Window(start_ns=START, end_ns=START + 1733 * MS, basis="device activity", steps=4, note="")
LOADER = Place(file="/home/me/project/src/data/loader.py", line=41, function="decode", ns=500 * MS)
KERNEL = (
    "void at::native::(anonymous namespace)::vectorized_elementwise_kernel<4, "
    "at::native::CUDAFunctor_add<float>, at::detail::Array<char*, 3> >(int, at::native::Add)"
)
NASTY = (
    "\x1b[2J\x1b[31mred",
    "\x1b]8;;http://evil.test\x07link\x1b]8;;\x07",
    "\x1b]52;c;ZXZpbA==\x07",
    "\x9b31m",
    "abc\rxyz",
    "a\u202egnp.exe",
    "[bold]not bold[/bold]",
    "=HYPERLINK(1)",
    "|cell|`code`",
    "<script>alert(1)</script>",
    "lone \ud800 surrogate",
    "two\nlines\ttab",
    "zero\u200bwidth",
)


def study() -> TraceStudy:
    return TraceStudy(
        files=("runs/resnet.json.gz",),
        events=216_000,
        label="resnet.json.gz",
        torch="2.1.0",
        verdict=because(
            TraceVerdict.IDLE, share=0.3, devices=1, window_ns=500 * MS, longest_ns=None,
            idle_cause="input", cause_share=0.6, place="data.py:41",
        ),
        window=WINDOW,
        validation=(
            Check(id="overlap", severity="warning", claim="12 kernels overlap on stream 7",
                  count=12, affects=("kernels", "launch")),
            Check(id="no-flows", severity="note", claim="no arrows were in the file"),
        ),
        devices=(_device(0),),
        idle=_idle(),
        launch=Launch(launches=41_000, per_step=10_250.0, median_latency_ns=8_100.0,
                      p95_latency_ns=91_000.0, median_call_ns=4_200.0, linked=0.99,
                      median_queue=3.0, empty_queue=0.42, small_kernels=0.71,
                      small_kernel_time=0.08, tensor_core_time=0.0),
        overlap=Overlap(both_ns=700 * MS, host_ns=733 * MS, device_ns=300 * MS, neither_ns=0),
        kernels=tuple(
            KernelRow(name=name, category="elementwise", count=1200, total_ns=(90 - i) * MS,
                      share=0.09, mean_ns=75_000.0, least_ns=1_200, most_ns=140_000,
                      op="aten::add_", tensor_cores=(None, False, True)[i % 3])
            for i, name in enumerate([KERNEL, *(f"ampere_sgemm_{i}x64_tn" for i in range(11))])
        ),
        kernels_left_out=31,
        ops=tuple(
            OpRow(name=f"aten::op_{i}", count=400, host_ns=40 * MS, host_self_ns=10 * MS,
                  device_ns=90 * MS, device_self_ns=80 * MS, share=0.08, category="matmul")
            for i in range(8)
        ),
        shapes=(OpRow(name="aten::addmm", shape="[32, 64] [64, 10]", count=4, host_ns=MS,
                      host_self_ns=MS, device_ns=MS, device_self_ns=MS, share=0.01),),
        modules=(
            ModuleRow(path="ResNet_0", kind="ResNet", depth=0, count=4, host_ns=900 * MS,
                      device_ns=980 * MS, device_self_ns=0, share=0.98),
            ModuleRow(path="ResNet_0 / Bottleneck_3", kind="Bottleneck", depth=1, count=4,
                      host_ns=90 * MS, device_ns=98 * MS, device_self_ns=MS, share=0.1),
        ),
        categories=(CategoryRow(category="convolution", device_ns=600 * MS, count=900, share=0.6),
                    CategoryRow(category="elementwise", device_ns=400 * MS, count=9000, share=0.4)),
        roofline=_roofline(),
        phases=(Phase(phase="input", host_ns=522 * MS, device_ns=0, share=0.5),
                Phase(phase="forward", host_ns=300 * MS, device_ns=400 * MS, share=0.5)),
        memory=(_memory(),),
        critical_path=CriticalPath(total_ns=1733 * MS, host_ns=733 * MS, device_ns=990 * MS,
                                   wait_ns=10 * MS, top=(PathShare(
                                       what="host: enumerate(DataLoader)", side="host",
                                       ns=520 * MS, share=0.3, count=4),)),
        regions=(Region(kind="graph", name="graph 3", count=4, host_ns=MS, device_ns=9 * MS,
                        operations=312),),
        missing=("no shapes: record_shapes=True",),
    )  # fmt: skip


def several() -> TraceStudy:
    """Two ranks, the second late."""
    import msgspec

    made = Ranks(
        ranks=tuple(
            RankTime(rank=r, label=f"rank {r}", busy_ns=1000 * MS, idle_ns=733 * MS,
                     window_ns=1733 * MS, compute_ns=800 * MS, communication_ns=200 * MS,
                     wait_ns=150 * MS, transfer_ns=50 * MS, exposed_communication_ns=90 * MS,
                     overlap=0.55, clock_offset_ns=-1_250_000 * r, late_count=31 * r,
                     caused_wait_ns=150 * MS * r,
                     doing=(Activity(name="aten::copy_", ns=90 * MS),) if r else ())
            for r in range(2)
        ),
        collectives=(CollectiveRow(name="all_reduce", group="default", count=32, bytes=25_000_000,
                                   wire_ns=2 * MS, wait_ns=150 * MS, skew_ns=7_600_000,
                                   algorithm_bytes_s=12.5e9, bus_bytes_s=12.5e9, late_rank=1),),
        matched=32, unmatched=1,
        late="rank 1 was last to 31 of 32 collectives, in aten::copy_",
    )  # fmt: skip
    devices = tuple(msgspec.structs.replace(_device(r), rank=r) for r in range(2))
    return msgspec.structs.replace(
        study(),
        files=("r0.json", "r1.json"),
        label="2 ranks",
        ranks=made,
        devices=devices,
    )


def nothing() -> TraceStudy:
    """A trace without device work, stacks, shapes, anything."""
    window = Window(start_ns=0, end_ns=5 * MS, basis="host activity (no device work)")
    verdict = because(TraceVerdict.NO_OPERATORS, window_ns=window.ns)
    return TraceStudy(
        files=("cpu.json",), events=4, label="cpu.json", window=window, verdict=verdict
    )


def unreliable() -> TraceStudy:
    """Graph launches hide the kernels: no busy figure."""
    import msgspec

    trust = Trust(confidence="unreliable", why="graph launches hide 97 % of the kernels")
    device = msgspec.structs.replace(_device(0), busy_ns=None, idle_ns=None, trust=trust)
    check = Check(id="graphs", severity="error", claim="97 % of device work is hidden in graphs",
                  count=90, affects=("idle", "device"))  # fmt: skip
    return msgspec.structs.replace(
        study(),
        devices=(device,),
        idle=Idle(trust=trust),
        validation=(check,),
        verdict=because(TraceVerdict.UNKNOWN, doubt=trust.why),
    )


def nasty() -> TraceStudy:
    """Every name, label and line hostile."""
    import msgspec

    rows = tuple(
        KernelRow(name=name, category="other", count=1, total_ns=1, share=0.1, mean_ns=1.0,
                  least_ns=1, most_ns=1, op=name)
        for name in NASTY
    )  # fmt: skip
    gaps = tuple(
        Gap(device=0, start_ns=START, dur_ns=10, cause="input", before=name, after=name,
            host=name, place=Place(file=name, line=1, function=name), step=name)
        for name in NASTY
    )  # fmt: skip
    causes = tuple(
        IdleCause(cause="input", ns=1, share=0.1, says=name,
                  places=(Place(file=f"x/{name}", line=3, function=name),))
        for name in NASTY
    )  # fmt: skip
    ops = tuple(
        OpRow(name=name, shape=name, count=1, host_ns=1, host_self_ns=1, device_ns=1,
              device_self_ns=1, share=0.1)
        for name in NASTY
    )  # fmt: skip
    modules = tuple(
        ModuleRow(path=name, kind=name, depth=1, count=1, host_ns=1, device_ns=1,
                  device_self_ns=1, share=0.1)
        for name in NASTY
    )  # fmt: skip
    whole = "".join(NASTY)
    return msgspec.structs.replace(
        study(),
        files=(whole,), label=whole, torch=whole, missing=(whole,), kernels=rows,
        verdict=because(TraceVerdict.UNKNOWN, doubt=whole),
        ops=ops, shapes=ops, modules=modules, idle=Idle(total_ns=13, causes=causes, top=gaps),
        validation=(Check(id="x", severity="warning", claim=whole),),
        regions=(Region(kind="graph", name=whole, count=1, host_ns=1, device_ns=1, operations=1,
                        note=whole),),
        memory=(msgspec.structs.replace(_memory(), device=whole, note=whole),),
    )  # fmt: skip


def comparison() -> TraceComparison:
    return TraceComparison(
        before="before.json",
        after="after.json",
        per="step",
        before_ns=152e6,
        after_ns=61e6,
        differences=(
            Difference(of="total", name="step", before_ns=152e6, after_ns=61e6, before_count=1,
                       after_count=1),
            Difference(of="cause", name="input", before_ns=93e6, after_ns=2e6, before_count=1,
                       after_count=1),
            Difference(of="kernel", name=KERNEL, before_ns=0, after_ns=3e6, before_count=0,
                       after_count=12),
            Difference(of="kernel", name=NASTY[0], before_ns=3e6, after_ns=0, before_count=2,
                       after_count=0),
        ),
        verdict="a step went from 152 to 61 ms: 91 ms less waiting for input",
        note="one trace each is no proof",
    )  # fmt: skip


def _device(index: int) -> DeviceTime:
    return DeviceTime(
        device=index,
        name="Tesla V100-SXM2-16GB",
        window=WINDOW,
        busy_ns=1000 * MS,
        idle_ns=733 * MS,
        kernel_ns=980 * MS,
        copy_ns=20 * MS,
        operations=41_000,
        streams=(StreamTime(stream=7, busy_ns=1000 * MS, operations=41_000),),
        steps=tuple(
            StepTime(name=f"ProfilerStep#{i}", start_ns=START + i * 400 * MS, dur_ns=400 * MS,
                     busy_ns=250 * MS, idle_ns=150 * MS, whole=i < 3)
            for i in range(4)
        ),
    )  # fmt: skip


def _idle() -> Idle:
    def gap(i: int) -> Gap:
        return Gap(device=0, start_ns=START + (i * 150 + 20) * MS, dur_ns=(120 - i) * MS,
                   cause=("input", "synchronisation")[i % 2], before=KERNEL,
                   after="Memcpy HtoD (Pageable -> Device)", host="enumerate(DataLoader)#_next",
                   place=LOADER if i % 2 == 0 else None, step=f"ProfilerStep#{i}")  # fmt: skip

    return Idle(
        total_ns=733 * MS,
        causes=(
            IdleCause(cause="input", ns=522 * MS, share=522 / 733, gaps=4,
                      places=(LOADER, Place(file="train.py", line=63, function="<module>", ns=MS)),
                      says="enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"),
            IdleCause(cause="launch-bound", ns=200 * MS, share=200 / 733, gaps=9000,
                      says="aten::add_"),
            IdleCause(cause="between kernels", ns=11 * MS, share=11 / 733, gaps=31_000),
        ),
        top=tuple(gap(i) for i in range(6)),
        gaps=40_004,
        histogram=((10_000, 31_000, 11 * MS), (1_000_000_000, 4, 522 * MS)),
    )  # fmt: skip


def _roofline() -> Roofline:
    return Roofline(
        device="Tesla V100-SXM2-16GB",
        rows=(
            RooflineRow(op="aten::addmm", shape="[32, 64] [64, 10]", dtype="float32", count=4,
                        device_ns=90 * MS, share=0.09, flops=4e9, bytes=1e7, flops_s=11e12,
                        bytes_s=3e10, intensity=400.0, bound="compute", attained=0.7,
                        ceiling=15.7e12, source="datasheet"),
            RooflineRow(op="aten::add_", shape="[32, 64]", dtype="float32", count=400,
                        device_ns=80 * MS, share=0.08, flops=1e6, bytes=1.2e7, flops_s=5e10,
                        bytes_s=6e11, intensity=0.08, bound="memory", attained=0.66,
                        ceiling=9e11, source="datasheet"),
        ),
        covered=0.81,
        uncovered=(("aten::custom", 12 * MS),),
    )  # fmt: skip


def _memory() -> MemoryCurve:
    points = tuple(
        (START + i * 10 * MS, (i % 40 + 1) * 100_000_000, 5_000_000_000) for i in range(170)
    )
    return MemoryCurve(device="cuda:0", points=points, peak_bytes=4_000_000_000,
                       peak_ns=START + 390 * MS, peak_step="ProfilerStep#0",
                       start_bytes=100_000_000, end_bytes=1_000_000_000,
                       reserved_peak_bytes=5_000_000_000, events=9000)  # fmt: skip
