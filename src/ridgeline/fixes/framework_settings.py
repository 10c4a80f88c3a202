"""What a framework calls a change: the argument of its own settings that says the same."""

import re
from typing import Literal

from msgspec import Struct

from ridgeline.fixes.catalog import persistent_workers
from ridgeline.fixes.fix import EditByHand
from ridgeline.records.trial import Applied

Framework = Literal["hugging face", "lightning"]


class Setting(Struct, frozen=True, kw_only=True):
    name: str
    value: str
    """As Python writes it; {number}: as what was done says it, {mode} with quotes."""
    why: str

    @property
    def said(self) -> str:
        return f"{self.name}={self.value}"


_PRODUCTS = "products on tensor cores"
_FUSES = "fuses operators and leaves Python out"
_QUEUE = "a longer queue evens out slow batches"
_TRAINER = {
    "autocast": ("bf16", "True", _PRODUCTS),
    "autocast-fp16": ("fp16", "True", _PRODUCTS),
    "compile": ("torch_compile", "True", _FUSES),
    "compile-reduce-overhead": ("torch_compile_mode", "{mode}", "one launch for many kernels"),
    "compile-max-autotune": ("torch_compile_mode", "{mode}", "products chosen by timing"),
    "fused-optimizer": ("optim", '"adamw_torch_fused"', "one pass over parameters and moments"),
    "checkpointing": ("gradient_checkpointing", "True", "activations are computed again"),
    "loader-workers": (
        "dataloader_num_workers", "{num_workers}", "batches are made while the step runs",
    ),
    "pin-memory": ("dataloader_pin_memory", "True", "the GPU fetches batches by itself"),
    "persistent-workers": (
        "dataloader_persistent_workers", "True",
        persistent_workers.WHY,
    ),
    "prefetch": ("dataloader_prefetch_factor", "{prefetch_factor}", _QUEUE),
    "larger-batch": (
        "per_device_train_batch_size", "{batch_size}",
        "larger steps; the learning rate is as it was",
    ),
}  # fmt: skip
_LIGHTNING = {
    "autocast": ("precision", '"bf16-mixed"', _PRODUCTS),
    "autocast-fp16": ("precision", '"16-mixed"', _PRODUCTS),
}
_TABLES = {"hugging face": _TRAINER, "lightning": _LIGHTNING}
_OWN = ".gradient_checkpointing_enable()"


def setting(applied: Applied, framework: Framework) -> Setting | None:
    """None where it has no name for it. Raises NotWritten where it has one for another thing: an
    optimizer that it makes itself and fuses under no name of its own."""
    row = _TABLES[framework].get(applied.fix)
    if row is None or (applied.fix == "checkpointing" and not _whole(applied.what)):
        if framework == "hugging face" and applied.fix == "foreach-optimizer":
            raise _optimizer(applied.what)
        return None
    if applied.fix == "fused-optimizer" and set(applied.what.split("; ")) != {"AdamW(fused=True)"}:
        raise _optimizer(applied.what)
    name, value, why = row
    value = re.sub(r"\{(\w+)\}", lambda found: _told(applied.what, found[1]), value)
    return Setting(name=name, value=value, why=why) if value else None


def times(what: str) -> tuple[int, int]:
    """Of a larger batch, as it says it: how many times what it was, and that."""
    found = re.search(r"(\d+) × (\d+)", what)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _whole(what: str) -> bool:
    """The model itself, not a part of it."""
    return what.endswith(_OWN) and "." not in what.removesuffix(_OWN)


def _optimizer(what: str) -> EditByHand:
    kind, _, option = what.partition("; ")[0].rstrip(")").partition("(")
    name = option.partition("=")[0]
    return EditByHand(
        f"TrainingArguments(optim=…) has no name for {kind}({option}): give the Trainer "
        f'optimizer_cls_and_kwargs=(torch.optim.{kind}, {{…, "{name}": True}}), with the options '
        "it has now"
    )


def _told(what: str, name: str) -> str:
    found = re.search(rf'\b{name}=(\d+|"[\w-]+")', what)
    return found[1] if found else ""
