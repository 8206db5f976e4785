"""Formats that say where things ran: Alibaba's GPU trace of 2020, Google's of 2019; and Azure's packing trace of 2020.

Each is read as its public description defines it; the addresses are in `aaml.workload.trace.formats.known`.
"""

import csv
import json
import math
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from aaml.cluster.objects import RACK_LABEL, Node, Pod
from aaml.cluster.quantity import CPU, EPHEMERAL_STORAGE, MEMORY, PODS
from aaml.errors import UserError, bad_value
from aaml.workload.trace.events import End
from aaml.workload.trace.formats.common import (
    PODS_PER_NODE,
    UNIT_CPU_MILLI,
    UNIT_MEMORY_BYTES,
    Converted,
    Options,
    file_in,
    gpus_of,
    opened,
    standing,
)
from aaml.workload.trace.formats.tables import unplaced
from aaml.workload.trace.trace import Life
from aaml.workload.trace.windows import NodeChange

_GIB = 1 << 30
_DAY_S = 86_400.0
_NEVER_US = (1 << 63) - 1  # Google's word for after the trace; 0 is before it

_JOBS = ("job_name", "inst_id", "user", "status", "start_time", "end_time")
_TASKS = ("job_name", "task_name", "inst_num", "status", "start_time", "end_time", "plan_cpu", "plan_mem", "plan_gpu",
          "gpu_type")  # fmt: skip
_INSTANCES = ("job_name", "task_name", "inst_name", "worker_name", "inst_id", "status", "start_time", "end_time",
              "machine")  # fmt: skip
_MACHINES = ("machine", "gpu_type", "cap_cpu", "cap_mem", "cap_gpu")


def alibaba_2020(folder: Path, _options: Options) -> Converted:
    """Alibaba's PAI GPU trace of 2020: pai_machine_spec, pai_task_table, pai_instance_table and pai_job_table (.csv).

    The files have no header. An instance arrives when its job was submitted, begins at its own start on its machine,
    and asks for what its task planned: `plan_cpu` and `plan_gpu` in per cent, `plan_mem` in GB.
    """
    nodes = [
        Node(
            row["machine"],
            {CPU: round(1000 * row["cap_cpu"]), MEMORY: round(_GIB * row["cap_mem"]), PODS: PODS_PER_NODE},
            gpu_count=int(row["cap_gpu"]), gpu_model=row["gpu_type"] if row["cap_gpu"] else "",
        )
        for row in _headless(file_in(folder, "pai_machine_spec.csv"), _MACHINES, ("cap_cpu", "cap_mem", "cap_gpu"))
    ]  # fmt: skip
    machines = {node.name for node in nodes}
    plans = {
        (row["job_name"], row["task_name"]): row
        for row in _headless(file_in(folder, "pai_task_table.csv"), _TASKS, ("plan_cpu", "plan_mem", "plan_gpu"))
    }
    submitted = {
        row["job_name"]: row["start_time"]
        for row in _headless(file_in(folder, "pai_job_table.csv"), _JOBS, ("start_time",))
    }
    left_out: Counter[str] = Counter()
    lives = []
    times = ("start_time", "end_time")
    for number, row in enumerate(_headless(file_in(folder, "pai_instance_table.csv"), _INSTANCES, times)):
        plan, start_s, end_s = plans.get((row["job_name"], row["task_name"])), row["start_time"], row["end_time"]
        if plan is None or not start_s or row["machine"] not in machines:
            left_out["instances without a task, a start or a known machine"] += 1
            continue
        requests = {CPU: round(10 * plan["plan_cpu"]), MEMORY: round(_GIB * plan["plan_mem"])}
        pod = Pod(
            f"{row['worker_name'] or row['inst_name']}-{number}", "pai", requests=requests,
            gpu=gpus_of(plan["plan_gpu"] / 100), owner=f"Job/{row['job_name']}", scheduler_name="alibaba-2020",
            labels={"task": row["task_name"]},
        )  # fmt: skip
        over = end_s >= start_s and row["status"] in {"Terminated", "Failed"}
        how: End = "succeeded" if row["status"] == "Terminated" else "failed"
        created_s = min(submitted.get(row["job_name"]) or start_s, start_s)
        lives.append(
            Life(pod, created_s, start_s, row["machine"], ended_s=end_s if over else None, how=how if over else None)
        )
    return Converted(folder.name, standing(nodes), tuple(lives), left_out)


