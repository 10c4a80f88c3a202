"""The program on the cores of one NUMA node: where it is tried, put on, and written."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from ridgeline.fixes.catalog import affinity, numa_binding, threads
from ridgeline.fixes.fix import find_fix
from ridgeline.optimization import function
from ridgeline.records.facts import because
from ridgeline.records.ground import Ground, NumaNode
from ridgeline.records.reason_codes import Done, Skip
from ridgeline.records.run import Flags, LoaderSeen
from ridgeline.records.trial import Applied
from ridgeline.source.editing.patching import patched
from tests.unit.fixes.seams_here import Here, applied, code, no_source

NODES = (
    NumaNode(number=0, cores=(0, 1, 2, 3, 8, 9, 10, 11), physical=4),
    NumaNode(number=1, cores=(4, 5, 6, 7, 12, 13, 14, 15), physical=4),
)
CPU = Ground(
    cores=16, processors=16, nodes=NODES, flags=Flags(threads=4, allowed_cores=16),
)  # fmt: skip
GPU = replace(
    CPU, device="cuda", gpu_address="0000:3b:00.0", gpu_node=1,
    flags=Flags(threads=8, allowed_cores=16),
)  # fmt: skip
NEAR_GPU = because(Done.BOUND_TO_GPU_NODE, cores="1", gpu="0000:3b:00.0")
ON_GPU = applied("numa-binding", NEAR_GPU)
ON_NODE = applied("numa-binding", because(Done.BOUND_TO_NODE, cores="1", node=1))
TWO = pytest.mark.skipif(
    not {0, 1} <= os.sched_getaffinity(0), reason="cores 0 and 1 are not both here"
)


def test_a_gpu_program_is_put_beside_its_gpu() -> None:
    assert numa_binding.reason_to_skip(GPU) is None
    assert numa_binding.choices(GPU) == ({"cores": "4-7,12-15", "gpu": "0000:3b:00.0"},)


def test_a_cpu_program_is_put_on_a_node_that_is_enough_for_its_threads() -> None:
    assert numa_binding.reason_to_skip(CPU) is None
    assert numa_binding.choices(CPU) == ({"cores": "0-3,8-11", "node": "0"},)
    wide = replace(CPU, flags=Flags(threads=5, allowed_cores=16))
    too_wide = because(Skip.NODE_TOO_SMALL, threads=5, workers=0, cores=4)
    assert numa_binding.reason_to_skip(wide) == too_wide
    crowded = replace(CPU, loaders=(LoaderSeen(workers=5),))
    too_many = because(Skip.NODE_TOO_SMALL, threads=4, workers=5, cores=4)
    assert numa_binding.reason_to_skip(crowded) == too_many
    uneven = replace(CPU, nodes=(NumaNode(number=0, cores=(8,), physical=1), NODES[1]))
    assert numa_binding.choices(uneven)[0]["node"] == "1"


@pytest.mark.parametrize("ground", [CPU, GPU])
def test_where_it_cannot_win_it_says_why(ground: Ground) -> None:
    says = [
        (replace(ground, nodes=()), because(Skip.NUMA_UNKNOWN)),
        (replace(ground, nodes=NODES[:1]), because(Skip.ONE_NUMA_NODE)),
        (replace(ground, ranks=2), because(Skip.LAUNCHER_BINDS, ranks=2)),
        (
            replace(ground, flags=Flags(threads=1, allowed_cores=2)),
            because(Skip.BOUND_TO_CORES, allowed_cores=2, all_cores=16),
        ),
        (
            replace(ground, variables={"OMP_PLACES": "cores"}),
            because(Skip.SET_BY_ENVIRONMENT, variable="OMP_PLACES"),
        ),
        (
            replace(ground, findings=("affinity",)),
            because(Skip.BOUND_TO_CORES, allowed_cores=16, all_cores=16),
        ),
        (
            replace(ground, nodes=(NODES[0], replace(NODES[1], cores=()))),
            because(Skip.BOUND_TO_NODE),
        ),
    ]
    for other, reason in says:
        assert numa_binding.reason_to_skip(other) == reason


def test_a_gpu_whose_place_is_not_known_is_left() -> None:
    unknown = replace(GPU, gpu_node=-1)
    assert numa_binding.reason_to_skip(unknown) == because(Skip.GPU_NODE_UNKNOWN)
    elsewhere = replace(GPU, nodes=(*NODES, NumaNode(number=2)), gpu_node=2)
    assert code(numa_binding.reason_to_skip(elsewhere)) == Skip.NO_CORE_NEAR_GPU


def test_it_is_never_tried_beside_the_release_of_an_affinity() -> None:
    """Which would undo it: whatever that is tried on, this is not."""
    for ground in (CPU, GPU):
        for found in ((), ("affinity",)):
            other = replace(ground, findings=found, processors=32)
            assert affinity.reason_to_skip(other) or numa_binding.reason_to_skip(other)


def test_a_gpu_gains_no_more_than_it_waits_for_its_host() -> None:
    waits = replace(GPU, busy=0.5, copy_share=0.1, overhead_share=0.2, input_share=0.2)
    assert numa_binding.bound(waits) == pytest.approx(2.0)
    assert numa_binding.bound(replace(GPU, busy=1.0)) == pytest.approx(1.0)
    assert numa_binding.bound(GPU) is None  # nothing is known of its step
    assert numa_binding.bound(CPU) is None


def test_once_it_is_on_there_are_as_many_cores_as_the_node_has() -> None:
    left = numa_binding.after(GPU, numa_binding.choices(GPU)[0])
    assert left.cores == 8
    assert code(numa_binding.reason_to_skip(left)) == Skip.BOUND_TO_CORES
    held = numa_binding.after(CPU, numa_binding.choices(CPU)[0])
    assert [one["threads"] for one in threads.choices(held)] == ["8", "1"]


def test_a_step_in_a_process_that_runs_already_is_not_bound() -> None:
    here = function._for_function(find_fix("numa-binding"), None)
    assert code(here.reason_to_skip(GPU)) == Skip.NEEDS_A_PROCESS


@TWO
def test_what_is_set_is_said_when_a_step_has_ended_with_it() -> None:
    before = os.sched_getaffinity(0)
    kept, lost, none, same = Here(), Here(), Here(), Here()
    try:
        numa_binding.apply(kept, {"cores": "1", "gpu": "0000:3b:00.0"})
        assert os.sched_getaffinity(0) == {1}
        kept.step_ended()
        numa_binding.apply(same, {"cores": "0-1", "node": "0"})
        os.sched_setaffinity(0, before)
        numa_binding.apply(lost, {"cores": "0", "node": "0"})
        os.sched_setaffinity(0, before)
        lost.step_ended()
        numa_binding.apply(none, {"cores": "4000-4001", "node": "0"})
        assert os.sched_getaffinity(0) == before
    finally:
        for thread in os.listdir("/proc/self/task"):
            os.sched_setaffinity(int(thread), before)
    assert kept.done == [NEAR_GPU]
    assert lost.done == none.done == same.done == []
    assert code(lost.why_not) == Skip.PROGRAM_SETS
    assert none.why_not == because(Skip.NODE_NOT_ALLOWED)
    assert same.why_not == because(Skip.BOUND_TO_NODE)


SCRIPT = b"""\
'''Doc.'''
import torch_or_so as torch
from multiprocessing import get_context

