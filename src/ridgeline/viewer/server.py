"""The server of `ridgeline view`. It answers only the browser of the person who started it.

Loopback alone is no protection: every page that the browser shows, and every other user of the
machine, can send requests to it. So each request passes `Access.is_allowed` before its path is even
read: the right Host (else a foreign page could rebind its name to 127.0.0.1), no foreign origin,
and the secret from the printed address. What changes a run also needs a second secret, which only
our own pages hold, in a header that no form of a foreign page can send.
"""

import hmac
import json
import re
import secrets
import socketserver
import sys
import threading
from collections.abc import Callable
from functools import cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qs, urlsplit

from msgspec import Struct

from ridgeline.errors import RidgelineError, UsageError
from ridgeline.records.run_directory import RunDirectory
from ridgeline.records.runs import remove, write_notes
from ridgeline.report.plain import printable
from ridgeline.report.renderers import html
from ridgeline.viewer.library import Library, stage_of
from ridgeline.viewer.live import Offsets, look
from ridgeline.viewer.pages import Pages, live_data, run_link

HOST = "127.0.0.1"
HOST_NAMES = (HOST, "localhost")
SECRET_BYTES = 32
WRITE_HEADER = "X-Ridgeline-Token"
REQUEST_TIMEOUT_S = 10.0
"""A connection that sends nothing for this long is closed, so that it does not keep a thread."""
MAX_CONNECTIONS = 64
"""Connections answered at once. A browser opens six."""
MAX_BODY_BYTES = 64 << 10
"""Notes have at most 4,000 characters."""
MAX_QUERY_FIELDS = 32
REFUSAL = (
    "403: this server answers only the browser that opened it.\n"
    "Open the address that `ridgeline view` printed, in a new tab.\n"
)
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; frame-src 'self'; frame-ancestors 'none'; "
    "base-uri 'none'; require-trusted-types-for 'script'"
)
REPORT_POLICY = (
    "sandbox allow-scripts allow-downloads; default-src 'none'; script-src 'unsafe-inline'; "
    "style-src 'unsafe-inline'; img-src data: blob:; font-src data:; frame-ancestors 'self'; "
    "base-uri 'none'; form-action 'none'"
)
"""A report is a page of its own with its script inside, and it may have been written by anyone who
can write to the run's directory. In a sandbox it has no origin: it cannot read our pages, use our
cookie, or reach any network."""
ASSETS = {"style.css": "text/css", "viewer.css": "text/css", "viewer.js": "text/javascript"}
_RUN_PATH = re.compile(r"/run/([^/]+)(/report|/live|/notes)?")


class Access:
    """Decides which requests are answered."""

    def __init__(self, port: int) -> None:
        self.token = secrets.token_urlsafe(SECRET_BYTES)
        """Stands in the printed address, and then in the cookie."""
        self.write_token = secrets.token_urlsafe(SECRET_BYTES)
        """Stands in our own pages. Requests that change something carry it in `WRITE_HEADER`."""
        self._single_use = ""
        self._lock = threading.Lock()
        self.hosts = tuple(f"{name}:{port}" for name in HOST_NAMES)
        self.cookie = f"ridgeline-view-{port}"
        """Cookies do not know ports, so two servers need two names."""

    def single_use_token(self) -> str:
        """Return a token that opens one browser once. It is for the command line of the browser,
        which other users of the machine can read."""
        with self._lock:
            self._single_use = secrets.token_urlsafe(SECRET_BYTES)
            return self._single_use

    def is_ours(self, headers: Any) -> bool:
        """Return whether a request was sent to us by name, and not by a foreign page."""
        hosts = headers.get_all("Host") or []
        if len(hosts) != 1 or hosts[0].lower() not in self.hosts:
            return False
        origins = headers.get_all("Origin") or []
        if origins and origins != [f"http://{hosts[0].lower()}"]:
            return False
        sites = headers.get_all("Sec-Fetch-Site") or []
        return all(site in ("same-origin", "none") for site in sites)

    def has_cookie(self, headers: Any) -> bool:
        """Return whether a request carries our cookie."""
        pairs = ";".join(headers.get_all("Cookie") or []).split(";")
        values = [value.strip() for name, _, value in (pair.partition("=") for pair in pairs)
                  if name.strip() == self.cookie]  # fmt: skip
        return len(values) == 1 and _are_equal(values[0], self.token)

    def opens(self, token: str) -> bool:
        """Return whether a token in an address is right. A single-use token is used up by this."""
        with self._lock:
            if self._single_use and _are_equal(token, self._single_use):
                self._single_use = ""
                return True
        return _are_equal(token, self.token)

    def may_write(self, headers: Any) -> bool:
        """Return whether a request, which has our cookie, may change something: it names its
        origin, and carries the secret of our pages."""
        tokens = headers.get_all(WRITE_HEADER) or []
        is_named = bool(headers.get_all("Origin"))
        return is_named and len(tokens) == 1 and _are_equal(tokens[0], self.write_token)


