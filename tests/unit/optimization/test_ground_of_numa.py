"""What the ground knows of the machine's nodes and of the GPU's place among them."""

from functools import partial
from pathlib import Path

import pytest

from ridgeline.diagnosis.case import Case
from ridgeline.machine import nvml, processor
from ridgeline.optimization.candidates import candidates
from ridgeline.optimization.diagnosis import ground_of
from ridgeline.records.run import Capture, DeviceSeen, Flags

SEEN = Capture(
    flags=Flags(threads=2, allowed_cores=2),
    device=DeviceSeen(kind="cuda", pci="00000000:3b:00.0", architecture="sm_90"),
)


@pytest.fixture
def two_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cores 0 and 1, a node each; the GPU hangs on the second."""
    files = {
        "devices/system/node/node0/cpulist": "0",
        "devices/system/node/node1/cpulist": "1",
        "bus/pci/devices/0000:3b:00.0/numa_node": "1",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(f"{text}\n")
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1})
    for name in ("nodes", "node_of"):
        monkeypatch.setattr(processor, name, partial(getattr(processor, name), root=tmp_path))


@pytest.mark.usefixtures("two_nodes")
def test_a_run_of_this_machine_has_its_nodes_and_becomes_a_candidate() -> None:
    ground = ground_of(Case(on_gpu=True, capture=SEEN, processors=2))
    assert [one.cores for one in ground.nodes] == [(0,), (1,)]
    assert (ground.gpu_address, ground.gpu_node) == ("0000:3b:00.0", 1)
    (found,) = [one for one in candidates(ground, ()) if one.fix.id == "numa-binding"]
    assert found.unable is None
    assert found.options == {"cores": "1", "gpu": "0000:3b:00.0"}


@pytest.mark.usefixtures("two_nodes")
def test_a_run_of_another_machine_has_none() -> None:
    ground = ground_of(Case(on_gpu=True, capture=SEEN))
    assert (ground.nodes, ground.gpu_address, ground.gpu_node) == ((), "", -1)


@pytest.mark.usefixtures("two_nodes")
def test_without_a_gpu_nobody_is_asked_for_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "session", lambda: pytest.fail("NVML was started"))
    ground = ground_of(Case(capture=Capture(flags=SEEN.flags), processors=2))
    assert len(ground.nodes) == 2
    assert ground.gpu_node == -1
