"""A server of made-up runs on loopback, and requests to it as bytes, so that nothing is tidied up
on the way."""

import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ridgeline.records.run import Capture, Environment, RunFile, Status, Step, Target, Telemetry
from ridgeline.records.run import Window as RunWindow
from ridgeline.records.run_directory import RunDirectory, started
from ridgeline.records.run_summary import RunSummary
from ridgeline.viewer.library import Library
from ridgeline.viewer.server import WRITE_HEADER, Viewer
from tests.unit.report import made_up_findings, made_up_run

TIMEOUT_S = 10.0
BEGAN = "2026-11-15T01:02:03+00:00"


class Response(Struct, frozen=True):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def exchanged(port: int, request: bytes) -> bytes:
    """Return all bytes that the server answers to a request, which is sent as it is."""
    with socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as connection:
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(1 << 16), b""))


def sent(port: int, request: bytes) -> Response:
    head, _, body = exchanged(port, request).partition(b"\r\n\r\n")
    status, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (x.partition(":") for x in lines)}
    return Response(int(status.split()[1]), headers, body)


class Served:
    """A running server, and requests to it as our own pages send them."""

    def __init__(self, viewer: Viewer) -> None:
        self.viewer = viewer
        self.port = viewer.server_port
        self.host = f"127.0.0.1:{self.port}"
        self.origin = f"http://{self.host}"
        self.cookie = f"{viewer.access.cookie}={viewer.access.token}"

    def request(
        self, method: str, path: str, headers: dict[str, str] | None = None, body: bytes = b""
    ) -> Response:
        """Send a request with these headers alone, and a Host if they have none."""
        headers = {"Host": self.host, **(headers or {})}
        lines = [f"{method} {path} HTTP/1.1", *(f"{k}: {v}" for k, v in headers.items() if v)]
        return sent(self.port, "\r\n".join([*lines, "", ""]).encode("latin-1") + body)

    def get(self, path: str, **headers: str) -> Response:
        return self.request("GET", path, {"Cookie": self.cookie, **headers})

    def writing_headers(self) -> dict[str, str]:
        return {
            "Cookie": self.cookie, "Origin": self.origin, "Sec-Fetch-Site": "same-origin",
            "Content-Type": "application/json", WRITE_HEADER: self.viewer.access.write_token,
        }  # fmt: skip

    def post(self, path: str, data: Any, **headers: str) -> Response:
        body = data if isinstance(data, bytes) else json.dumps(data).encode()
        length = {"Content-Length": str(len(body))}
        return self.request("POST", path, {**self.writing_headers(), **length, **headers}, body)


@contextmanager
def serving(folder: Path) -> Iterator[Served]:
    viewer = Viewer(Library(folder))
    thread = threading.Thread(target=viewer.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield Served(viewer)
    finally:
        viewer.shutdown()
        thread.join(TIMEOUT_S)
        viewer.server_close()


def made(
    folder: Path,
    name: str,
    *,
    program: str = "train.py",
    began_at: str = BEGAN,
    step_ms: float | None = 152.1,
    summary: RunSummary | None = None,
) -> RunDirectory:
    """Make a run that is over, with findings. Without `step_ms` it was never concluded."""
    run = RunDirectory(folder / name)
    run.path.mkdir(parents=True)
    write_run_file(run, program=program, began_at=began_at)
    if step_ms is not None:
        summary = summary or made_up_run.summary()
        summary = replace(
            summary, name="any", step=replace(summary.step, median_ms=step_ms),
            findings=made_up_findings.findings(),
        )  # fmt: skip
        run.write_whole("summary.json", msgspec.json.encode(summary))
    return run


def write_run_file(
    run: RunDirectory,
    *,
    program: str = "train.py",
    began_at: str = BEGAN,
    status: Status = "finished",
    **fields: Any,
) -> None:
    file = RunFile(
        name=os.fsencode(run.name).decode("latin-1"),
        target=Target(kind="script", name=program), status=status, exit_code=0,
        began_at=began_at, began_ns=1, environment=Environment(host=os.uname().nodename), **fields,
    )  # fmt: skip
    run.write_whole("run.json", msgspec.json.encode(file))


def made_running(folder: Path, name: str) -> RunDirectory:
    """Make a run whose program is this test's own process."""
    run = RunDirectory(folder / name)
    run.path.mkdir(parents=True)
    write_run_file(run, status="running", pid=os.getpid(), pid_started=started(os.getpid()))
    return run


def write_capture(run: RunDirectory, window: str, ended: Status = "running") -> None:
    capture = Capture(
        rank=0, world=1, pid=os.getpid(), ended=ended,
        windows=(RunWindow(kind=window, first_step=0),),  # type: ignore[arg-type]
    )  # fmt: skip
    run.write_whole("capture-rank0.json", msgspec.json.encode(capture))


def add_steps(run: RunDirectory, first: int, count: int, **fields: Any) -> None:
    fields = {"dur_ns": 10_000_000, "host": {"forward": 4_000_000, "input": 6_000_000}, **fields}
    steps = (Step(index=i, start_ns=i * 10_000_000, **fields) for i in range(first, first + count))
    run.append("steps.jsonl", b"".join(msgspec.json.encode(step) + b"\n" for step in steps))


def add_telemetry(run: RunDirectory, *samples: Telemetry) -> None:
    run.append("telemetry.jsonl", b"".join(msgspec.json.encode(x) + b"\n" for x in samples))
