"""The environment variables a run may record: each decides speed, and none can hold a secret.

By exact name. A prefix would let in what somebody else called NCCL_TOKEN.
"""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from ridgeline.harness.capture.redaction import HIDDEN, looks_secret, redacted, redacted_text
from ridgeline.machine import processor
from ridgeline.records.run import Environment, Git

_TEXT = """
CUDA_VISIBLE_DEVICES CUDA_DEVICE_ORDER CUDA_LAUNCH_BLOCKING CUDA_DEVICE_MAX_CONNECTIONS
CUDA_MODULE_LOADING CUDA_CACHE_DISABLE CUDA_CACHE_MAXSIZE CUDA_AUTO_BOOST
CUDA_MPS_ACTIVE_THREAD_PERCENTAGE CUBLAS_WORKSPACE_CONFIG CUBLASLT_WORKSPACE_SIZE
NVIDIA_TF32_OVERRIDE NVIDIA_VISIBLE_DEVICES CUDNN_LOGINFO_DBG CUDNN_LOGLEVEL_DBG
HIP_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES HSA_OVERRIDE_GFX_VERSION PYTORCH_CUDA_ALLOC_CONF
PYTORCH_ALLOC_CONF PYTORCH_HIP_ALLOC_CONF PYTORCH_NO_CUDA_MEMORY_CACHING
PYTORCH_MPS_HIGH_WATERMARK_RATIO PYTORCH_ENABLE_MPS_FALLBACK PYTORCH_JIT
PYTORCH_NVML_BASED_CUDA_CHECK PYTORCH_TUNABLEOP_ENABLED PYTORCH_TUNABLEOP_TUNING
TORCH_ALLOW_TF32_CUBLAS_OVERRIDE TORCH_BLAS_PREFER_CUBLASLT TORCH_CUDNN_V8_API_DISABLED
TORCH_CUDNN_SDPA_ENABLED TORCH_CPP_LOG_LEVEL TORCH_SHOW_CPP_STACKTRACES TORCH_COMPILE_DEBUG
TORCH_COMPILE_DISABLE TORCH_LOGS TORCHDYNAMO_DISABLE TORCHDYNAMO_CACHE_SIZE_LIMIT
TORCHDYNAMO_DYNAMIC_SHAPES TORCHDYNAMO_VERBOSE TORCHDYNAMO_SUPPRESS_ERRORS
TORCHINDUCTOR_COMPILE_THREADS TORCHINDUCTOR_MAX_AUTOTUNE TORCHINDUCTOR_MAX_AUTOTUNE_GEMM
TORCHINDUCTOR_MAX_AUTOTUNE_POINTWISE TORCHINDUCTOR_COORDINATE_DESCENT_TUNING
TORCHINDUCTOR_FREEZING TORCHINDUCTOR_FX_GRAPH_CACHE TORCHINDUCTOR_AUTOGRAD_CACHE
TORCHINDUCTOR_FORCE_DISABLE_CACHES TORCHINDUCTOR_CPP_WRAPPER TORCHINDUCTOR_CUDAGRAPHS
TORCHINDUCTOR_CUDAGRAPH_TREES TORCHINDUCTOR_UNIQUE_KERNEL_NAMES TORCHINDUCTOR_PROFILE
TORCHINDUCTOR_BENCHMARK_FUSION TORCHINDUCTOR_GROUP_FUSION TORCHINDUCTOR_SHAPE_PADDING
TORCHINDUCTOR_LAYOUT_OPTIMIZATION TORCH_DISTRIBUTED_DEBUG TORCH_NCCL_ASYNC_ERROR_HANDLING
TORCH_NCCL_BLOCKING_WAIT TORCH_NCCL_AVOID_RECORD_STREAMS TORCH_NCCL_HIGH_PRIORITY
TORCH_NCCL_ENABLE_TIMING TORCH_NCCL_TRACE_BUFFER_SIZE TORCH_NCCL_CUDA_EVENT_CACHE
TORCH_NCCL_USE_COMM_NONBLOCKING TRITON_CACHE_AUTOTUNING TRITON_PRINT_AUTOTUNING TRITON_INTERPRET
TRITON_DISABLE_LINE_INFO NCCL_DEBUG NCCL_ALGO NCCL_PROTO NCCL_P2P_DISABLE NCCL_P2P_LEVEL
NCCL_SHM_DISABLE NCCL_IB_DISABLE NCCL_IB_HCA NCCL_IB_GID_INDEX NCCL_IB_TIMEOUT
NCCL_IB_QPS_PER_CONNECTION NCCL_SOCKET_IFNAME NCCL_SOCKET_NTHREADS NCCL_NSOCKS_PERTHREAD
NCCL_NTHREADS NCCL_BUFFSIZE NCCL_MIN_NCHANNELS NCCL_MAX_NCHANNELS NCCL_MIN_CTAS NCCL_MAX_CTAS
NCCL_NVLS_ENABLE NCCL_NET NCCL_NET_GDR_LEVEL NCCL_NET_GDR_READ NCCL_CROSS_NIC NCCL_LAUNCH_MODE
NCCL_BLOCKING_WAIT NCCL_ASYNC_ERROR_HANDLING NCCL_CUMEM_ENABLE NCCL_GRAPH_REGISTER
GLOO_SOCKET_IFNAME OMP_NUM_THREADS OMP_PROC_BIND OMP_PLACES OMP_SCHEDULE OMP_DYNAMIC
OMP_WAIT_POLICY OMP_THREAD_LIMIT OMP_MAX_ACTIVE_LEVELS GOMP_CPU_AFFINITY GOMP_SPINCOUNT
KMP_AFFINITY KMP_BLOCKTIME KMP_SETTINGS KMP_DUPLICATE_LIB_OK MKL_NUM_THREADS MKL_DYNAMIC
MKL_DEBUG_CPU_TYPE MKL_ENABLE_INSTRUCTIONS MKL_CBWR MKL_THREADING_LAYER MKL_SERVICE_FORCE_INTEL
OPENBLAS_NUM_THREADS OPENBLAS_CORETYPE NUMEXPR_NUM_THREADS NUMEXPR_MAX_THREADS
VECLIB_MAXIMUM_THREADS BLIS_NUM_THREADS NUMBA_NUM_THREADS POLARS_MAX_THREADS ATEN_CPU_CAPABILITY
ONEDNN_MAX_CPU_ISA ONEDNN_DEFAULT_FPMATH_MODE ONEDNN_VERBOSE ONEDNN_PRIMITIVE_CACHE_CAPACITY
DNNL_MAX_CPU_ISA DNNL_DEFAULT_FPMATH_MODE LRU_CACHE_CAPACITY MALLOC_ARENA_MAX
MALLOC_TRIM_THRESHOLD_ MALLOC_MMAP_THRESHOLD_ MALLOC_MMAP_MAX_ MALLOC_TOP_PAD_ GLIBC_TUNABLES
MALLOC_CONF LD_PRELOAD TOKENIZERS_PARALLELISM
RAYON_NUM_THREADS OPENCV_NUM_THREADS OPENCV_FOR_THREADS_NUM ACCELERATE_MIXED_PRECISION
ACCELERATE_USE_FSDP ACCELERATE_USE_DEEPSPEED ACCELERATE_DYNAMO_BACKEND HF_HUB_OFFLINE
HF_DATASETS_OFFLINE TRANSFORMERS_OFFLINE HF_DATASETS_IN_MEMORY_MAX_SIZE XFORMERS_DISABLED
XFORMERS_FORCE_DISABLE_TRITON FLASH_ATTENTION_SKIP_CUDA_BUILD RANK WORLD_SIZE LOCAL_RANK
LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE ROLE_RANK SLURM_JOB_ID SLURM_NTASKS SLURM_NNODES
SLURM_NODEID SLURM_PROCID SLURM_LOCALID SLURM_CPUS_PER_TASK SLURM_CPUS_ON_NODE SLURM_GPUS_ON_NODE
SLURM_MEM_PER_NODE SLURM_CPU_BIND_TYPE PYTHONHASHSEED PYTHONMALLOC PYTHONOPTIMIZE PYTHONDEVMODE
PYTHONUNBUFFERED PYTHONFAULTHANDLER PYTHONASYNCIODEBUG PYTHONTRACEMALLOC PYTHONNODEBUGRANGES
PYTHON_GIL PYTHON_JIT
"""
RECORDED = tuple(_TEXT.split())


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
        cores=processor.usable_cores(),
        memory_bytes=processor.memory_bytes(),
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
