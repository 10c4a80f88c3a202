"""The server answers only the browser of the person who started it: nothing leaks to a foreign
page, to a rebound name, or to another user of the machine."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from ridgeline.records.runs import notes_of, write_notes
from ridgeline.viewer.server import REFUSAL, WRITE_HEADER
from tests.unit.viewer.served import Served, exchanged, made, made_running, serving

CANARY = "canary"
RUN = f"1115-010203-{CANARY}-run"
ROUTES = (
    *("/", "/?q=", "/?q=canary", "/?sort=name&order=up", "/?figure=loss", "/?token=", "/?token=x"),
    *("/index.html", "//", "/.", "/..", "/%2e%2e/", "/favicon.ico", "/robots.txt", "/api", "/runs"),
    *("/compare", f"/compare?a={RUN}&b={RUN}", "/compare?a=x", f"/compare?a={RUN}"),
    *("/assets/style.css", "/assets/viewer.css", "/assets/viewer.js", "/assets/../library.py"),
    *(f"/run/{RUN}{part}" for part in ("", "/", "/report", "/live", "/notes", "/delete", "/x")),
    *(f"/run/{RUN}/live?steps={n}&telemetry={n}" for n in (-1, 0, 5, "x", 10**30)),
    *(f"/run/{RUN}?token={t}" for t in ("", "x", "%00", "A" * 43, "A" * 9000)),
    *("/run/", "/run", "/run/latest", "/run/latest/report", "/run/1115", "/run/running"),
    *("/run/running/live", "/run/running/report", "/run/%2e%2e", "/run/..%2f..%2fetc%2fpasswd"),
    *("/delete", "/login", "/static/x", f"/{RUN}", f"/runs/{RUN}", "/run.json", "/summary.json"),
    *(f"/run/{RUN}/summary.json", f"/run/{RUN}/../{RUN}/report", "/%2f", "/run/%00", "/ws", "/#x"),
)  # fmt: skip
"""What a curious page could ask for."""


FOREIGN_NAMES = (
    "evil.test", "a.evil.test", "localhost.evil.test", "127.0.0.1.evil.test", "127.0.0.1.nip.io",
    "localtest.me", "www.localhost", "localhost.localdomain", "ip6-localhost", "local", "host",
    "xn--lcalhost-54a.test", "127.0.0.3", "127.255.255.254", "128.0.0.1", "0", "0.0.0.0", "1",
    "10.0.0.1", "192.168.0.1", "169.254.169.254", "172.17.0.1", "0x7f.0.0.1", "0x7f000001",
    "017700000001", "127.0.1", "127.000.000.001", "[::]", "[::ffff:127.0.0.1]", "[0:0:0:0:0:0:0:1]",
    "[fe80::1]", "127.0.0.1%00", "127.0.0.1%20", "127.0.0.1 ", "localhost\t", "user@localhost",
    "localhost@evil.test", "127.0.0.1#", "127.0.0.1/", "127.0.0.1?", "127.0.0.1;evil.test",
    "127.0.0.1,evil.test", "*", "null", "undefined",
)  # fmt: skip
"""Host names that are not the viewer's own, however much they look like it."""


def foreign(port: int) -> list[dict[str, str]]:
    """Return headers that a browser sends with the requests of other pages, or that a program
    makes up. Each of them is to be refused even with the right cookie."""
    own = f"127.0.0.1:{port}"
    hosts = (
        "evil.test", f"evil.test:{port}", "127.0.0.1", "localhost", f"127.0.0.1:{port + 1}",
        f"localhost:{port}0", f"[::1]:{port}", f"0.0.0.0:{port}", f"127.0.0.2:{port}",
        f"2130706433:{port}", f"127.1:{port}", f"localhost.:{port}", f"localhost.evil.test:{port}",
        f"127.0.0.1:{port}.evil.test", f"evil.test@127.0.0.1:{port}", f"{own}, evil.test", "-",
        *(f"{name}:{port}" for name in FOREIGN_NAMES),
    )  # fmt: skip
    origins = (
        "null", "http://evil.test", f"http://evil.test:{port}", f"https://{own}", "http://127.0.0.1",
        f"http://127.0.0.1:{port + 1}", f"http://localhost:{port}", f"http://{own}.evil.test",
        f"http://{own}/", "file://", "chrome-extension://abcdef", f"http://{own} http://evil.test",
        "*", f"http://[::1]:{port}", f"http://0.0.0.0:{port}", f"http://127.1:{port}",
        f"http://2130706433:{port}", f"http://localhost.:{port}", f"ws://{own}", f"ftp://{own}",
        f"http://evil.test@{own}", f"http://{own}@evil.test", f"http://{own}#", f"http://{own}?x",
        f"{own}", f"//{own}", "data:text/html,x", "about:blank", "moz-extension://abcdef", "-",
    )  # fmt: skip
    sites = ("cross-site", "same-site", "unknown")
    return [
        *({"Host": host} for host in hosts),
        *({"Origin": origin} for origin in origins),
        *({"Sec-Fetch-Site": site} for site in sites),
    ]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("access") / ".ridgeline" / "runs"
    write_notes(made(folder, RUN, program=f"{CANARY}.py"), [CANARY], CANARY)
    made_running(folder, "running")
    with serving(folder) as served:
        yield served


