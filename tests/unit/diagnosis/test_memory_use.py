"""The host's memory: its growth, also after the steps were counted, and its peak."""

import pytest
from msgspec.structs import replace

from ridgeline.diagnosis.memory_use import memory_use, with_death_for_memory
from ridgeline.diagnosis.recorded_run import RunRead
from ridgeline.records.run import (
    Capture,
    DeviceSeen,
    Environment,
    OutOfMemory,
    ProcessSample,
    RunFile,
    Status,
    Step,
    StepMemory,
    Target,
    Telemetry,
    Window,
)
from ridgeline.records.run_summary import MemoryUse

MS, MIB = 1_000_000, 2**20


def told(each: float, *, gpu: bool = False) -> tuple[Capture, list[Step], list[Telemetry]]:
    """Twenty steps of 50 ms counted, eighty more alone; ten samples a second."""
    end = 100 * 50 * MS
    captured = Capture(
        device=DeviceSeen(kind="cuda" if gpu else "cpu"),
        windows=(Window(kind="alone", first_step=20, start_ns=end // 5, end_ns=end),),
    )
    memory = StepMemory(allocated_bytes=MIB)
    steps = [
        Step(index=i, start_ns=i * 50 * MS, dur_ns=50 * MS, memory=memory if gpu else None)
        for i in range(20)
    ]
    sizes = {at: int(300 * MIB + each * at / 50 / MS) for at in range(0, end, 100 * MS)}
    watched = [
        Telemetry(at_ns=at, processes=(ProcessSample(pid=1, rss_bytes=size),))
        for at, size in sizes.items()
    ]
    return captured, steps, watched


@pytest.mark.parametrize("each", [0.0, 2.0 * MIB])
def test_steps_that_were_not_counted_are_told_by_the_clock(each: float) -> None:
    found = memory_use(*told(each))
    assert found.growth_bytes_per_step == pytest.approx(each, rel=0.02)
    assert found.host_growth_bytes_per_step == found.growth_bytes_per_step


def test_on_a_gpu_the_host_is_looked_at_beside_the_device() -> None:
    found = memory_use(*told(2.0 * MIB, gpu=True))
    assert found.growth_bytes_per_step is None
    assert found.host_growth_bytes_per_step == pytest.approx(2.0 * MIB, rel=0.02)


def traced(sizes: list[int], workers: int = 0) -> tuple[Capture, list[Step], list[Telemetry]]:
    """Steps of 50 ms, those of the second second traced and written until the third; a sample each
    tenth of a second, of so many MiB."""
    second = 1000 * MS
    captured = Capture(
        windows=(
            Window(kind="light", first_step=0, start_ns=1, end_ns=second),
            Window(kind="traced", first_step=20, start_ns=second, end_ns=2 * second),
            Window(kind="light", first_step=40, start_ns=2 * second, end_ns=len(sizes) * 100 * MS),
        )
    )
    steps = [
        Step(index=i, start_ns=at, dur_ns=50 * MS,
             window="traced" if second <= at < 2 * second else "light")
        for i, at in enumerate(range(0, len(sizes) * 100 * MS, 50 * MS))
        if not 2 * second <= at < 3 * second
    ]  # fmt: skip
    watched = [
        Telemetry(
            at_ns=at * 100 * MS,
            processes=(
                ProcessSample(pid=1, rss_bytes=size * MIB),
                *(ProcessSample(pid=2, worker=True, rss_bytes=9 * MIB) for _ in range(workers)),
            ),
        )
        for at, size in enumerate(sizes)
    ]
    return captured, steps, watched


@pytest.mark.parametrize("workers", [0, 2])
def test_the_peak_is_of_the_whole_run_less_what_the_trace_left(workers: int) -> None:
    """310 before it, 700 while it is written, 500 when the program goes on."""
    steady = [310] * 10 + [400] * 10 + [700] * 10
    found = memory_use(*traced(steady + [500] * 40, workers))
    assert found.host_peak_bytes == (310 + 9 * workers) * MIB
    found = memory_use(*traced(steady + [500 + 20 * i for i in range(40)], workers))
    assert found.host_peak_bytes == (310 + 39 * 20 + 9 * workers) * MIB


def test_a_trace_from_the_first_sample_on_is_left_in_the_peak() -> None:
    captured, steps, watched = traced([400] * 20 + [500] * 20)
    assert memory_use(captured, steps, watched[12:]).host_peak_bytes == 500 * MIB


@pytest.mark.parametrize("thirds", [(3, 3, 3), (4, 0, 4)])
def test_two_seconds_are_enough_where_every_third_rises_alike(thirds: tuple[int, ...]) -> None:
    rises = [each for each in thirds for _ in range(7)]
    sizes = [310] * 30 + [500 + sum(rises[:i]) for i in range(22)]
    found = memory_use(*traced(sizes))
    if min(thirds) == 3:  # 100 ms are two steps
        assert found.host_growth_bytes_per_step == pytest.approx(1.5 * MIB, rel=0.05)
    else:
        assert found.host_growth_bytes_per_step is None


def test_two_seconds_that_settle_or_stand_still_say_nothing() -> None:
    for later in ([500 + min(4 * i, 40) for i in range(22)], [500] * 22):
        found = memory_use(*traced([310] * 30 + later))
        assert found.host_growth_bytes_per_step is None


def exact(levels: list[float], *, gpu: bool = False, **changed: object) -> MemoryUse:
    """Growth over steps of 5 ms, whose memory in MiB an allocator told at the end of each."""
    steps = [
        Step(
            index=i, start_ns=i * 5 * MS, dur_ns=5 * MS,
            memory=StepMemory(allocated_bytes=int(level * MIB) if gpu else 0,
                              host_bytes=int((200 if gpu else level) * MIB)),
        )
        for i, level in enumerate(levels)
    ]  # fmt: skip
    captured = Capture(device=DeviceSeen(kind="cuda" if gpu else "cpu"), **changed)  # type: ignore[arg-type]
    return memory_use(captured, steps, [])


@pytest.mark.parametrize("gpu", [False, True])
def test_a_leak_of_a_hundred_short_steps_is_seen(gpu: bool) -> None:
    """Half a second: too short for any sample from outside."""
    found = exact([300 + i for i in range(100)], gpu=gpu)
    assert found.growth_bytes_per_step == pytest.approx(MIB, rel=0.01)
    assert found.host_growth_exact


def test_a_leak_that_speeds_up_is_seen() -> None:
    found = exact([300 + 0.05 * i * i for i in range(100)])
    assert found.growth_bytes_per_step == pytest.approx(5 * MIB, rel=0.1)


@pytest.mark.parametrize(
    "levels",
    [
        [300 + i % 30 for i in range(100)],  # generations, each with a cache of its own
        [300 + min(i, 60) for i in range(100)],  # a buffer that is full, a cache of the data set
        [300 + (i * 37) % 50 for i in range(100)],  # batches of every length
        [300 + 20 * (i > 70) for i in range(100)],  # a copy of the model
    ],
    ids=["given back", "full", "wandering", "once"],
)
def test_memory_that_is_given_back_or_stops_growing_is_no_growth(levels: list[float]) -> None:
    assert exact(levels).growth_bytes_per_step == 0.0


def test_a_few_steps_say_nothing() -> None:
    assert exact([300 + i for i in range(15)]).growth_bytes_per_step is None


@pytest.mark.parametrize(("later", "seen"), [(0.0, 0.0), (10.0, 1.0)])
def test_growth_that_stops_once_the_program_runs_alone_does_not_count(
    later: float, seen: float
) -> None:
    """`later`: of the resident size, in MiB for the 50 ms that ten of these steps take."""
    captured, _, watched = told(later * MIB)
    steps = [
        Step(index=i, start_ns=i * 5 * MS, dur_ns=5 * MS,
             memory=StepMemory(host_bytes=(200 + i) * MIB))
        for i in range(100)
    ]  # fmt: skip
    found = memory_use(captured, steps, watched)
    assert found.growth_bytes_per_step == pytest.approx(seen * MIB, rel=0.01)


def test_memory_given_back_when_the_steps_are_over_does_not_hide_a_leak() -> None:
    captured, _, watched = told(10.0 * MIB)
    steps = [
        Step(index=i, start_ns=i * 5 * MS, dur_ns=5 * MS,
             memory=StepMemory(host_bytes=(200 + i) * MIB))
        for i in range(100)
    ]  # fmt: skip
    over = captured.windows[0].end_ns
    after = [
        Telemetry(
            at_ns=over + at * 100 * MS, processes=(ProcessSample(pid=1, rss_bytes=300 * MIB),)
        )
        for at in range(60)
    ]
    longer = (replace(captured.windows[0], end_ns=over + 6000 * MS),)
    found = memory_use(replace(captured, windows=longer), steps, [*watched, *after])
    assert found.growth_bytes_per_step == pytest.approx(MIB, rel=0.01)


@pytest.mark.parametrize(("left", "released"), [(302, True), (390, False)])
def test_what_a_function_collected_is_given_back_when_it_returns(left: int, released: bool) -> None:
    end = StepMemory(host_bytes=left * MIB)
    levels = [300.0 + i for i in range(100)]
    assert exact(levels, memory_at_end=end, ended="finished").growth_released is released
    assert not exact(levels, memory_at_end=end, ended="raised").growth_released


GIB, MS = 2**30, 1_000_000


def read(
    last_gib: float, *, exit_code: int | None = -9, oom_kills: int = 0, ended: Status = "running",
    available: int | None = None, workers: int = 0,
) -> RunRead:  # fmt: skip
    """Sixteen GiB of memory, of which the program takes one at first and `last_gib` in the end."""
    sizes = [GIB + (last_gib - 1) * GIB * i / 49 for i in range(50)]
    return RunRead(
        run=RunFile(
            name="r", target=Target(kind="script", name="train.py"), exit_code=exit_code,
            oom_kills=oom_kills, environment=Environment(memory_bytes=16 * GIB),
        ),
        capture=Capture(ended=ended),
        steps=tuple(Step(index=i, start_ns=i * 50 * MS, dur_ns=50 * MS) for i in range(40)),
        telemetry=tuple(
            Telemetry(at_ns=i * 100 * MS, host_memory_available_bytes=available,
                      processes=(ProcessSample(pid=1, rss_bytes=int(size)),
                                 *(ProcessSample(pid=2 + n, worker=True) for n in range(workers))))
            for i, size in enumerate(sizes)
        ),
    )  # fmt: skip


def death(run: RunRead, growth: float | None = None) -> OutOfMemory | None:
    found = with_death_for_memory(run, MemoryUse(host_growth_bytes_per_step=growth))
    return found.capture.out_of_memory if found.capture is not None else None


@pytest.mark.parametrize(
    "run",
    [read(15.0), read(2.0, oom_kills=1), read(2.0, oom_kills=1, exit_code=None),
     read(2.0, available=GIB // 8)],
    ids=["full", "counted by the kernel", "without an exit code", "the whole host is short"],
)  # fmt: skip
def test_a_kill_with_memory_full_was_for_memory(run: RunRead) -> None:
    found = death(run)
    assert found is not None
    assert (found.on, found.killed, found.sure) == ("host", True, True)
    assert found.total_bytes == 16 * GIB


@pytest.mark.parametrize("watched_to_the_end", [True, False])
def test_the_step_of_a_kill_is_exact_only_while_steps_are_watched(watched_to_the_end: bool) -> None:
    """A program that goes on after its watched steps dies at a step that nobody counted."""
    run = read(15.0)
    assert run.capture is not None
    if not watched_to_the_end:
        alone = Window(kind="alone", first_step=40, steps=0, start_ns=2000 * MS, end_ns=5000 * MS)
        run = replace(run, capture=replace(run.capture, windows=(alone,)))
    found = death(run)
    assert found is not None
    assert (found.step, found.unwatched) == (39, not watched_to_the_end)
    counted = replace(run, capture=replace(run.capture, steps_taken=138))
    assert (found := death(counted)) is not None
    assert (found.step, found.unwatched) == (138, False)


def test_resident_sizes_that_count_shared_pages_twice_do_not_exceed_the_memory() -> None:
    found = death(read(18.0))
    assert found is not None
    assert found.allocated_bytes == 16 * GIB


def test_a_worker_that_the_kernel_killed_ended_the_program() -> None:
    found = death(read(2.0, oom_kills=1, exit_code=1, ended="raised", workers=2))
    assert found is not None
    assert (found.killed, found.worker, found.sure) == (True, True, True)


@pytest.mark.parametrize(
    "run",
    [read(2.0, exit_code=1, ended="raised", workers=2),
     read(2.0, oom_kills=1, exit_code=1, ended="raised"),
     read(2.0, oom_kills=1, exit_code=0, ended="finished", workers=2)],
    ids=["nothing was killed", "there were no workers", "the program went on"],
)  # fmt: skip
def test_other_errors_are_not_blamed_on_a_lost_worker(run: RunRead) -> None:
    assert death(run) is None


def test_growth_before_a_kill_makes_memory_a_likely_cause_only() -> None:
    found = death(read(4.0), growth=40.0 * 2**20)
    assert found is not None
    assert not found.sure
    assert found.allocated_bytes == 4 * GIB


@pytest.mark.parametrize(
    "run",
    [read(4.0), read(15.0, exit_code=-15), read(15.0, exit_code=1), read(15.0, ended="raised")],
    ids=["no growth", "asked to end", "ended itself", "said goodbye"],
)
def test_other_ends_are_not_for_memory(run: RunRead) -> None:
    assert death(run) is None
