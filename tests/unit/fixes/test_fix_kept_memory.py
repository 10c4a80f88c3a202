"""kept_memory: what a step frees is there for the next one."""

import ctypes
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from ridgeline.fixes.catalog import kept_memory
from ridgeline.records.facts import Reason, because
from ridgeline.records.ground import Ground
from ridgeline.records.reason_codes import Skip
from ridgeline.source.editing.patching import patched
from tests.unit.fixes.seams_here import Here, applied, code, no_source

needs_glibc = pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "gnu_get_libc_version"), reason="another C library"
)
STEPS = """
import resource
import torch

def step():
    parts = [torch.ones(size * 2**18) for size in (4, 12, 4, 40)]  # in MB
    return sum(part.sum() for part in parts).item()

for _ in range(5):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    step()
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) // 20)
"""


def _pages(program: str, tmp_path: Path) -> int:
    """A step asks the system for. Of a process of its own: what mallopt sets cannot be unset."""
    script = tmp_path / "steps.py"
    script.write_text(textwrap.dedent(program))
    kept = {name: os.environ[name] for name in os.environ if name != "LD_PRELOAD"}
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=True, env=kept
    )
    return int(done.stdout.split()[-1])


@needs_glibc
def test_steps_ask_for_no_more_pages_put_on_and_written(tmp_path: Path) -> None:
    apply = """
        from types import SimpleNamespace
        from ridgeline.fixes.catalog import kept_memory

        said = []
        program = SimpleNamespace(
            did=lambda fix, done: said.append(done), found_nothing=lambda fix, reason: 1 / 0)
        kept_memory.apply(program, {})
        assert said, said
    """
    edits = kept_memory.source_edits(applied("kept-memory"), no_source)
    copy = patched("steps.py", STEPS.encode(), edits)
    assert copy.text.index("mallopt") < copy.text.index("import torch")
    plain = _pages(STEPS, tmp_path)
    assert plain > 500  # large ones, where the system has them: 60 MB are 15,360 of the usual
    assert _pages(textwrap.dedent(apply) + STEPS, tmp_path) < plain / 20
    assert _pages(copy.text, tmp_path) < plain / 20


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        (
            "LD_PRELOAD",
            "/usr/lib/libjemalloc.so.2",
            because(Skip.OTHER_ALLOCATOR, allocator="libjemalloc.so.2"),
        ),
        (
            "GLIBC_TUNABLES",
            "glibc.malloc.trim_threshold=1",
            because(Skip.SET_BY_ENVIRONMENT, variable="GLIBC_TUNABLES"),
        ),
        (
            "MALLOC_TRIM_THRESHOLD_",
            "1000",
            because(Skip.SET_BY_ENVIRONMENT, variable="MALLOC_TRIM_THRESHOLD_"),
        ),
    ],
)
def test_what_the_user_chose_stays(
    name: str, value: str, reason: Reason, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert kept_memory.reason_to_skip(Ground(variables={name: value})) == reason
    monkeypatch.setenv(name, value)
    program = Here()
    kept_memory.apply(program, {})
    assert program.done == []
    assert program.why_not == reason


def test_it_is_for_programs_that_compute_on_the_host() -> None:
    assert kept_memory.reason_to_skip(Ground()) is None
    assert code(kept_memory.reason_to_skip(Ground(device="cuda"))) == Skip.NO_CPU_WORK


def test_it_can_gain_what_the_system_takes() -> None:
    assert kept_memory.bound(Ground(system_share=0.25)) == pytest.approx(4 / 3)
    assert kept_memory.bound(Ground(system_share=0.0)) == 1.0
    assert kept_memory.bound(Ground()) is None
    assert kept_memory.bound(Ground(system_share=1.4)) > 10  # of two threads