def test_the_requests_are_as_many_as_promised(served: Served) -> None:
    assert len(set(ROUTES)) >= 60
    hosts = [headers for headers in foreign(served.port) if "Host" in headers]
    origins = [headers for headers in foreign(served.port) if "Origin" in headers]
    assert len(hosts) >= 60
    assert len(origins) >= 30


def test_no_foreign_host_is_let_in_by_any_origin(served: Served) -> None:
    """All pairs on the route that shows most, and the viewer's own Host and Origin among them."""
    headers = foreign(served.port)
    hosts = [one["Host"] for one in headers if "Host" in one]
    origins = [served.origin, *(one["Origin"] for one in headers if "Origin" in one)]
    for host in hosts:
        for origin in origins:
            sent = {"Cookie": served.cookie, "Host": host, "Origin": origin}
            response = served.request("GET", "/", sent)
            assert (response.status, response.text) == (403, REFUSAL), sent


def test_the_owner_sees_the_canary(served: Served) -> None:
    """Without this the tests below could pass because nothing is ever shown."""
    seen = [route for route in ROUTES if CANARY in served.get(route).text]
    assert {"/", "/?q=canary", f"/run/{RUN}", f"/compare?a={RUN}&b={RUN}"} <= set(seen)
    assert served.get(f"/run/{RUN}/report").status == 200
    assert served.get("/run/running/live").json["stage"] == "running"


@pytest.mark.parametrize("with_cookie", [True, False])
def test_nothing_leaks_to_any_host_or_origin_on_any_route(
    served: Served, with_cookie: bool
) -> None:
    cookie = {"Cookie": served.cookie} if with_cookie else {}
    for route in ROUTES:
        for headers in foreign(served.port):
            response = served.request("GET", route, {**cookie, **headers})
            assert (response.status, response.text) == (403, REFUSAL), (route, headers)
            assert not {"set-cookie", "location"} & response.headers.keys()
            assert not any(name.startswith("access-control") for name in response.headers)


def cookies(served: Served) -> list[dict[str, str]]:
    """Return headers that are not our cookie, each of which is to be refused."""
    name, token = served.viewer.access.cookie, served.viewer.access.token
    return [
        {},
        {"Cookie": ""},
        *({"Cookie": f"{name}={value}"} for value in ("", "x", token[:-1], f"{token}x", "é")),
        {"Cookie": f"{name}={token[::-1]}"},
        {"Cookie": f"other={token}"},
        {"Cookie": f"{name}x={token}"},
        {"Cookie": f"{name}={served.viewer.access.write_token}"},
        {"Cookie": f"{name}=x; {name}={token}"},
        {"Authorization": f"Bearer {token}"},
        {"X-Token": token, WRITE_HEADER: token},
        {"Referer": f"{served.origin}/?token={token}"},
    ]


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "FOO"])
def test_without_the_secret_every_route_is_refused(served: Served, method: str) -> None:
    for route in ROUTES:
        for headers in cookies(served):
            response = served.request(method, route, headers)
            assert response.status == 403, (route, headers)
            assert response.text in (REFUSAL, "")
            assert "set-cookie" not in response.headers


def test_the_address_puts_the_secret_into_a_cookie_and_leaves_the_address(served: Served) -> None:
    token = served.viewer.access.token
    response = served.request("GET", f"/?token={token}")
    assert (response.status, response.headers["location"]) == (303, "/")
    cookie = response.headers["set-cookie"]
    parts = {part.strip() for part in cookie.split(";")}
    assert {served.cookie, "HttpOnly", "SameSite=Strict", "Path=/"} == parts
    assert served.request("GET", "/", {"Cookie": served.cookie}).status == 200
    led = served.request("GET", f"/run/{RUN}?token={token}")
    assert led.headers["location"] == f"/run/{RUN}"


