"""The program on the cores of one NUMA node: where it is tried, put on, and written."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from ridgeline.fixes.catalog import affinity, numa_binding, threads
from ridgeline.fixes.fix import EditByHand, find_fix
from ridgeline.optimization import function
from ridgeline.records.ground import Ground, NumaNode
from ridgeline.records.run import Flags, LoaderSeen
from ridgeline.records.trial import Applied
from ridgeline.source.editing.patching import patched
from tests.unit.fixes.seams_here import Here, no_source

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
ON_GPU = Applied(fix="numa-binding", what="cores 1, beside GPU 0000:3b:00.0")
ON_NODE = Applied(fix="numa-binding", what="cores 1, of NUMA node 1")
TWO = pytest.mark.skipif(
    not {0, 1} <= os.sched_getaffinity(0), reason="cores 0 and 1 are not both here"
)


def test_a_gpu_program_is_put_beside_its_gpu() -> None:
    assert numa_binding.reason_to_skip(GPU) == ""
    assert numa_binding.choices(GPU) == ({"cores": "4-7,12-15", "gpu": "0000:3b:00.0"},)


def test_a_cpu_program_is_put_on_a_node_that_is_enough_for_its_threads() -> None:
    assert numa_binding.reason_to_skip(CPU) == ""
    assert numa_binding.choices(CPU) == ({"cores": "0-3,8-11", "node": "0"},)
    wide = replace(CPU, flags=Flags(threads=5, allowed_cores=16))
    assert "5 threads need more than the 4 cores" in numa_binding.reason_to_skip(wide)
    crowded = replace(CPU, loaders=(LoaderSeen(workers=5),))
    assert "4 threads and 5 workers" in numa_binding.reason_to_skip(crowded)
    uneven = replace(CPU, nodes=(NumaNode(number=0, cores=(8,), physical=1), NODES[1]))
    assert numa_binding.choices(uneven)[0]["node"] == "1"


@pytest.mark.parametrize("ground", [CPU, GPU])
def test_where_it_cannot_win_it_says_why(ground: Ground) -> None:
    says = [
        (replace(ground, nodes=()), "does not say"),
        (replace(ground, nodes=NODES[:1]), "one NUMA node"),
        (replace(ground, ranks=2), "2 processes"),
        (replace(ground, flags=Flags(threads=1, allowed_cores=2)), "already, to 2 of 16 cores"),
        (replace(ground, variables={"OMP_PLACES": "cores"}), "already: OMP_PLACES"),
        (replace(ground, findings=("affinity",)), "bound already"),
        (replace(ground, nodes=(NODES[0], replace(NODES[1], cores=()))), "cores of one NUMA node"),
    ]
    for other, why in says:
        assert why in numa_binding.reason_to_skip(other)


def test_a_gpu_whose_place_is_not_known_is_left() -> None:
    assert "does not say which NUMA node" in numa_binding.reason_to_skip(replace(GPU, gpu_node=-1))
    elsewhere = replace(GPU, nodes=(*NODES, NumaNode(number=2)), gpu_node=2)
    assert "no core beside the GPU" in numa_binding.reason_to_skip(elsewhere)


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
    assert "bound already" in numa_binding.reason_to_skip(left)
    held = numa_binding.after(CPU, numa_binding.choices(CPU)[0])
    assert [one["threads"] for one in threads.choices(held)] == ["8", "1"]


def test_a_step_in_a_process_that_runs_already_is_not_bound() -> None:
    here = function._for_function(find_fix("numa-binding"), "")
    assert "a process of its own" in here.reason_to_skip(GPU)


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
        numa_binding.apply(none, {"cores": "4000-4001"})
        assert os.sched_getaffinity(0) == before
    finally:
        for thread in os.listdir("/proc/self/task"):
            os.sched_setaffinity(int(thread), before)
    assert kept.done == [ON_GPU.what]
    assert lost.done == none.done == same.done == []
    assert "sets its affinity itself" in lost.why_not
    assert "no core of that node" in none.why_not
    assert "bound already" in same.why_not


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
    ("applied", "file"),
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
    tmp_path: Path, applied: Applied, file: str, listed: str | None, cores: list[int]
) -> None:
    """On a machine made up of cores 0 and 1; where there is no such place, on all."""
    done = patched("train.py", SCRIPT, numa_binding.source_edits(applied, no_source))
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
    with pytest.raises(EditByHand):
        numa_binding.source_edits(Applied(fix="numa-binding", what="cores 1"), no_source)
