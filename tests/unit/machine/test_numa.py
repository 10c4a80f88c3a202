"""Which cores lie beside which memory and which GPU, read from a folder laid out like sysfs."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ridgeline.machine import nvml, processor
from ridgeline.records.ground import NumaNode

NODES = "devices/system/node"


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")
    return root


def two_sockets(root: Path) -> Path:
    """Eight logical cores, two of each core: 0 and 4, 1 and 5, 2 and 6, 3 and 7."""
    pairs = {
        f"devices/system/cpu/cpu{core}/topology/thread_siblings_list": f"{core % 4},{core % 4 + 4}"
        for core in range(8)
    }
    nodes = {f"{NODES}/node0/cpulist": "0-1,4-5", f"{NODES}/node1/cpulist": "2-3,6-7"}
    other = {f"{NODES}/online": "0-1", f"{NODES}/has_cpu": "0-1"}
    return write(root, {**pairs, **nodes, **other})


def test_a_node_has_the_cores_that_may_be_used(tmp_path: Path) -> None:
    root = two_sockets(tmp_path)
    assert processor.nodes(range(8), root) == (
        NumaNode(number=0, cores=(0, 1, 4, 5), physical=2),
        NumaNode(number=1, cores=(2, 3, 6, 7), physical=2),
    )
    held = processor.nodes({0, 1, 4}, root)
    assert [one.cores for one in held] == [(0, 1, 4), ()]
    assert [one.physical for one in held] == [2, 0]


def test_memory_without_cores_is_no_node_to_run_on(tmp_path: Path) -> None:
    root = write(two_sockets(tmp_path), {f"{NODES}/node2/cpulist": ""})
    assert [one.number for one in processor.nodes(range(8), root)] == [0, 1]


def test_nodes_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    lists = {f"{NODES}/node{number}/cpulist": str(number) for number in (10, 2, 0)}
    found = processor.nodes(range(16), write(tmp_path, lists))
    assert [one.number for one in found] == [0, 2, 10]
    assert [one.physical for one in found] == [1, 1, 1]  # nobody told of siblings


def test_without_sysfs_there_are_no_nodes(tmp_path: Path) -> None:
    assert processor.nodes(range(8), tmp_path / "none") == ()
    assert processor.nodes(range(8), write(tmp_path, {f"{NODES}/node0/cpulist": "garbage"})) == ()


@pytest.mark.parametrize(("said", "node"), [("1", 1), ("0", 0), ("-1", -1), ("", -1)])
def test_a_device_hangs_on_the_node_the_firmware_names(
    tmp_path: Path, said: str, node: int
) -> None:
    root = write(tmp_path, {"bus/pci/devices/0000:3b:00.0/numa_node": said})
    assert processor.node_of("0000:3b:00.0", root) == node
    assert processor.node_of("0000:86:00.0", root) == -1
    assert processor.node_of("", root) == -1


@pytest.mark.parametrize(
    ("pci", "name"),
    [
        ("00000000:3B:00.0", "0000:3b:00.0"),
        ("0000:3b:00.0", "0000:3b:00.0"),
        ("00010000:00:1e.0", "10000:00:1e.0"),
        ("../../secret", ""),
        ("", ""),
    ],
)
def test_an_address_is_written_as_sysfs_does(pci: str, name: str) -> None:
    assert processor.sysfs_name(pci) == name


def test_a_pci_address_from_torch_needs_no_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "session", lambda: pytest.fail("NVML was started"))
    assert processor.gpu_address(nvml.Address(pci="00000000:3b:00.0")) == "0000:3b:00.0"


@pytest.mark.parametrize("there", [True, False])
def test_a_pci_address_that_torch_lacks_comes_from_nvml(
    monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    def handle(uuid: str) -> str:
        assert uuid == "GPU-1-2"
        return "handle"

    library = SimpleNamespace(
        nvmlDeviceGetHandleByUUID=handle,
        nvmlDeviceGetPciInfo=lambda one: SimpleNamespace(busId=b"00000000:AF:00.0"),
    )

    @contextlib.contextmanager
    def session() -> Iterator[Any]:
        yield library if there else None

    monkeypatch.setattr(nvml, "session", session)
    assert processor.gpu_address(nvml.Address(uuid="1-2")) == ("0000:af:00.0" if there else "")


@pytest.mark.parametrize(
    ("listed", "cores"),
    [("0-3,8", (0, 1, 2, 3, 8)), ("5", (5,)), ("0,2-3", (0, 2, 3)), ("", ()), ("a-b", ())],
)
def test_a_list_of_cores_is_read_and_written(listed: str, cores: tuple[int, ...]) -> None:
    assert processor.cores_in(listed) == cores
    assert not cores or processor.cpulist(cores) == listed
