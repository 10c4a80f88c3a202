"""Quotas and limits from control groups of both versions."""

from pathlib import Path

from ridgeline.machine import processor


def _membership(folder: Path, text: str) -> Path:
    path = folder / "membership"
    path.write_text(text)
    return path


def test_the_tightest_quota_of_nested_v2_groups_counts(tmp_path: Path) -> None:
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    (tmp_path / "a" / "cpu.max").write_text("150000 100000\n")
    (inner / "cpu.max").write_text("400000 100000\n")
    assert processor.cgroup_cpu_quota(tmp_path, _membership(tmp_path, "0::/a/b\n")) == 1.5


def test_no_limit_is_none(tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text("max 100000\n")
    (tmp_path / "memory.max").write_text("max\n")
    membership = _membership(tmp_path, "0::/\n")
    assert processor.cgroup_cpu_quota(tmp_path, membership) is None
    assert processor.cgroup_memory_limit(tmp_path, membership) is None
    assert processor.cgroup_memory_left(tmp_path, membership) is None


def test_v1_is_read_at_the_root_a_container_sees(tmp_path: Path) -> None:
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("50000\n")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    membership = _membership(tmp_path, "2:cpu,cpuacct:/docker/0123\n")
    assert processor.cgroup_cpu_quota(tmp_path, membership) == 0.5


def test_memory_left_is_limit_less_use(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("400\n")
    membership = _membership(tmp_path, "0::/\n")
    assert processor.cgroup_memory_limit(tmp_path, membership) == 1000
    assert processor.cgroup_memory_left(tmp_path, membership) == 600


def test_cached_files_are_not_memory_in_use(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("950\n")
    (tmp_path / "memory.stat").write_text("anon 300\ninactive_file 500\nactive_file 150\n")
    assert processor.cgroup_memory_left(tmp_path, _membership(tmp_path, "0::/\n")) == 700


def test_a_system_without_cgroups_has_no_limits(tmp_path: Path) -> None:
    assert processor.cgroup_cpu_quota(tmp_path, tmp_path / "absent") is None


def test_kills_for_memory_are_those_of_the_own_group(tmp_path: Path) -> None:
    membership = _membership(tmp_path, "0::/job/inner\n")
    inner = tmp_path / "job" / "inner"
    inner.mkdir(parents=True)
    (tmp_path / "job" / "memory.events").write_text("oom 9\noom_kill 7\n")
    assert processor.oom_kills(tmp_path, membership) == 7
    (inner / "memory.events").write_text("low 0\noom 3\noom_kill 2\n")
    assert processor.oom_kills(tmp_path, membership) == 2
    assert processor.oom_kills(tmp_path / "none", membership) == 0
