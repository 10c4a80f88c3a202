"""Lists what of a process a fix may change: torch's settings, and the functions that fixes and
seams replace."""

import importlib
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from msgspec import Struct

from ridgeline.fixes.program import OPTIMIZERS
from ridgeline.harness.trials.random_draws import RECURRENT

_OWNERS = (
    ("torch.nn", "Module"), ("torch.nn.functional", ""), ("torch", "Tensor"),
    ("torch.autograd", ""), ("torch.utils.data", "DataLoader"),
    ("torch.utils.data.dataloader", "_BaseDataLoaderIter"),
    ("torch.utils.data.dataloader", "_MultiProcessingDataLoaderIter"),
    ("torch.utils.data._utils.fetch", "_MapDatasetFetcher"),
    ("torch.utils.data._utils.fetch", "_IterableDatasetFetcher"),
    ("torch.optim.optimizer", "Optimizer"), ("torch.amp.grad_scaler", "GradScaler"),
    ("torch.autograd.profiler", "profile"), ("os", ""),
    *(("torch.optim", name) for name in OPTIMIZERS),
    *(("torch.nn", name) for name in RECURRENT),
)  # fmt: skip
_HOOKS = ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks")
_CONFIGS = (
    ("torch._dynamo.config", "compiled_autograd"), ("torch._dynamo.config", "recompile_limit"),
    ("torch._inductor.config", "fallback_random"),
)  # fmt: skip
CUDNN_FLAGS = ("benchmark", "deterministic", "allow_tf32", "enabled")


class Setting(Struct, frozen=True):
    """A setting of the process."""

    read: Callable[[], Any]
    write: Callable[[Any], Any]


def owners() -> Iterator[Any]:
    """Yield the classes and modules whose functions a fix or a seam may replace."""
    for module, name in _OWNERS:
        home = importlib.import_module(module)
        owner = getattr(home, name, None) if name else home
        if owner is not None:
            yield owner


def hook_tables() -> Iterator[dict[Any, Any]]:
    """Yield the tables of the hooks that torch calls around the step of every optimizer."""
    optimizer = importlib.import_module("torch.optim.optimizer")
    for name in _HOOKS:
        yield getattr(optimizer, name)


def settings(torch: Any) -> Iterator[Setting]:
    """Yield torch's settings. Reading one may raise: older and newer names for TF32 do not mix."""
    yield Setting(torch.get_num_threads, torch.set_num_threads)
    yield Setting(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision)
    for name in CUDNN_FLAGS:
        yield _attribute(torch.backends.cudnn, name)
    yield Setting(torch.get_default_dtype, torch.set_default_dtype)
    yield Setting(torch.is_grad_enabled, torch._C._set_grad_enabled)
    yield Setting(torch.is_anomaly_enabled, torch.set_anomaly_enabled)
    yield Setting(
        lambda: (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ),
        lambda was: torch.use_deterministic_algorithms(was[0], warn_only=was[1]),
    )
    for kind in ("cpu", *(["cuda"] if torch.cuda.is_available() else [])):
        for name in ("autocast_enabled", "autocast_dtype"):
            read = getattr(torch, f"{'is' if name == 'autocast_enabled' else 'get'}_{name}")
            yield Setting(partial(read, kind), partial(getattr(torch, f"set_{name}"), kind))
    yield Setting(torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled)
    for module, name in _CONFIGS:
        if module in sys.modules:
            yield _attribute(sys.modules[module], name)


def _attribute(owner: Any, name: str) -> Setting:
    return Setting(lambda: getattr(owner, name), lambda value: setattr(owner, name, value))
