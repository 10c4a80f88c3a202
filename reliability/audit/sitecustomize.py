"""Writes down each attempt to reach a network, from any Python that finds this on PYTHONPATH."""

import os
import sys

_WATCHED = ("socket.connect", "socket.sendto", "socket.sendmsg", "socket.getaddrinfo",
            "socket.gethostbyname", "socket.gethostbyaddr", "socket.bind", "urllib.Request",
            "http.client.connect", "ftplib.connect", "smtplib.connect")  # fmt: skip
_log = os.environ.get("AUDIT_LOG", "")


def _heard(event: str, args: object) -> None:
    if event in _WATCHED:
        file = os.open(_log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(file, f"{os.getpid()} {event} {args!r}\n".encode())
        os.close(file)


if _log:
    sys.addaudithook(_heard)
