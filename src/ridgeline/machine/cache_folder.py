"""The cache folder, and which cached files can be trusted: those that only this user can have
written.

Compiled code is loaded only if no other user could have changed it (`exposed_to_others`). A cached
analysis beside a trace may have come with the trace, in an archive or a repository, and then
belongs to the user who unpacked it. So a cached analysis carries a seal that only this user's key
can make (`seal`).
"""

import functools
import hashlib
import os
import secrets
import stat
from pathlib import Path

NOWHERE = Path(os.devnull) / "ridgeline"
"""A path that cannot be read or written: each attempt raises an ordinary OSError."""


def folder() -> Path:
    """Return the cache folder; `NOWHERE` for a user who has no home (`docker run --user 12345`)."""
    if chosen := os.environ.get("RIDGELINE_CACHE"):
        return Path(chosen)
    if cache_home := os.environ.get("XDG_CACHE_HOME"):
        return Path(cache_home) / "ridgeline"
    try:
        return Path("~/.cache/ridgeline").expanduser()
    except RuntimeError:
        return NOWHERE


KEY_BYTES = 32


def exposed_to_others(path: Path) -> str:
    """Return how another user could change the file at `path`, which must exist; "" if none could.

    Root is trusted. So is a folder like /tmp that others write to, as long as it is sticky: others
    cannot replace files there that are not theirs. Both links and their targets are checked.
    """
    absolute = path.absolute()
    real = path.resolve(strict=True)
    for place in dict.fromkeys((absolute, *absolute.parents, real, *real.parents)):
        status = place.lstat()
        if status.st_uid not in (0, os.geteuid()):
            return f"{place} belongs to another user"
        if stat.S_ISLNK(status.st_mode) or (
            stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
        ):
            continue
        by_group = status.st_mode & stat.S_IWGRP and not _is_own_group(status.st_gid)
        if by_group or status.st_mode & stat.S_IWOTH:
            return f"other users can write to {place} (mode {stat.S_IMODE(status.st_mode):04o})"
    return ""


def seal(message: bytes) -> str | None:
    """Return a code for the message that only this user can make; None if no key can be stored."""
    key = _key(folder() / "key")
    return None if key is None else hashlib.blake2b(message, key=key, digest_size=16).hexdigest()


def _is_own_group(group: int) -> bool:
    """Return whether a group has this user as its only member. Many systems give each user such a
    group, and a umask of 002, so that every file can be written by that group."""
    try:
        import grp
        import pwd

        user, members = pwd.getpwuid(os.geteuid()), grp.getgrgid(group)
    except (ImportError, KeyError):
        return False
    return (
        group == user.pw_gid
        and members.gr_name == user.pw_name
        and set(members.gr_mem) <= {user.pw_name}
    )


@functools.cache
def _key(path: Path) -> bytes | None:
    """Return the key stored at `path`, and make it first if there is none. Return None if the key
    cannot be kept secret or stored."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            made = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            pass
        else:
            with os.fdopen(made, "wb") as file:
                file.write(secrets.token_bytes(KEY_BYTES))
        key = path.read_bytes()
        readable = path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH)
        return (
            key if len(key) == KEY_BYTES and not readable and not exposed_to_others(path) else None
        )
    except OSError:
        return None
