"""Alibaba's openb GPU trace (cluster-trace-gpu-v2023): its CSV files as nodes and pods.

The folder is `AAML_TRACES`, by default `../shared/openb` or `data/openb` under the working directory; `aaml trace fetch
openb` fills it.
"""

import csv
import os
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from aaml.cluster.gpu import GPU_SPEC_LABEL
from aaml.cluster.objects import NO_GPU, RACK_LABEL, SERVER_LABEL, GpuRequest, Node, Pod
from aaml.cluster.quantity import CPU, MEMORY, PODS
from aaml.errors import UserError, bad_value

NODE_LIST = "openb_node_list_gpu_node.csv"
POD_LIST_PREFIX = "openb_pod_list_"
PODS_PER_NODE = 1001  # the published simulator's nodes take this many
_LABELS = ((GPU_SPEC_LABEL, "gpu_spec"), ("qos", "qos"))
_MIB = 1024 * 1024
_PLACES = (Path("data/openb"), Path("../shared/openb"))


def traces_folder() -> Path:
    """Return the folder with the openb CSV files; `UserError` with the command that gets them when there is none."""
    named = os.environ.get("AAML_TRACES")
    places = (Path(named),) if named else _PLACES
    for place in places:
        if (place / NODE_LIST).is_file():
            return place
    where = f"AAML_TRACES={named}" if named else " or ".join(map(str, places))
    raise UserError(f"the openb trace is not in {where}: get it with `aaml trace fetch openb` (or set AAML_TRACES)")


def trace_names(folder: Path | None = None) -> list[str]:
    """Return the pod lists at hand by short name ("default", "gpuspec33" ...), sorted."""
    folder = folder or traces_folder()
    return sorted(path.stem.removeprefix(POD_LIST_PREFIX) for path in folder.glob(f"{POD_LIST_PREFIX}*.csv"))


def load_nodes(path: Path | None = None) -> tuple[Node, ...]:
    """Read a node list (columns sn, cpu_milli, memory_mib, gpu, model and optionally rack, server) in file order."""
    path = path or traces_folder() / NODE_LIST
    return _read_nodes(path.resolve())


def load_pods(name: str, folder: Path | None = None) -> tuple[Pod, ...]:
    """Read the pod list of a trace by short name, in file order; `UserError` names the traces there are."""
    folder = folder or traces_folder()
    path = folder / f"{POD_LIST_PREFIX}{name.removeprefix(POD_LIST_PREFIX)}.csv"
    if not path.is_file():
        raise bad_value("trace", name, f"one of {', '.join(trace_names(folder))}")
    return read_pods(path)


def read_pods(path: Path) -> tuple[Pod, ...]:
    """Read a pod list (columns name, cpu_milli, memory_mib, num_gpu, gpu_milli and optionally gpu_spec and times)."""
    return _read_pods(path.resolve())


def _rows(path: Path, columns: tuple[str, ...]) -> Iterator[tuple[str, dict[str, str]]]:
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        missing = [column for column in columns if column not in (reader.fieldnames or ())]
        if missing:
            raise UserError(f"{path.name}: column {missing[0]} is missing; expected {', '.join(columns)}")
        for row in reader:
            yield f"{path.name} line {reader.line_num}", row


def _count(row: dict[str, str], column: str, where: str) -> int:
    text = (row[column] or "0").strip()
    if not text.isdigit():
        raise bad_value(f"{where}, {column}", text, "a whole number that is not negative")
    return int(text)


@lru_cache(maxsize=8)
def _read_nodes(path: Path) -> tuple[Node, ...]:
    nodes = []
    for where, row in _rows(path, ("sn", "cpu_milli", "memory_mib", "gpu", "model")):
        allocatable = {
            CPU: _count(row, "cpu_milli", where),
            MEMORY: _count(row, "memory_mib", where) * _MIB,
            PODS: PODS_PER_NODE,
        }
        labels = {key: row[key] for key in (RACK_LABEL, SERVER_LABEL) if row.get(key)}
        count, model = _count(row, "gpu", where), row["model"] or ""
        nodes.append(Node(row["sn"], allocatable, labels, gpu_count=count, gpu_model=model))
    return tuple(nodes)


@lru_cache(maxsize=32)
def _read_pods(path: Path) -> tuple[Pod, ...]:
    pods = []
    for where, row in _rows(path, ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")):
        requests = {CPU: _count(row, "cpu_milli", where), MEMORY: _count(row, "memory_mib", where) * _MIB}
        count, milli = _count(row, "num_gpu", where), _count(row, "gpu_milli", where)
        models = frozenset(filter(None, (row.get("gpu_spec") or "").split("|")))
        gpu = GpuRequest(count, milli if count else 0, models) if count or models else NO_GPU
        labels = {key: row[column] for key, column in _LABELS if row.get(column)}
        created, deleted = row.get("creation_time") or "", row.get("deletion_time") or ""
        pods.append(
            Pod(
                row["name"],
                namespace="openb",
                requests=requests,
                gpu=gpu,
                labels=labels,
                created_s=float(created or 0),
                lifetime_s=float(deleted) - float(created) if created and deleted else None,
            )
        )
    return tuple(pods)