def _headless(path: Path, columns: Sequence[str], numbers: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the lines of a CSV file without a header; an empty cell of a number is 0. Raises `UserError`."""
    with opened(path) as file:
        for line, cells in enumerate(csv.reader(file), start=1):
            if line == 1 and cells[:1] == [columns[0]]:
                continue  # somebody put the header on top
            if len(cells) != len(columns):
                raise UserError(f"{path}, line {line}: {len(cells)} columns; expected {', '.join(columns)}")
            row: dict[str, Any] = dict(zip(columns, cells, strict=True))
            for name in numbers:
                row[name] = _number(f"{path}, line {line}, column {name}", row[name] or "0")
            yield row


def _number(field: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise bad_value(field, text, "a number")
    return value


def azure_2020(path: Path, options: Options) -> Converted:
    """Azure's packing trace of 2020: an SQLite file with the tables vm and vmType.

    Requests are shares of a machine of one kind (`options.machine`, else that which most VM types fit); there are
    `options.nodes` of these, and 1.0 stands for 100 cores and 100 GiB. Low-priority VMs (1) have priority 0, others
    1000. A VM that was alive at the end of collection has no lifetime.
    """
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as base:
            kinds = base.execute("SELECT vmTypeId, machineId, core, memory, ssd FROM vmType").fetchall()
            vms = base.execute("SELECT vmId, tenantId, vmTypeId, priority, starttime, endtime FROM vm").fetchall()
    except sqlite3.Error as error:
        raise UserError(f"{path}: is not Azure's packing trace ({error})") from error
    fits = Counter(str(machine) for _, machine, *_ in kinds)
    machine = options.machine or max(sorted(fits), key=lambda each: fits[each], default="")
    if machine not in fits:
        raise bad_value("machine", machine, f"one of {', '.join(sorted(fits)[:20])}")
    shares = {str(kind): (core, memory, ssd) for kind, of, core, memory, ssd in kinds if str(of) == machine}
    capacity = {CPU: UNIT_CPU_MILLI, MEMORY: UNIT_MEMORY_BYTES, EPHEMERAL_STORAGE: UNIT_MEMORY_BYTES}
    width = len(str(options.nodes - 1))
    nodes = [Node(f"node-{i:0{width}d}", {**capacity, PODS: PODS_PER_NODE}) for i in range(options.nodes)]
    left_out: Counter[str] = Counter()
    lives = []
    for vm, tenant, kind, priority, start, end in vms:
        if str(kind) not in shares:
            left_out[f"VMs of types that machine {machine} does not offer"] += 1
            continue
        amounts = zip(capacity.items(), shares[str(kind)], strict=True)
        requests = {name: math.ceil(unit * (share or 0.0)) for (name, unit), share in amounts}
        pod = Pod(
            f"vm-{vm}", f"tenant-{tenant}", requests=requests, priority=0 if int(priority) else 1000,
            owner=f"VM/{kind}", scheduler_name="azure-2020",
        )  # fmt: skip
        start_s = _DAY_S * float(start)
        lives.append(unplaced(pod, start_s, None if end is None else max(0.0, _DAY_S * float(end) - start_s)))
    return Converted(path.name, standing(nodes), tuple(lives), left_out)


_TYPES = ("SUBMIT", "QUEUE", "ENABLE", "SCHEDULE", "EVICT", "FAIL", "FINISH", "KILL", "LOST")
_ENDS: Mapping[str, End] = {
    "EVICT": "evicted", "FAIL": "failed", "FINISH": "succeeded", "KILL": "deleted", "LOST": "unseen",
}  # fmt: skip
_MACHINE_TYPES = ("UNKNOWN", "ADD", "REMOVE", "UPDATE")


def google_2019(folder: Path, _options: Options) -> Converted:
    """Google's cluster trace of 2019 (version 3): machine_events*.json and instance_events*.json, a JSON object a line.

    1.0 of a resource stands for 100 cores and 100 GiB. An instance that is submitted again after an end is another
    pod. Alloc instances hold their reservation; the tasks inside of them, and placement constraints, are left out.
    """
    nodes = []
    for row in _lines(folder, "machine_events"):
        kind, name = _kind(row.get("type"), _MACHINE_TYPES), f"m-{row.get('machine_id')}"
        capacity = row.get("capacity") or {}
        if kind == "REMOVE":
            nodes.append(NodeChange(_seconds(row), name, None))
        elif capacity.get("cpus") is not None:
            labels = {RACK_LABEL: str(row.get("switch_id") or ""), "platform": str(row.get("platform_id") or "")}
            nodes.append(
                NodeChange(_seconds(row), name, Node(name, _amounts(capacity) | {PODS: PODS_PER_NODE}, labels))
            )
    left_out: Counter[str] = Counter()
    lives: list[Life] = []
    open_: dict[tuple[str, str], Life] = {}
    rows = sorted(_lines(folder, "instance_events"), key=lambda row: int(row.get("time") or 0))
    for row in rows:
        at_s, kind = _seconds(row), _kind(row.get("type"), _TYPES)
        if int(row.get("time") or 0) == _NEVER_US:
            left_out["events after the trace"] += 1
            continue
        if int(row.get("alloc_collection_id") or 0):
            left_out["events of tasks inside an alloc"] += 1
            continue
        key = str(row.get("collection_id")), str(row.get("instance_index"))
        life = open_.get(key)
        if life is None and kind in {"SUBMIT", "QUEUE", "ENABLE", "SCHEDULE"}:
            name = f"c{key[0]}-{key[1]}-{len(lives)}"
            pod = Pod(
                name, "google", requests=_amounts(row.get("resource_request") or {}),
                priority=int(row.get("priority") or 0), owner=f"Collection/{key[0]}", scheduler_name="google-2019",
            )  # fmt: skip
            life = open_[key] = Life(pod, at_s)
            lives.append(life)
        if life is not None and kind == "SCHEDULE" and life.bound_s is None and int(row.get("machine_id") or 0) > 0:
            life.bound_s, life.node_name = at_s, f"m-{row['machine_id']}"
        elif life is not None and kind in _ENDS:
            life.ended_s, life.how = at_s, _ENDS[kind]
            del open_[key]
    return Converted(folder.name, tuple(sorted(nodes, key=lambda each: each.at_s)), tuple(lives), left_out)


def _lines(folder: Path, table: str) -> Iterator[dict[str, Any]]:
    paths = sorted((*folder.glob(f"{table}*.json"), *folder.glob(f"{table}*.json.gz")))
    if not paths:
        raise bad_value("source", str(folder), f"a folder with {table}*.json or {table}*.json.gz")
    for path in paths:
        with opened(path) as file:
            for line, text in enumerate(file, start=1):
                try:
                    row = json.loads(text)
                    int(row.get("time") or 0)
                except (ValueError, AttributeError, TypeError):
                    raise UserError(f"{path}, line {line}: is no event in JSON") from None
                yield row


def _seconds(row: Mapping[str, Any]) -> float:
    return int(row.get("time") or 0) / 1e6


def _kind(value: Any, names: Sequence[str]) -> str:
    """Return an event's type by name; a table of BigQuery has its number."""
    text = str(value if value is not None else 0)
    return names[int(text)] if text.isdigit() and int(text) < len(names) else text


def _amounts(resources: Mapping[str, Any]) -> dict[str, int]:
    return {
        CPU: math.ceil(UNIT_CPU_MILLI * float(resources.get("cpus") or 0.0)),
        MEMORY: math.ceil(UNIT_MEMORY_BYTES * float(resources.get("memory") or 0.0)),
    }
