"""Records the surroundings of a run, and keeps secrets out of the record.

Only environment variables of the list below are recorded: each decides speed, and none can hold a
secret. They are listed by their exact names, because a prefix would also admit a name such as
NCCL_TOKEN. `redacted` and `redacted_text` hide secrets in command lines, code and error texts.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache, partial
from itertools import pairwise
from pathlib import Path

from ridgeline.machine import processor
from ridgeline.records.run import Environment, Git

_RECORDED_NAMES = """
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
RECORDED_VARIABLES = tuple(_RECORDED_NAMES.split())


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
"""Packages whose versions are recorded, because they affect speed or do the work of a training
program. Every package named nvidia-* is recorded too."""
MAX_VALUE_CHARS = 300
GIT_TIMEOUT_S = 1.0
"""Time limit for git. A tree of 100,000 files on a slow disk takes longer; the record then says
that the tree was not read."""

# git must not prompt, lock, fetch missing objects or run programs that the repository configures.
_GIT = ("git", "-c", "core.fsmonitor=false", "-c", "protocol.allow=never",
        "-c", "core.hooksPath=/dev/null", "-c", "credential.helper=")  # fmt: skip
_GIT_VARIABLES = {"GIT_TERMINAL_PROMPT": "0", "GIT_ASKPASS": "", "SSH_ASKPASS": "",
                  "GIT_NO_LAZY_FETCH": "1", "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}  # fmt: skip


def environment(directory: Path, path: Iterable[str] | None = None) -> Environment:
    """Describe the surroundings of a program that is started in `directory` by this interpreter.
    Packages are looked for along `path`, by default this interpreter's own search path."""
    system = os.uname()
    return Environment(
        directory=with_tilde(str(directory.absolute())),
        host=system.nodename,
        system=f"{system.sysname} {system.release} {system.machine}",
        python=".".join(map(str, sys.version_info[:3])),
        executable=with_tilde(sys.executable or ""),
        git=git(directory),
        packages=packages(sys.path if path is None else path),
        variables=variables(os.environ),
        cores=processor.usable_cores(),
        memory_bytes=processor.memory_bytes(),
    )


def variables(present: Mapping[str, str]) -> dict[str, str]:
    """Return the recorded variables that are set. A value that is long or looks like a secret is
    hidden."""
    return {name: _recordable(present[name]) for name in RECORDED_VARIABLES if name in present}


def packages(path: Iterable[str]) -> dict[str, str]:
    """Return the versions of installed packages, taken from the names of their metadata folders.
    This takes 2 ms; importing importlib.metadata alone takes 24 ms."""
    versions: dict[str, str] = {}
    for folder in dict.fromkeys(path):
        with contextlib.suppress(OSError), os.scandir(folder or ".") as entries:
            here = dict(filter(None, (_package(entry.name) for entry in entries)))
            versions = here | versions  # the first folder on the path is the one imported from
    return dict(sorted(versions.items()))


def git(directory: Path, seconds: float = GIT_TIMEOUT_S) -> Git | None:
    """Return the state of the repository at `directory`. Return None if there is no repository or
    no git, or if the repository belongs to another user."""
    output = _git_output(directory, seconds, "status", "--porcelain=v2", "--branch",
                  "--untracked-files=no", "--ignore-submodules=all")  # fmt: skip
    if output is not None:
        lines = output.splitlines()
        fields = dict(line[2:].split(" ", 1) for line in lines if line.startswith("# branch."))
        commit, branch = fields.get("branch.oid", ""), fields.get("branch.head", "")
        return Git(
            commit="" if commit == "(initial)" else commit,
            branch="" if branch == "(detached)" else branch,
            dirty=any(not line.startswith("#") for line in lines),
        )
    output = _git_output(directory, seconds, "rev-parse", "HEAD", "--abbrev-ref", "HEAD")
    if not output:
        return None
    commit, _, branch = output.strip().partition("\n")
    return Git(commit=commit, branch="" if branch == "HEAD" else branch, looked=False)


def with_tilde(path: str) -> str:
    """Replace the user's home directory by ~, so that a run can be shared without the user's
    name."""
    home = os.environ.get("HOME", "").rstrip("/")
    if home and (path == home or path.startswith(f"{home}/")):
        return f"~{path[len(home) :]}"
    return path


def _recordable(value: str) -> str:
    hide = len(value) > MAX_VALUE_CHARS or not value.isprintable() or looks_secret(value)
    return HIDDEN if hide else with_tilde(value)


def _package(entry: str) -> tuple[str, str] | None:
    """Return the name and version in the name of a metadata folder, such as
    flash_attn-2.7.4.dist-info or PyYAML-6.0-py3.11.egg-info. Return None for another folder, or
    for a package that is not recorded."""
    stem, dot, kind = entry.rpartition(".")
    if not dot or kind not in ("dist-info", "egg-info"):
        return None
    written, _, rest = stem.partition("-")
    name = written.lower().replace("_", "-").replace(".", "-")
    version = rest.partition("-")[0]
    wanted = name in PACKAGES or name.startswith("nvidia-")
    return (name, version) if wanted and version and len(version) < 80 else None


def _git_output(directory: Path, seconds: float, *question: str) -> str | None:
    """Return the output of a git command, or None if it fails. git runs in a process group of its
    own, so that a filter it started ends with it."""
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


_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


def _set(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SECRET_WORDS = _set(
    "password passwords passwd pwd passphrase passcode secret secrets apikey apikeys token "
    "credential credentials creds authorization bearer jwt cookie cookies dsn otp webhook sas "
    "pass pat accesskey secretkey authtoken accesstoken privatekey userpass connectionstring netrc"
)
_SECRET_KEY_KINDS = _set(
    "api secret access private account license signing encryption encrypt auth storage "
    "subscription master ssh deploy service client shared consumer wandb hf openai aws azure gcp "
    "google anthropic comet neptune mlflow clearml kaggle replicate cohere mistral"
)
"""Words that make a following `key` or `keys` a secret: api_key, ssh_key."""
_MODEL_WORDS = _set(
    "pad padding eos bos unk mask masked sep cls special stop image audio video start end per max "
    "min num n new next prefix class first last mean avg total target source prompt bot eot eod "
    "begin decoder encoder every each by single two multi forward backward one second"
)
"""Words after which `token` or `pass` belongs to a model, not to a person: pad_token."""
_PROPERTY_WORDS = _set(
    "file files path dir directory folder env var name names type types len length size count "
    "limit dim dims dimension ratio rate min max num prob probability budget strategy idx index "
    "level policy provider backend expiry ttl timeout through"
)
"""Words that, after the name of a secret, name a property of it and not the secret itself:
password_length, token_file."""
_POSSIBLY_SECRET_WORDS = _set("key keys token tokens auth session login pin sid signature")
_PLURAL_SECRETS = _set("passwords secrets apikeys credentials creds cookies keys tokens")
_HASH_WORDS = _set("commit sha rev revision hash digest checksum md uuid")
_SECRET_ENDINGS = ("password", "passwd", "apikey", "secret", "passphrase")


@lru_cache(maxsize=512)
def words(name: str) -> tuple[str, ...]:
    """Split a name into lower-case words: --hfToken and HF_TOKEN give (hf, token)."""
    return tuple(word.lower() for word in _WORDS.findall(name.rpartition("/")[2]))


def is_secret(name: str) -> bool:
    """Return whether every value with this name is a secret, however it looks."""
    parts = words(name)
    for position, word in enumerate(parts):
        before, after = parts[position - 1] if position else "", parts[position + 1 :]
        if _PROPERTY_WORDS.intersection(after):
            continue
        if word in ("token", "pass") and (before in _MODEL_WORDS or "".join(after).isalpha()):
            continue  # --pad-token, --token-mixer
        if word in _SECRET_WORDS or (word in ("key", "keys") and before in _SECRET_KEY_KINDS):
            return True
        if word == "string" and before in ("connection", "conn"):
            return True
    return "".join(parts).endswith(_SECRET_ENDINGS)


def may_be_secret(name: str) -> bool:
    """Return whether a value with this name, such as --key or --session, is a secret unless it
    looks typed by hand."""
    return not (
        _POSSIBLY_SECRET_WORDS.isdisjoint(words(name)) or _PROPERTY_WORDS.intersection(words(name))
    )


def takes_several(name: str) -> bool:
    return not _PLURAL_SECRETS.isdisjoint(words(name))


def is_hash(name: str) -> bool:
    """Return whether hexadecimal digits under this name, such as --revision, are not a secret."""
    return not _HASH_WORDS.isdisjoint(words(name))


HIDDEN = "‹hidden›"
MAX_SCANNED_CHARS = 4096
MAX_KEPT_CHARS = 2000
"""Number of characters of one argument that are recorded. `MAX_SCANNED_CHARS` of them are searched
for secrets, so that a secret that begins in the recorded part is seen to its end. The time of the
search grows with the square of the length and is 9 ms for an argument of this size."""

_KEY_FORMATS = re.compile(
    r"""(?<![A-Za-z0-9])(?:
      hf_(?=[A-Za-z0-9]*[A-Z0-9])[A-Za-z0-9]{8,}
    | (?:sk|pk|rk)[-_](?=[\w-]*\d)[\w-]{12,}
    | gh[pousr]_\w{8,} | github_pat_\w{8,} | gl(?:pat|ptt|dt|rt|oas|soat)-[\w-]{8,}
    | (?:AKIA|ASIA|AROA|AIDA|ABIA|ACCA)[A-Z0-9]{12,}
    | AIza[\w-]{20,} | ya29\.[\w-]{8,} | GOCSPX-[\w-]{8,}
    | xox[abeoprs]-[\w-]{8,} | xapp-[\w-]{8,} | hooks\.slack\.com/services/\S+
    | eyJ[\w-]{6,}\.[\w-]{4,}(?:\.[\w-]*)?
    | nvapi-[\w-]{8,} | r8_\w{8,} | gsk_\w{8,} | xai-\w{8,} | pplx-\w{8,} | tvly-[\w-]{8,}
    | npm_\w{8,} | pypi-[\w-]{12,} | dckr_pat_[\w-]{8,} | dop_v1_\w{8,} | lsv2_\w{8,}
    | SG\.[\w-]{8,}\.[\w-]{8,} | hv[sb]\.[\w-]{8,} | whsec_\w{8,} | sntrys_\w{8,}
    | shp(?:at|ss|ca|pa)_\w{8,} | tskey-[\w-]{8,} | lin_api_\w{8,} | glsa_\w{8,}
    | ATATT3[\w=-]{8,} | AGE-SECRET-KEY-\w+ | ntn_\w{8,} | dapi[0-9a-f]{16,}
    )[\w=/+-]*""",
    re.VERBOSE,
)
_PEM = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*", re.DOTALL)
_HIDE = rf"\1{HIDDEN}"
_LOGINS = (
    re.compile(r"(https?://)[^\s/?#\"']+(?=@)"),
    re.compile(r"(://)[^\s/?#:@\"']*:[^\s/?#\"']*(?=@)"),
    # a password with a slash in it, where what follows the colon is no port
    re.compile(r"(://)[^\s/:@]*:(?!\d+(?:/|$))[^\s@]+(?=@)"),
    re.compile(r"((?<![\w/:.‹-])[\w.+-]+:)[^\s@/:]+(?=@(?!sha\d)[\w-]+(?:[.:/]|$))"),
    re.compile(r"(\b(?:Bearer|Basic|Token|Digest)\s+)(?=\S*[\d=+/_-])[^\s\"',}]{6,}", re.I),
)
_NAME = re.compile(r"""(?<![\w.-])([A-Za-z_][\w.-]{0,80})["'\])]{0,3}\s{0,8}(?::=|[:=])\s{0,8}""")
_VALUE_OF_NAME = re.compile(
    r"""(["'])(?:(?!\1).)*\1?|\[[^\]]*\]?|(?:Bearer|Basic|Token)\s+[^\s"',}]+|[^\s"',;&}\])]+""",
    re.I | re.S,
)
_RANDOM_TEXT = (
    (re.compile(r"(?<![\w/+.=-])[A-Za-z0-9/+]{40}(?![\w/+.=-])"), 0.25),
    (re.compile(r"[A-Za-z0-9+=]{20,}"), 0.35),
    (re.compile(r"[A-Za-z0-9_-]{32,}"), 0.45),
)
"""Patterns of randomly generated keys. Each comes with the smallest share of characters at which
the kind of character (lower case, upper case, digit) changes. The share is 0.62 in random text and
0.38 in ViT-bigG-14-CLIPA-336-datacomp1b. The first pattern is for AWS secret keys, which may hold
slashes."""
_HEX = re.compile(r"(?<![\w/-])(?:[0-9a-fA-F]{32}|[0-9a-fA-F]{40}|[0-9a-fA-F]{64})(?![\w/-]|\.\w)")
_NUMBER = re.compile(r"[+-]?\d{1,15}(?:\.\d*)?(?:e[+-]?\d+)?", re.I)
_ASSIGNED = re.compile(r"([-+~]*[A-Za-z_][\w./@-]*)=(.*)", re.DOTALL)
_SEPARATORS = re.compile(r"[\s,/._:|-]+")


def redacted(arguments: Sequence[str]) -> tuple[str, ...]:
    """Return the arguments of a command line with all values hidden that may be secrets."""
    kept: list[str] = []
    name = ""  # the option whose value comes next
    for argument in arguments:
        option = len(argument) > 1 and argument[0] == "-" and not _NUMBER.fullmatch(argument)
        kept.append(_cut(_value("" if option else name, argument[:MAX_SCANNED_CHARS]), argument))
        if option:
            name = "" if "=" in argument else argument
        elif not takes_several(name):
            name = ""
    return tuple(kept)


def redacted_text(text: str) -> str:
    """Return code or the text of an exception with secrets hidden. After a name only quoted text is
    hidden, because `token = tokenizer(x)` is code and no secret."""
    return _cut(_hide_by_look(_hide_by_name(text[:MAX_SCANNED_CHARS], quoted=True)), text)


def _cut(kept: str, whole: str) -> str:
    most = (
        MAX_KEPT_CHARS if len(whole) <= MAX_SCANNED_CHARS else min(MAX_KEPT_CHARS, len(kept) // 2)
    )
    return kept if len(kept) <= most else f"{kept[:most]}… ({len(whole):,} characters)"


def looks_secret(text: str) -> bool:
    """Return whether a value looks like a secret, whatever its name is."""
    return _hide_by_look(text[:MAX_SCANNED_CHARS]) != text[:MAX_SCANNED_CHARS]


def _value(name: str, value: str) -> str:
    """Return `value` with secrets hidden. `name` is the option that it belongs to, or ""."""
    if is_secret(name):
        return HIDDEN if value else value
    if name in ("-u", "--user", "--login") and ":" in value:
        return f"{value.partition(':')[0]}:{HIDDEN}"
    if may_be_secret(name) and not _looks_typed(value):
        return HIDDEN
    assigned = _ASSIGNED.fullmatch(value)  # --name=value, NAME=value as Hydra and env take it
    if assigned is not None:
        return f"{assigned[1]}={_value(assigned[1], assigned[2])}"
    return _hide_by_look(_hide_by_name(value), is_hash(name))


def _looks_typed(value: str) -> bool:
    """Return whether a value looks typed by hand: a number, a word, a path, or a list of these."""
    parts = _SEPARATORS.split(value)
    return bool(_NUMBER.fullmatch(value)) or all(
        part.isalpha() or part.isdigit() or len(part) < 8 for part in parts
    )


def _hide_by_name(text: str, quoted: bool = False) -> str:
    """Return `text` with the values of fields hidden whose names say that they are secret. With
    `quoted`, only values in quotes are hidden."""
    kept, position = [], 0
    while (name := _NAME.search(text, position)) is not None:
        kept.append(text[position : name.end()])
        position = name.end()
        value = _VALUE_OF_NAME.match(text, position) if is_secret(name[1]) else None
        if value is None or (quoted and (value[1] is None or len(value[0]) < 3)):
            continue
        quote = value[1] or ""
        kept.append(f"{quote}{HIDDEN}{quote}")
        position = value.end()
    return "".join((*kept, text[position:]))


def _hide_by_look(text: str, hashes: bool = False) -> str:
    """Return `text` with everything hidden that looks like a secret. With `hashes`, hexadecimal
    digits are kept."""
    if len(text) < 6:
        return text
    text = _KEY_FORMATS.sub(HIDDEN, _PEM.sub(HIDDEN, text))
    for login in _LOGINS:
        text = login.sub(_HIDE, text)
    for pattern, min_change_share in _RANDOM_TEXT:
        text = pattern.sub(partial(_hidden_if_random, min_change_share=min_change_share), text)
    return text if hashes else _HEX.sub(HIDDEN, text)


def _hidden_if_random(match: "re.Match[str]", min_change_share: float) -> str:
    """Return `HIDDEN` for a match that mixes lower case, upper case and digits so often that it
    must have been generated at random; else return the match itself."""
    kinds = [_kind(character) for character in match[0] if character not in "-_"]
    changes = sum(a != b for a, b in pairwise(kinds))
    is_random = {"a", "A", "0"} <= set(kinds) and changes >= min_change_share * len(kinds)
    return HIDDEN if is_random else match[0]


def _kind(character: str) -> str:
    if character.isdigit():
        return "0"
    return "A" if character.isupper() else "a" if character.islower() else "+"