def _are_equal(given: str, secret: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), secret.encode())


class Answer(Struct, frozen=True, kw_only=True):
    body: bytes = b""
    kind: str = "text/html"
    status: HTTPStatus = HTTPStatus.OK
    policy: str = PAGE_POLICY
    headers: dict[str, str] = {}


def _text(status: HTTPStatus, text: str) -> Answer:
    return Answer(body=text.encode(), kind="text/plain", status=status)


def _json(data: Any, status: HTTPStatus = HTTPStatus.OK) -> Answer:
    return Answer(body=json.dumps(data).encode(), kind="application/json", status=status)


class Viewer(ThreadingHTTPServer):
    """The server. `serve_forever` answers until `shutdown` or Ctrl-C."""

    daemon_threads = True
    request_queue_size = MAX_CONNECTIONS

    def __init__(self, library: Library, port: int = 0) -> None:
        super().__init__((HOST, port), _Handler)
        self.library = library
        self.access = Access(self.server_port)
        self.pages = Pages(library, self.access.write_token)
        self._room = threading.BoundedSemaphore(MAX_CONNECTIONS)

    def server_bind(self) -> None:
        # HTTPServer looks up the name of the address, which may ask the network.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = HOST, self.socket.getsockname()[1]

    def address(self, path: str = "/", *, single_use: bool = False) -> str:
        """Return the address that opens `path` in a browser, with its token."""
        token = self.access.single_use_token() if single_use else self.access.token
        return f"http://{HOST}:{self.server_port}{path}?token={token}"

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._room.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that closes a connection early is no error of ours, and a fault in a page has
        been named already. The request itself is never printed: it holds secrets."""


class _Handler(BaseHTTPRequestHandler):
    server: Viewer
    timeout = REQUEST_TIMEOUT_S
    server_version, sys_version = "ridgeline", ""

    def __getattr__(self, name: str) -> Callable[[], None]:
        if name.startswith("do_"):  # http.server looks up a method for each verb
            return self._respond
        raise AttributeError(name)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing: addresses hold secrets."""

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer a request that http.server itself cannot read, without repeating any of it."""
        self.close_connection = True
        self._send(_text(HTTPStatus.FORBIDDEN, REFUSAL))

    def _respond(self) -> None:
        try:
            answer = self._answer()
        except UsageError as error:
            answer = self._problem(HTTPStatus.BAD_REQUEST, error)
        except RidgelineError as error:
            answer = self._problem(HTTPStatus.CONFLICT, error)
        except (ConnectionError, TimeoutError):
            return
        except Exception as error:  # the fault is ours: the server goes on
            print(f"ridgeline: a page failed: {type(error).__name__}", file=sys.stderr)
            answer = _text(HTTPStatus.INTERNAL_SERVER_ERROR, "500: this is a fault in ridgeline\n")
        self._send(answer)

    def _problem(self, status: HTTPStatus, error: RidgelineError) -> Answer:
        sentence = printable(f"{error.message}; {error.hint}" if error.hint else error.message)
        if self.command == "POST" or self.path.split("?")[0].endswith("/live"):
            return _json({"problem": sentence}, status)
        return Answer(body=self.server.pages.problem(sentence), status=status)

    def _answer(self) -> Answer:
        access = self.server.access
        refused = _text(HTTPStatus.FORBIDDEN, REFUSAL)
        if not access.is_ours(self.headers) or not self.path.startswith("/"):
            return refused
        try:
            address = urlsplit(self.path)
            fields = parse_qs(address.query, max_num_fields=MAX_QUERY_FIELDS)
        except ValueError:
            return refused
        query = {name: values[-1] for name, values in fields.items()}
        if self.command in ("GET", "HEAD") and "token" in query:
            return self._enter(address.path, query["token"])
        if not access.has_cookie(self.headers):
            return refused
        if self.command in ("GET", "HEAD"):
            return self._page(address.path, query)
        if self.command != "POST":
            return _text(HTTPStatus.METHOD_NOT_ALLOWED, "405: only GET, HEAD and POST\n")
        return self._change(address.path) if access.may_write(self.headers) else refused

    def _enter(self, path: str, token: str) -> Answer:
        """Put the secret from the address into a cookie, and lead to the address without it."""
        access = self.server.access
        if not access.opens(token):
            return _text(HTTPStatus.FORBIDDEN, REFUSAL)
        cookie = f"{access.cookie}={access.token}; Path=/; HttpOnly; SameSite=Strict"
        run = self._run_of(path)
        target = run_link(run.name) if run is not None else "/"
        return Answer(
            status=HTTPStatus.SEE_OTHER, headers={"Location": target, "Set-Cookie": cookie}
        )

    def _page(self, path: str, query: dict[str, str]) -> Answer:
        pages = self.server.pages
        if path == "/":
            return Answer(body=pages.runs(query))
        if path == "/compare":
            return Answer(body=pages.comparison(query))
        name = path.removeprefix("/assets/")
        if path.startswith("/assets/") and name in ASSETS:
            return Answer(body=_asset(name), kind=ASSETS[name])
        run, part = self._run_of(path), self._part_of(path)
        if run is None or part == "notes":
            return self._nothing()
        if part == "report":
            return Answer(body=pages.report(run), policy=REPORT_POLICY)
        if part == "live":
            offsets = Offsets(_offset(query, "steps"), _offset(query, "telemetry"))
            return _json(live_data(look(run, offsets)))
        return Answer(body=pages.run(run))

    def _change(self, path: str) -> Answer:
        data = self._body()
        if path == "/delete":
            names = data.get("names")
            if not isinstance(names, list) or not names:
                raise UsageError("there is no run to delete")
            runs = [self.server.library.run(str(name)) for name in names]
            return _json(self._delete([run for run in runs if run is not None]))
        run = self._run_of(path)
        if run is None or self._part_of(path) != "notes":
            return self._nothing()
        tags, text = data.get("tags"), data.get("text")
        if not isinstance(tags, str) or not isinstance(text, str):
            raise UsageError("notes are sent as tags and text")
        notes = write_notes(run, tags.split(","), text)
        return _json({"tags": ", ".join(notes.tags), "text": notes.text})

    def _delete(self, runs: list[RunDirectory]) -> dict[str, Any]:
        """Delete runs that are over, and say of each other run why it was left."""
        deleted, left = [], []
        for run in runs:
            try:
                if stage_of(run) != "over":
                    raise RidgelineError("it is still running")
                remove(run)
                deleted.append(run.name)
            except RidgelineError as error:
                left.append(printable(f"{run.name} was not deleted: {error.message}"))
        return {"deleted": len(deleted), "problem": "; ".join(left)}

    def _body(self) -> dict[str, Any]:
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit()) or int(length) > MAX_BODY_BYTES:
            raise UsageError(f"a request has a body of at most {MAX_BODY_BYTES >> 10} KiB")
        if self.headers.get_content_type() != "application/json":
            raise UsageError("a request has a body of JSON")
        try:
            data = json.loads(self.rfile.read(int(length)))
        except (ValueError, RecursionError) as error:
            raise UsageError("the body of the request is no JSON") from error
        if not isinstance(data, dict):
            raise UsageError("the body of the request is no JSON object")
        return data

    def _run_of(self, path: str) -> RunDirectory | None:
        """Return the run that a path names; None if it names none."""
        match = _RUN_PATH.fullmatch(path)
        return self.server.library.run(match[1]) if match is not None else None

    def _part_of(self, path: str) -> str:
        match = _RUN_PATH.fullmatch(path)
        return (match[2] or "").lstrip("/") if match is not None else ""

    def _nothing(self) -> Answer:
        return Answer(
            body=self.server.pages.problem("There is no such page here."),
            status=HTTPStatus.NOT_FOUND,
        )

    def _send(self, answer: Answer) -> None:
        self.send_response(answer.status)
        headers = {
            "Content-Type": f"{answer.kind}; charset=utf-8",
            "Content-Length": str(len(answer.body)),
            "Content-Security-Policy": answer.policy,
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Opener-Policy": "same-origin",
            "Cross-Origin-Resource-Policy": "same-origin",
            **answer.headers,
        }
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)


@cache
def _asset(name: str) -> bytes:
    """Return a file of our pages. The style of reports is theirs too."""
    if name == "style.css":
        return html.asset(name).encode()
    return files("ridgeline.viewer").joinpath("assets", name).read_bytes()


def _offset(query: dict[str, str], name: str) -> int:
    text = query.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else -1
