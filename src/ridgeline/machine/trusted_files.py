"""Which files of a cache can be believed: those that only this user can have written.

Code is loaded only where nobody else could have put it (`exposed_to_others`). Answers that lie
beside a trace can have come with it, in an archive or a repository, and then belong to whoever
unpacked it: they carry a seal that only this user's key makes (`seal`).
"""

import functools
import hashlib
import os
import secrets
import stat
from pathlib import Path

from ridgeline.machine.cache import folder

KEY_BYTES = 32


def exposed_to_others(path: Path) -> str:
    """Return how another user could change what is at `path`, which exists; "" where none could.

    Root is trusted. So is a folder like /tmp that others write to, as long as it is sticky: what
    is not theirs they cannot replace there. Links count as well as what they lead to.
    """
    absolute = path.absolute()
    real = path.resolve(strict=True)
    for place in dict.fromkeys((absolute, *absolute.parents, real, *real.parents)):
        found = place.lstat()
        if found.st_uid not in (0, os.geteuid()):
            return f"{place} belongs to another user"
        if stat.S_ISLNK(found.st_mode) or (
            stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX
        ):
            continue
        by_group = found.st_mode & stat.S_IWGRP and not _is_own_group(found.st_gid)
        if by_group or found.st_mode & stat.S_IWOTH:
            return f"other users can write to {place} (mode {stat.S_IMODE(found.st_mode):04o})"
    return ""


def seal(message: bytes) -> str | None:
    """Return a code of the message that only this user can make; None where no key can be kept."""
    key = _key(folder() / "key")
    return None if key is None else hashlib.blake2b(message, key=key, digest_size=16).hexdigest()


def _is_own_group(group: int) -> bool:
    """Whether a group is this user's alone: many systems give each user one, and a umask of 002."""
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
    """Return the key kept at `path`, made there where there is none yet."""
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
