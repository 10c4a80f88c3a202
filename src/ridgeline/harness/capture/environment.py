"""Where a program runs, from outside it: system, packages, git, the variables that decide speed.

Nothing here imports torch or reaches the network. Values of variables come from an allow list of
names only, and git is never asked where the repository came from: a remote's URL may hold a token.
"""

import contextlib
import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from ridgeline.harness.capture.redaction import HIDDEN, looks_secret, redacted, redacted_text
from ridgeline.harness.capture.variables import RECORDED
from ridgeline.machine import cgroup
from ridgeline.records.run import Environment, Git

__all__ = ["environment", "redacted", "redacted_text"]

PACKAGES = frozenset({
    "torch", "torchvision", "torchaudio", "torchao", "torchdata", "torchtune", "pytorch-triton",
    "pytorch-triton-rocm", "triton", "numpy", "scipy", "pandas", "polars", "pyarrow", "numba",
    "transformers", "accelerate", "datasets", "tokenizers", "peft", "trl", "diffusers",
    "sentence-transformers", "safetensors", "lightning", "pytorch-lightning", "fabric", "timm",
    "flash-attn", "flash-attn-3", "xformers", "deepspeed", "bitsandbytes", "transformer-engine",
    "megatron-core", "apex", "liger-kernel", "unsloth", "optimum", "vllm", "fairscale",
    "torchmetrics", "torch-geometric", "dgl", "einops", "kornia", "monai", "albumentations",
    "pillow", "pillow-simd", "opencv-python", "opencv-python-headless", "opencv-contrib-python",
    "av", "decord", "webdataset", "mosaicml-streaming", "ffcv", "h5py", "lmdb",
    "zarr", "mkl", "intel-openmp", "intel-extension-for-pytorch", "onnxruntime", "tensorrt",
    "jax", "tensorflow", "wandb", "tensorboard", "mlflow", "hydra-core", "ray", "ridgeline",
})  # fmt: skip
"""Those that decide speed or do a training program's work; and every nvidia-*."""
LONGEST_VALUE = 300
GIT_SECONDS = 1.0
"""A tree of 100,000 files on a slow disk takes longer; then it is said that nobody looked."""

# No prompt, no lock, no fetch of a partial clone, no program that the repository's settings name.
_GIT = ("git", "-c", "core.fsmonitor=false", "-c", "protocol.allow=never",
        "-c", "core.hooksPath=/dev/null", "-c", "credential.helper=")  # fmt: skip
_GIT_VARIABLES = {"GIT_TERMINAL_PROMPT": "0", "GIT_ASKPASS": "", "SSH_ASKPASS": "",
                  "GIT_NO_LAZY_FETCH": "1", "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}  # fmt: skip


def environment(directory: Path, path: Iterable[str] | None = None) -> Environment:
    """Of a program started in `directory` by this interpreter; its packages are looked for along
    `path`, this interpreter's own where None."""
    system = os.uname()
    return Environment(
        directory=homely(str(directory.absolute())),
        host=system.nodename,
        system=f"{system.sysname} {system.release} {system.machine}",
        python=".".join(map(str, sys.version_info[:3])),
        executable=homely(sys.executable or ""),
        git=git(directory),
        packages=packages(sys.path if path is None else path),
        variables=variables(os.environ),
        cores=_cores(),
        memory_bytes=memory_bytes(),
    )


def variables(present: Mapping[str, str]) -> dict[str, str]:
    """Those of the allow list that are set; a value that is long, or looks like a secret all the
    same, is hidden."""
    return {name: _harmless(present[name]) for name in RECORDED if name in present}


def packages(path: Iterable[str]) -> dict[str, str]:
    """Versions of what is installed, by the names of the metadata folders: 2 ms, where the library
    for it takes 24 ms to import alone."""
    found: dict[str, str] = {}
    for folder in dict.fromkeys(path):
        with contextlib.suppress(OSError), os.scandir(folder or ".") as entries:
            here = dict(filter(None, (_package(entry.name) for entry in entries)))
            found = here | found  # what comes first on the path is what is imported
    return dict(sorted(found.items()))


def git(directory: Path, seconds: float = GIT_SECONDS) -> Git | None:
    """None where there is no repository, no git, or one that belongs to somebody else."""
    said = _asked(directory, seconds, "status", "--porcelain=v2", "--branch",
                  "--untracked-files=no", "--ignore-submodules=all")  # fmt: skip
    if said is not None:
        lines = said.splitlines()
        fields = dict(line[2:].split(" ", 1) for line in lines if line.startswith("# branch."))
        commit, branch = fields.get("branch.oid", ""), fields.get("branch.head", "")
        return Git(
            commit="" if commit == "(initial)" else commit,
            branch="" if branch == "(detached)" else branch,
            dirty=any(not line.startswith("#") for line in lines),
        )
    said = _asked(directory, seconds, "rev-parse", "HEAD", "--abbrev-ref", "HEAD")
    if not said:
        return None
    commit, _, branch = said.strip().partition("\n")
    return Git(commit=commit, branch="" if branch == "HEAD" else branch, looked=False)


def homely(path: str) -> str:
    """With ~ for the user's own directory: a run that is shown around names nobody."""
    home = os.environ.get("HOME", "").rstrip("/")
    if home and (path == home or path.startswith(f"{home}/")):
        return f"~{path[len(home) :]}"
    return path


def _harmless(value: str) -> str:
    strange = len(value) > LONGEST_VALUE or not value.isprintable() or looks_secret(value)
    return HIDDEN if strange else homely(value)


def _package(entry: str) -> tuple[str, str] | None:
    """flash_attn-2.7.4.dist-info, PyYAML-6.0-py3.11.egg-info."""
    stem, dot, kind = entry.rpartition(".")
    if not dot or kind not in ("dist-info", "egg-info"):
        return None
    written, _, rest = stem.partition("-")
    name = written.lower().replace("_", "-").replace(".", "-")
    version = rest.partition("-")[0]
    wanted = name in PACKAGES or name.startswith("nvidia-")
    return (name, version) if wanted and version and len(version) < 80 else None


def _asked(directory: Path, seconds: float, *question: str) -> str | None:
    """git's answer, or None. In a group of its own, so that a filter it started ends with it."""
    try:
        process = subprocess.Popen(
            [*_GIT, *question],
            cwd=directory,
            env={**os.environ, **_GIT_VARIABLES},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except (OSError, ValueError):
        return None
    try:
        out, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        out = b""
    finally:
        if process.returncode is None:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if process.stdout is not None:
            process.stdout.close()
    return out.decode("utf-8", "replace") if process.returncode == 0 else None


def _cores() -> int:
    """That may be used: by affinity and by the control group's quota."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    quota = cgroup.cpu_quota()
    return allowed or 1 if quota is None else max(1, min(allowed or 1, math.ceil(quota)))


def memory_bytes() -> int:
    """Return the memory of the host, or of the control group if that allows less; 0 if it is not
    known."""
    try:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return 0
    limit = cgroup.memory_limit()
    return total if limit is None else min(total, limit)