@pytest.mark.parametrize("path", ["//evil.test/", "/\\evil.test", "/run/..", "/%2f%2fevil.test"])
def test_the_address_never_leads_elsewhere(served: Served, path: str) -> None:
    response = served.request("GET", f"{path}?token={served.viewer.access.token}")
    assert response.headers["location"] == "/"


def test_a_token_for_the_browser_opens_it_once(served: Served) -> None:
    address = served.viewer.address("/", single_use=True)
    path = address.removeprefix(served.origin)
    assert [served.request("GET", path).status for _ in range(3)] == [303, 403, 403]


def test_the_secrets_are_long_and_new_each_time(tmp_path: Path) -> None:
    secrets = set()
    for _ in range(3):
        with serving(tmp_path) as served:
            secrets |= {served.viewer.access.token, served.viewer.access.write_token}
    assert len(secrets) == 6
    assert all(len(secret) >= 43 for secret in secrets)  # 256 bits


def test_only_loopback_is_listened_on(served: Served) -> None:
    assert served.viewer.socket.getsockname()[0] == "127.0.0.1"
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.2", served.port), 1.0)


@pytest.mark.parametrize(
    "change",
    [
        {WRITE_HEADER: ""},
        {WRITE_HEADER: "x"},
        {"Origin": ""},
        {"Origin": "null"},
        {"Origin": "http://evil.test"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Cookie": ""},
        {"Host": "evil.test"},
    ],
)
def test_nothing_is_changed_without_each_part_of_a_writing_request(
    tmp_path: Path, change: dict[str, str]
) -> None:
    run = made(tmp_path, RUN)
    with serving(tmp_path) as served:
        assert served.post(f"/run/{RUN}/notes", {"tags": "x", "text": "x"}, **change).status == 403
        assert served.post("/delete", {"names": [RUN]}, **change).status == 403
    assert run.path.is_dir()
    assert notes_of(run).tags == ()


def test_the_session_token_does_not_stand_for_the_write_token(tmp_path: Path) -> None:
    made(tmp_path, RUN)
    with serving(tmp_path) as served:
        change = {WRITE_HEADER: served.viewer.access.token}
        assert served.post("/delete", {"names": [RUN]}, **change).status == 403


@pytest.mark.parametrize("path", ["/delete", f"/run/{RUN}/notes", f"/run/{RUN}/delete"])
def test_a_link_changes_nothing(tmp_path: Path, path: str) -> None:
    run = made(tmp_path, RUN)
    with serving(tmp_path) as served:
        for method in ("GET", "HEAD", "PUT", "DELETE", "PATCH"):
            response = served.request(method, path, served.writing_headers())
            assert response.status in (404, 405)
    assert run.path.is_dir()


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET /\r\n\r\n",
        b"\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1 more\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",
        b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 200 + b"\r\n",
        b"GET http://127.0.0.1/ HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    ],
)
def test_a_request_that_is_no_request_gets_no_data(served: Served, request_bytes: bytes) -> None:
    try:
        answer = exchanged(served.port, request_bytes)
    except ConnectionError:  # closed before all of the request was read
        return
    assert not answer or answer.endswith(REFUSAL.encode())
    assert CANARY.encode() not in answer


def test_a_request_for_a_foreign_address_is_refused(served: Served) -> None:
    headers = {"Cookie": served.cookie}
    assert served.request("GET", f"http://{served.host}/", headers).status == 403
    assert served.request("GET", "http://evil.test/", headers).status == 403


def test_every_page_has_strict_headers(served: Served) -> None:
    for route in ROUTES:
        headers = served.get(route).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe-eval" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cache-control"] == "no-store"
        if "unsafe-inline" in policy:  # a report: its own scripts run, without any origin
            assert "sandbox allow-scripts" in policy
            assert "allow-same-origin" not in policy
            assert "connect-src" not in policy  # so that 'none' holds


def test_no_request_is_printed(served: Served, capfd: pytest.CaptureFixture[str]) -> None:
    for route in ("/", f"/?token={served.viewer.access.token}", "/run/x", "/%00"):
        served.get(route)
    assert capfd.readouterr() == ("", "")