def tell(queue):
    queue.put(sorted(os.sched_getaffinity(0)))

if __name__ == "__main__":
    queue = get_context("fork").Queue()
    worker = get_context("fork").Process(target=tell, args=(queue,))
    worker.start()
    print(sorted(os.sched_getaffinity(0)), queue.get())
    worker.join()
"""


@TWO
@pytest.mark.parametrize(
    ("bound", "file"),
    [
        (ON_GPU, "bus/pci/devices/0000:3b:00.0/local_cpulist"),
        (ON_NODE, "devices/system/node/node1/cpulist"),
    ],
)
@pytest.mark.parametrize(
    ("listed", "cores"),
    [("1", [1]), ("0-1", [0, 1]), ("0,4000", [0]), ("4000", [0, 1]), ("", [0, 1]), (None, [0, 1])],
)
def test_the_copy_and_its_workers_run_on_those_cores(
    tmp_path: Path, bound: Applied, file: str, listed: str | None, cores: list[int]
) -> None:
    """On a machine made up of cores 0 and 1; where there is no such place, on all."""
    done = patched("train.py", SCRIPT, numa_binding.source_edits(bound, no_source))
    assert not done.refused
    (tmp_path / "torch_or_so.py").touch()
    sysfs = tmp_path / "sys"
    (sysfs / file).parent.mkdir(parents=True)
    if listed is not None:
        (sysfs / file).write_text(f"{listed}\n")
    assert f'"/sys/{file}"' in done.text
    copy = tmp_path / "copy.py"
    copy.write_text(done.text.replace('"/sys/', f'"{sysfs}/'))
    held = f"import os, runpy; os.sched_setaffinity(0, [0, 1]); runpy.run_path({str(copy)!r}, "
    ran = subprocess.run(
        [sys.executable, "-c", f"{held}run_name='__main__')"],
        capture_output=True, text=True, timeout=60, cwd=tmp_path,
    )  # fmt: skip
    assert ran.stdout.strip() == f"{cores} {cores}", ran.stderr


def test_what_it_says_names_the_place_and_stands_after_the_imports() -> None:
    done = patched("train.py", SCRIPT, numa_binding.source_edits(ON_GPU, no_source))
    assert done.text.index("get_context\n") < done.text.index("try:") < done.text.index("def tell")
    assert "this machine's GPU 0000:3b:00.0" in done.text
    again = patched("train.py", done.text.encode(), numa_binding.source_edits(ON_GPU, no_source))
    assert again.text == done.text


def test_cores_without_a_gpu_or_a_node_are_not_bound() -> None:
    """The copy could not say which cores it means on another machine."""
    program = Here()
    before = os.sched_getaffinity(0)
    numa_binding.apply(program, {"cores": "0"})
    assert os.sched_getaffinity(0) == before
    assert program.why_not == because(Skip.NUMA_UNKNOWN)
