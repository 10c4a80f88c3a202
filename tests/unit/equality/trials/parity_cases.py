"""Changes to the made-up program: correct ones, by what they may alter, and those that do less."""

from typing import Any

from made_up_trials import BATCH

Changes = dict[str, Any]

NOTHING: dict[str, Changes] = {"run again": {}, "foreach optimizer": {"foreach": True}}
FLOAT32: dict[str, Changes] = {
    "fused optimizer": {"fused": True},
    "float64, then cast": {"double": True},
    "reductions in chunks": {"chunked": True},
    "another memory order": {"permuted": True},
    "all of these": {"fused": True, "chunked": True, "permuted": True},
}
LOWER: dict[str, tuple[str, Changes]] = {
    "TF32": ("tf32", {"tf32": True}),
    "float16 autocast": ("float16", {"autocast": "float16"}),
    "bfloat16 autocast": ("bfloat16", {"autocast": "bfloat16"}),
    "bfloat16 autocast, fused": ("bfloat16", {"autocast": "bfloat16", "fused": True}),
}
CHEATS: dict[str, Changes] = {
    "optimizer steps skipped": {"skip": (2, 5, 6)},
    "one optimizer step skipped": {"skip": (7,)},
    "every second sample dropped": {"keep_rows": 2},
    "smaller batch": {"batch": BATCH // 2},
    "other data": {"shuffled": True},
    "layer frozen": {"frozen": True},
    "layer slowed to nothing": {"slowed": True},
    "accumulation halved": {"micro": 1},
    "fewer backwards": {"backwards": 1},
    "loss scaled by 0.9": {"loss_scale": 0.9},
    "dropout left out": {"dropout": 0.0},
    "weight decay left out": {"weight_decay": 0.0},
    "learning rate 1 % off": {"rate": 1.01},
    "clipping left out": {"clip": 0.0},
    "batch norm counted twice": {"norm_twice": True},
    "momentum left out at first": {"momentum_from": 3},
    "parameters in bfloat16": {"low_bits": True},
    "parameter group forgotten": {"forgotten_group": True},
}
"""Cheats of an unchanged baseline; replacing NaN with zero needs a baseline that has a NaN."""
