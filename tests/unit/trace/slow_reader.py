"""A trace read the obvious way: the whole document at once, one event after the other.

Shares no code with the readers it is held against: its own arithmetic, its own lists of names.
"""

import json
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

EXACT = Context(prec=6000)
NUMBERS = {
    "ops": {"external": ["External id", "external id"], "sequence": ["Sequence number"],
            "forward_thread": ["Fwd thread id"]},
    "calls": {"correlation": ["correlation"], "external": ["External id", "external id"]},
    "device": {"device": ["device", "Device Id"], "stream": ["stream"],
               "correlation": ["correlation"], "external": ["External id", "external id"],
               "bytes": ["bytes", "Bytes"], "graph": ["graph id"],
               "graph_node": ["graph node id"]},
    "syncs": {"device": ["device", "Device Id"], "stream": ["stream"],
              "correlation": ["correlation"]},
    "frames": {"frame": ["Python id"], "parent": ["Python parent id"],
               "module": ["Python module id"]},
    "memory": {"bytes": ["bytes", "Bytes"], "allocated": ["Total Allocated"],
               "reserved": ["Total Reserved"], "device": ["device", "Device Id"],
               "device_type": ["Device Type"]},
    "others": {"external": ["External id", "external id"]},
}  # fmt: skip
NUMBERS["annotations"] = NUMBERS["ops"]
NARROW = ("device", "stream", "module", "graph", "forward_thread", "device_type")
SHAPED = ("ops", "annotations")
INFORMED = ("ops", "annotations", "device", "syncs", "others")
INFO = [
    "grid",
    "block",
    "est. achieved occupancy %",
    "Collective name",
    "dtype",
    "In msg nelems",
    "Out msg nelems",
    "In split size",
    "Out split size",
    "Group size",
    "Process Group Name",
    "Process Group Description",
    "Process Group Ranks",
    "Process Group ID",
    "Rank",
    "Src Rank",
    "Dst Rank",
    "Root Rank",
    "Seq",
    "cuda_sync_kind",
    "wait_on_stream",
    "wait_on_cuda_event_record_corr_id",
    "kernel_backend",
    "kernel_file",
    "kind",
    "Call stack",
    "Module Hierarchy",
]
SHAPE = ("Input Dims", "Input type", "Concrete Inputs", "Input Strides")
HOMES = {
    "cpu_op": "ops", "operator": "ops", "user_annotation": "annotations",
    "python_function": "frames", "cuda_runtime": "calls", "runtime": "calls",
    "hip_runtime": "calls", "cuda_driver": "calls", "kernel": "device", "gpu_memcpy": "device",
    "memcpy": "device", "gpu_memset": "device", "memset": "device", "cuda_sync": "syncs",
}  # fmt: skip
STEPS = ("ProfilerStep#", "Optimizer.", "enumerate(DataLoader)", "ProfilerStep*")

Rows = dict[str, list[dict[str, Any]]]


def slow_read(document: bytes) -> tuple[Rows, int, int]:
    """Rows by table in order, how many arrows and metadata events there were, how many were lost.

    Of a document that is JSON, apart from control characters.
    """
    text = document.decode("utf-8-sig", "replace")
    told = json.loads(text, strict=False, parse_float=Decimal)
    rows: Rows = {table: [] for table in NUMBERS}
    uncounted = lost = 0
    for event in told if isinstance(told, list) else told["traceEvents"]:
        phase = event.get("ph") if isinstance(event, dict) else None
        if phase in ("s", "f", "t", "M"):
            uncounted += 1
        elif phase not in ("X", "i", "I", "C") or not _timed(event):
            lost += 1
        else:
            table = _home(event)
            rows[table].append(_row(event, table))
    for kept in rows.values():
        kept.sort(key=lambda row: (row["ts"], -row["dur"]))
    # spans that old traces list among the operators come after those that are told as such
    return rows, uncounted, lost


def _timed(event: dict[str, Any]) -> bool:
    ts = _ns(event.get("ts"))
    dur = _ns(event.get("dur")) if event["ph"] == "X" else 0
    return ts is not None and dur is not None and dur >= 0


def _ns(value: Any) -> int | None:
    if type(value) not in (int, Decimal, str, float):
        return None
    try:
        micros = Decimal(value)
        if not micros.is_finite() or EXACT.abs(micros) > 3 * 10**15:
            return None
        return int(EXACT.multiply(micros, Decimal(1000)).to_integral_value(ROUND_HALF_UP))
    except ArithmeticError:
        return None


def _home(event: dict[str, Any]) -> str:
    name, category, phase = _name(event), event.get("cat"), event["ph"]
    if phase == "C":
        return "others"
    if phase in ("i", "I"):
        memory = category == "cpu_instant_event" or name == "[memory]"
        return "memory" if memory else "others"
    if not isinstance(category, str):
        home = {"CPU functions": "ops", "CUDA functions": "device"}.get(str(event.get("pid")))
    else:
        home = HOMES.get(category.lower())
    if home == "ops" and name.startswith(STEPS):
        return "annotations"
    return home or "others"


def _name(event: dict[str, Any]) -> str:
    name = event.get("name")
    text = "" if name is None else name if isinstance(name, str) else str(name)
    return text.encode("utf-8", "replace").decode()


def _row(event: dict[str, Any], table: str) -> dict[str, Any]:
    args = event.get("args")
    args = args if isinstance(args, dict) else {}
    row = {
        "ts": _ns(event["ts"]),
        "dur": _ns(event["dur"]) if event["ph"] == "X" else 0,
        "name": _name(event),
        "lane": (_id(event.get("pid")), _id(event.get("tid"))),
    }
    for column, keys in NUMBERS[table].items():
        row[column] = 0 if column == "bytes" else -1
        for key, value in args.items():
            if key in keys:
                number = _whole(value)
                limit = 2**31 - 1 if column in NARROW else 2**62
                if number is not None and abs(number) <= limit:
                    row[column] = number
    if table in SHAPED:
        row["shape"] = {key: _plain(args[key]) for key in SHAPE if key in args}
    if table in INFORMED:
        row["info"] = {key: _plain(args[key]) for key in INFO if key in args}
    return row


def _whole(value: Any) -> int | None:
    if type(value) is int:
        return value
    if type(value) is Decimal:
        if not value.is_finite() or EXACT.abs(value) >= 2**62:
            return None
        return int(value) if value == value.to_integral_value() else None
    if type(value) is str and len(value) < 20:
        digits = value[1:] if value.startswith("-") else value
        return int(value) if digits.isdecimal() else None
    return None


def _id(value: Any) -> str:
    if type(value) in (int, Decimal):
        return str(value)[:40]
    return value[:200].encode("utf-8", "replace").decode() if isinstance(value, str) else ""


def _plain(value: Any) -> Any:
    """Decimals as floats, lists and objects all the way down."""
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value
