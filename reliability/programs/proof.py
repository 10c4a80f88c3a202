"""Prints what a training left: each loss to the bit, the state's hash, every random stream's."""

import hashlib
import random

import numpy
import torch

random.seed(0)  # at import, before the program does anything: every stream is known
numpy.random.seed(0)


def proof(model=None, losses=(), *more):
    for loss in losses:
        print(float(loss).hex())
    if model is not None:
        state = model.state_dict() if hasattr(model, "state_dict") else model
        print("state", digest(state))
    for one in more:
        print("more", digest(one))
    streams = [torch.get_rng_state().numpy().tobytes(), repr(random.getstate()).encode()]
    streams.append(repr(numpy.random.get_state(legacy=False)).encode())
    for stream in streams:
        print("random", hashlib.sha256(stream).hexdigest()[:16])


def digest(value) -> str:
    found = hashlib.sha256()
    feed(found, value)
    return found.hexdigest()[:24]


def feed(found, value) -> None:
    if isinstance(value, torch.Tensor):
        tensor = value.detach()
        if tensor.layout != torch.strided:
            tensor = tensor.to_dense()
        found.update(str((tensor.dtype, tuple(tensor.shape))).encode())
        flat = tensor.contiguous().reshape(-1)
        found.update(flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"")
    elif isinstance(value, dict):
        for key, one in value.items():
            found.update(str(key).encode())
            feed(found, one)
    elif isinstance(value, (list, tuple)):
        for one in value:
            feed(found, one)
    else:
        found.update(repr(value).encode())
