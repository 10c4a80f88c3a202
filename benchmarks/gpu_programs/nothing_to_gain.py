"""Twelve training loops in which nothing can be gained: `python nothing_to_gain.py sort`.

Nearly all of a step is one thing that no fix can make faster: a single double-precision kernel of
a library, a computation outside torch, or a wait. A tiny regression is trained on what it gives.
Whatever an optimizer keeps here, it kept by mistake.
"""

import argparse
import time
import zlib
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

ROWS, COLUMNS = 32, 16
"""Shape of the features that the regression is trained on."""


def normal(*shape: int, device: str) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, device=device)


def corner(values: Tensor) -> Tensor:
    """A few of the values, as features."""
    return values.flatten()[: ROWS * COLUMNS].view(ROWS, COLUMNS)


def matmul(device: str) -> Callable[[], Tensor]:
    size = 896 if device == "cpu" else 10240
    left, right = normal(size, size, device=device), normal(size, size, device=device)
    return lambda: corner(left @ right)


def batched_matmul(device: str) -> Callable[[], Tensor]:
    size, batch = (256, 32) if device == "cpu" else (1024, 1024)
    left, right = normal(batch, size, size, device=device), normal(batch, size, size, device=device)
    return lambda: corner(torch.bmm(left, right)[0])


def positive(size: int, device: str) -> Tensor:
    """A positive definite matrix."""
    matrix = normal(size, size, device=device)
    return matrix @ matrix.T / size + torch.eye(size, dtype=torch.float64, device=device)


def cholesky(device: str) -> Callable[[], Tensor]:
    matrix = positive(1200 if device == "cpu" else 14336, device)
    return lambda: corner(torch.linalg.cholesky(matrix))


def eigenvalues(device: str) -> Callable[[], Tensor]:
    matrix = positive(512 if device == "cpu" else 1536, device)
    return lambda: corner(torch.linalg.eigvalsh(matrix))


def qr(device: str) -> Callable[[], Tensor]:
    matrix = normal(*((1536, 256) if device == "cpu" else (16384, 2048)), device=device)
    return lambda: corner(torch.linalg.qr(matrix).R)


def fft(device: str) -> Callable[[], Tensor]:
    shape = (4, 512, 512) if device == "cpu" else (256, 1024, 1024)
    values = normal(*shape, device=device).to(torch.complex128)
    return lambda: corner(torch.fft.fft2(values)[0].real)


def sort(device: str) -> Callable[[], Tensor]:
    values = normal(300_000 if device == "cpu" else 120_000_000, device=device)
    return lambda: corner(torch.sort(values).values)


def sparse(device: str) -> Callable[[], Tensor]:
    size, entries, width = (20_000, 400_000, 64) if device == "cpu" else (2**20, 2**25, 256)
    places = torch.randint(0, size, (2, entries), device=device)
    values = normal(entries, device=device)
    matrix = torch.sparse_coo_tensor(places, values, (size, size)).coalesce().to_sparse_csr()
    dense = normal(size, width, device=device)
    return lambda: corner(matrix @ dense)


def numpy_environment(device: str) -> Callable[[], Tensor]:
    values = np.random.default_rng(0).standard_normal(1_200_000)

    def simulate() -> Tensor:
        state = np.sort(values)[: ROWS * COLUMNS]
        return torch.from_numpy(state).view(ROWS, COLUMNS).to(device)

    return simulate


def decompression(device: str) -> Callable[[], Tensor]:
    values = np.random.default_rng(0).integers(0, 16, 6_000_000, dtype=np.uint8)
    packed = zlib.compress(values.tobytes(), 1)

    def unpack() -> Tensor:
        values = np.frombuffer(zlib.decompress(packed), dtype=np.uint8)[: ROWS * COLUMNS]
        return torch.from_numpy(values.astype(np.float64)).view(ROWS, COLUMNS).to(device)

    return unpack


def python_simulation(device: str) -> Callable[[], Tensor]:
    def simulate() -> Tensor:
        state, states = 12345, []
        for _ in range(200_000):
            state = (1103515245 * state + 12345) % 2147483648
            states.append(state)
        values = torch.tensor(states[: ROWS * COLUMNS], dtype=torch.float64) / 2147483648
        return values.view(ROWS, COLUMNS).to(device)

    return simulate


def service(device: str) -> Callable[[], Tensor]:
    answer = normal(ROWS, COLUMNS, device=device)

    def ask() -> Tensor:
        time.sleep(0.05)
        return answer

    return ask


PROGRAMS: dict[str, Callable[[str], Callable[[], Tensor]]] = {
    "matmul": matmul,
    "batched-matmul": batched_matmul,
    "cholesky": cholesky,
    "eigenvalues": eigenvalues,
    "qr": qr,
    "fft": fft,
    "sort": sort,
    "sparse": sparse,
    "numpy-environment": numpy_environment,
    "decompression": decompression,
    "python-simulation": python_simulation,
    "service": service,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", choices=PROGRAMS)
    parser.add_argument("--steps", type=int, default=1_000_000)
    args = parser.parse_args()
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    features_of = PROGRAMS[args.program](device)
    model = torch.nn.Linear(COLUMNS, 1, dtype=torch.float64, device=device)
    target = torch.ones(ROWS, 1, dtype=torch.float64, device=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    for step in range(args.steps):
        with torch.no_grad():
            features = features_of()
        loss = torch.nn.functional.mse_loss(model(features), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
