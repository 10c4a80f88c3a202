"""Temporary folders and files that Python removes when a program ends, and does not where it is
ended at once: a dataset unpacked into one would lie there once for each trial."""

import contextlib
import gc
import sys
import tempfile
import warnings
import weakref
from typing import Any


def remove_own() -> None:
    """Those of this process that are still held, by a `with` or a name."""
    process = sys.modules.get("multiprocessing.process")
    if process is not None and process.parent_process() is not None:
        return  # a fork has the objects of its parent, whose folders are not its own
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that they are removed without a word of the program
        for one in (*_folders(), *_files()):
            with contextlib.suppress(Exception):
                one()


def _folders() -> list[Any]:
    """As finalizers."""
    registry: dict[Any, Any] = getattr(weakref.finalize, "_registry", {})
    cleanup = getattr(tempfile.TemporaryDirectory, "_cleanup", None)
    return [one for one, told in list(registry.items()) if told.func == cleanup]


def _files() -> list[Any]:
    kind = getattr(tempfile, "_TemporaryFileWrapper", None)
    return [one.close for one in gc.get_objects() if type(one) is kind]
