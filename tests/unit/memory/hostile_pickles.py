"""Hostile pickles, written opcode by opcode: everything that can call or import, with targets of
published attacks; and small files that stand for enormous objects.

Run as a program, it loads the pickles named on its standard input under an audit hook and prints
what was refused, and every event that the hook saw.
"""

import base64
import gzip
import io
import json
import pickle
import struct
import sys
from collections.abc import Iterator
from typing import Any

TARGETS: dict[str, tuple[str, ...]] = {
    "os": ("system", "popen", "execv", "spawnl", "remove", "fork", "kill", "putenv", "startfile"),
    "posix": ("system", "execve", "posix_spawn"),
    "nt": ("system",),
    "subprocess": ("Popen", "call", "run", "check_output", "check_call", "getoutput"),
    "builtins": ("eval", "exec", "__import__", "getattr", "setattr", "compile", "open", "print",
                 "breakpoint", "input", "map", "vars", "globals", "object", "type", "dict"),
    "__builtin__": ("eval", "apply", "file"),
    "runpy": ("run_path", "run_module", "_run_code"),
    "ctypes": ("CDLL", "PyDLL", "string_at"),
    "pip": ("main",),
    "pip._internal": ("main",),
    "codecs": ("decode", "encode", "open"),
    "operator": ("attrgetter", "methodcaller", "itemgetter"),
    "functools": ("partial", "reduce"),
    "torch": ("load", "device"),
    "torch.hub": ("load",),
    "torch.storage": ("_load_from_bytes",),
    "torch._utils": ("_rebuild_tensor_v2", "_rebuild_parameter"),
    "torch.serialization": ("load",),
    "torch.jit": ("load",),
    "torch.utils._config_module": ("load_config",),
    "torch.fx.experimental.symbolic_shapes.ShapeEnv": ("evaluate_guards_expression",),
    "numpy": ("load", "fromfile"),
    "numpy.testing._private.utils": ("runstring",),
    "numpy.f2py.crackfortran": ("getlincoef",),
    "pickle": ("loads", "load", "Unpickler"),
    "_pickle": ("loads",),
    "marshal": ("loads",),
    "types": ("CodeType", "FunctionType"),
    "importlib": ("import_module", "reload"),
    "pty": ("spawn",),
    "webbrowser": ("open",),
    "socket": ("create_connection", "socket"),
    "urllib.request": ("urlopen", "urlretrieve"),
    "http.client": ("HTTPSConnection",),
    "requests": ("get",),
    "shutil": ("rmtree", "copyfile"),
    "asyncio": ("create_subprocess_shell",),
    "timeit": ("timeit",),
    "cProfile": ("run", "runctx"),
    "profile": ("run",),
    "pdb": ("run",),
    "bdb": ("Bdb",),
    "code": ("InteractiveInterpreter",),
    "doctest": ("debug_script",),
    "trace": ("Trace",),
    "venv": ("create",),
    "ensurepip": ("bootstrap",),
    "multiprocessing": ("Process",),
    "logging.config": ("dictConfig",),
    "copyreg": ("_reconstructor", "add_extension"),
    "collections": ("OrderedDict", "defaultdict", "UserDict"),
    "zipimport": ("zipimporter",),
    "tempfile": ("mkstemp",),
    "linecache": ("getlines",),
    "uuid": ("_get_command_stdout",),
    "_aix_support": ("_read_cmd_output",),
    "_osx_support": ("_read_output",),
    "_pyrepl.pager": ("pipe_pager",),
    "idlelib.run": ("Executive",),
    "lib2to3.pgen2.grammar": ("Grammar",),
    "imaplib": ("IMAP4_stream",),
    "smtplib": ("SMTP",),
    "signal": ("raise_signal",),
    "threading": ("Thread",),
    "weakref": ("finalize",),
    "datetime": ("datetime",),
    "pathlib": ("Path",),
    "ridgeline.cli": ("main",),
}  # fmt: skip


def hostile(command: str = "true") -> Iterator[tuple[str, bytes]]:
    """Yield more than 300 pickles, with their names, that would call or import something."""
    argument = _text(command)
    for module, names in TARGETS.items():
        for name in names:
            spelled = f"c{module}\n{name}\n".encode()
            stacked = _text(module) + _text(name) + b"\x93"
            target = f"{module}.{name}"
            yield f"reduce {target}", b"\x80\x04" + spelled + argument + b"\x85R."
            yield f"stacked {target}", b"\x80\x04" + stacked + b"(" + argument + b"tR."
            yield f"newobj {target}", b"\x80\x04" + spelled + argument + b"\x85\x81."
    for module, name in (("os", "system"), ("builtins", "eval"), ("runpy", "run_path")):
        spelled = f"c{module}\n{name}\n".encode()
        yield f"inst {name}", b"\x80\x02(" + argument + f"i{module}\n{name}\n.".encode()
        yield f"obj {name}", b"\x80\x02(" + spelled + argument + b"o."
        yield f"newobj_ex {name}", b"\x80\x04" + spelled + argument + b"\x85}\x92."
        yield f"build {name}", b"\x80\x04" + spelled + b")\x81}" + argument + argument + b"sb."
        yield f"bare {name}", b"\x80\x04" + spelled + b"."
        yield f"protocol 0 {name}", spelled + b"(" + b"S'" + command.encode() + b"'\ntR."
        call = spelled + argument + b"\x85R"
        yield f"nested {name}", b"\x80\x04}" + _text("segments") + b"]" + call + b"as."
        yield f"as a key {name}", b"\x80\x04}" + call + b"Ns."
        in_event = _text("device_traces") + b"]](" + call + b"eas" + _text("segments") + b"]s."
        yield f"in an event {name}", b"\x80\x04}" + in_event
        yield f"popped {name}", b"\x80\x04" + call + b"0}."
        yield f"zip {name}", b"\x80\x04" + call + b"." + b"PK\x05\x06" + b"\0" * 18
        yield f"gzip {name}", gzip.compress(b"\x80\x04" + call + b".", 1)
    for code in range(1, 6):
        yield f"ext1 {code}", b"\x80\x02\x82" + bytes([code]) + b"."
        yield f"ext2 {code}", b"\x80\x02\x83" + struct.pack("<H", code) + b"."
        yield f"ext4 {code}", b"\x80\x02\x84" + struct.pack("<i", code) + b"."
    yield "persid", b"Pos.system\n."
    yield "binpersid", b"\x80\x02" + argument + b"Q."
    yield "buffer", b"\x80\x05\x97."
    yield "read-only buffer", b"\x80\x05\x97\x98."
    yield "call of a text", b"\x80\x04" + argument + b"(tR."
    yield "build on a dict", b"\x80\x04}}" + argument + argument + b"sb."


