"""The mask trap: Hugging Face models leave an attention mask of ones out, but only where they can
look into it. Without data they cannot, and build a mask that a real run never has (or fail)."""

from typing import Any

import torch

NOTE = "an attention mask of ones is left out, as the model itself does on a real run"


def without_full_mask(model: torch.nn.Module, kwargs: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """The arguments without a padding mask that masks nothing (or carries no data), and a note."""
    mask = kwargs.get("attention_mask")
    if not isinstance(mask, torch.Tensor) or mask.dim() != 2 or not _is_hugging_face(model):
        return kwargs, ""
    if not mask.is_meta and not bool(mask.all()):
        return kwargs, ""
    return {name: value for name, value in kwargs.items() if name != "attention_mask"}, NOTE


def _is_hugging_face(model: torch.nn.Module) -> bool:
    return any(kind.__module__.startswith("transformers.") for kind in type(model).__mro__)