def bombs() -> Iterator[tuple[str, bytes]]:
    """Yield small files that stand for something enormous, endless, or very deep."""
    yield "memo index of 10^8", b"\x80\x04Nr" + struct.pack("<I", 10**8) + b"."
    yield "memo index of 2^32", b"\x80\x04Nr" + struct.pack("<I", 2**32 - 1) + b"."
    yield "length of 2^62", b"\x80\x04\x8d" + struct.pack("<Q", 2**62) + b"."
    yield "frame of 2^62", b"\x80\x04\x95" + struct.pack("<Q", 2**62) + b"."
    yield "number of 2^31 bytes", b"\x80\x04\x8b" + struct.pack("<i", 2**31 - 1) + b"."
    yield "bytearray of 2^40", b"\x80\x05\x96" + struct.pack("<Q", 2**40) + b"."
    shared = b"]\x94(" + b"".join(_twice(level) for level in range(26)) + b"e"
    yield "shared lists of 2^26 leaves", b"\x80\x04" + shared + b"."
    yield "cycle", b"\x80\x04]\x94h\x00a."
    yield "cycle of dicts", b"\x80\x04}\x94" + _text("segments") + b"h\x00s."
    yield "depth of a million", b"\x80\x04" + b"]" * 1_000_000 + b"a" * 999_999 + b"."
    traces = _text("segments") + b"]s" + _text("device_traces")
    event = b"}" + _text("action") + _text("alloc") + b"s\x94"
    many = b"](" + event + b"h\x00" * 60_000 + b"e\x94"
    devices = b"](" + many + b"h\x01" * 1000 + b"e"
    yield "events shared by a thousand devices", b"\x80\x04}" + traces + devices + b"s."


def its_own_event() -> bytes:
    """Return a snapshot whose only event and only segment is the snapshot itself."""
    traces = _text("segments") + b"]s" + _text("device_traces")
    return b"\x80\x04}\x94" + traces + b"](](h\x00ees" + _text("segments") + b"](h\x00es."


def _twice(level: int) -> bytes:
    index = struct.pack("<I", level)
    return b"](" + b"j" + index + b"j" + index + b"e\x94"


def mutants(data: bytes, count: int, seed: int = 0) -> Iterator[bytes]:
    """Yield damaged copies: bytes changed, cut, doubled, removed."""
    import random

    chance = random.Random(seed)
    for number in range(count):
        made = bytearray(data)
        for _ in range(chance.randint(1, 8)):
            place = chance.randrange(len(made))
            length = chance.randint(1, 40)
            match number % 5:
                case 0 | 1:
                    made[place] = chance.randrange(256)
                case 2:
                    del made[place : place + length]
                case 3:
                    made[place:place] = made[place : place + length]
                case _:
                    made = made[: max(place, 2)]
        yield bytes(made)


def _text(text: str) -> bytes:
    encoded = text.encode()
    return b"X" + struct.pack("<I", len(encoded)) + encoded


def snapshot_of(*events: dict[str, Any]) -> bytes:
    return pickle.dumps({"segments": [], "device_traces": [list(events)]}, protocol=4)


def audit() -> None:
    """Load the pickles on standard input; print what came of each, and what the hook saw."""
    import importlib.util
    import resource

    spec = importlib.util.spec_from_file_location("unpickling", sys.argv[1])
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["unpickling"] = module
    spec.loader.exec_module(module)
    files = [base64.b64decode(line) for line in sys.stdin.buffer]
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
    seen: list[str] = []
    is_on = False

    def hook(event: str, _arguments: Any) -> None:
        if is_on and event != "builtins.id":
            seen.append(event)

    sys.addaudithook(hook)
    answers = []
    for file in files:
        is_on = True
        opened = io.BufferedReader(io.BytesIO(file))  # type: ignore[arg-type]
        parts = list(module.answer(opened, max(len(file), 10_000)))
        is_on = False
        answers.append(json.loads(bytes(parts[1])).get("refused"))
    print(json.dumps({"answers": answers, "events": seen}))


if __name__ == "__main__":
    audit()
