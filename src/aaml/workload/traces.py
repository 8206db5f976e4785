"""Alibaba's openb GPU trace (cluster-trace-gpu-v2023): its CSV files as nodes and pods.

The files are in the folder that the environment variable `AAML_TRACES` names, by default `data/openb` under the working
directory, where `aaml trace fetch openb` puts them.
"""

import os
from functools import lru_cache
from pathlib import Path

from aaml.cluster.gpu import GPU_SPEC_LABEL
from aaml.cluster.objects import NO_GPU, RACK_LABEL, SERVER_LABEL, GpuRequest, Node, Pod
from aaml.cluster.quantity import CPU, MEMORY, PODS
from aaml.errors import UserError, bad_value
from aaml.workload.table import Parser, any_text, number, read_table, whole_number

NODE_LIST = "openb_node_list_gpu_node.csv"
POD_LIST_PREFIX = "openb_pod_list_"
PUBLISHED_TRACES = (
    "default", "cpu050", "cpu100", "cpu200", "cpu250", "gpushare40", "gpushare60", "gpushare80", "gpushare100",
    "gpuspec10", "gpuspec20", "gpuspec25", "gpuspec33", "multigpu20", "multigpu30", "multigpu40", "multigpu50",
)  # fmt: skip
PODS_PER_NODE = 1001  # the published simulator's nodes take this many
_LABELS = ((GPU_SPEC_LABEL, "gpu_spec"), ("qos", "qos"))
_MIB = 1024 * 1024
_WHOLE = whole_number()
DEFAULT_FOLDER = Path("data/openb")


def traces_folder() -> Path:
    """Return the folder with the openb CSV files.

    Raises `UserError`, with the command that gets them, when there is none.
    """
    folder = Path(os.environ.get("AAML_TRACES") or DEFAULT_FOLDER)
    if not (folder / NODE_LIST).is_file():
        raise UserError(f"the openb trace is not in {folder}: get it with `aaml trace fetch openb`, or set AAML_TRACES")
    return folder


def trace_names(folder: Path | None = None) -> list[str]:
    """Return the pod lists at hand by short name ("default", "gpuspec33" ...), sorted."""
    folder = folder or traces_folder()
    return sorted(path.stem.removeprefix(POD_LIST_PREFIX) for path in folder.glob(f"{POD_LIST_PREFIX}*.csv"))


def load_nodes(path: Path | None = None) -> tuple[Node, ...]:
    """Read a node list in file order, by default the trace's nodes with GPUs.

    Its columns are sn, cpu_milli, memory_mib, gpu, model, and where there are such rack and server. Raises `UserError`
    naming file, line, column and value.
    """
    path = path or traces_folder() / NODE_LIST
    return _read_nodes(path.resolve())


def load_pods(name: str, folder: Path | None = None) -> tuple[Pod, ...]:
    """Read the pod list of a trace by short name, in file order. Raises `UserError` with the names that there are."""
    return read_pods(pod_list(name, folder))


def pod_list(name: str, folder: Path | None = None) -> Path:
    """Return the file with the pods of a trace. Raises `UserError` with the names that there are."""
    folder = folder or traces_folder()
    path = folder / f"{POD_LIST_PREFIX}{name.removeprefix(POD_LIST_PREFIX)}.csv"
    if not path.is_file():
        raise bad_value("trace", name, f"one of {', '.join(trace_names(folder))}")
    return path


def trace_files(name: str) -> tuple[Path, Path]:
    """Return the files that a trace of openb is played from: its pods, and the nodes. Raises `UserError`."""
    return pod_list(name), traces_folder() / NODE_LIST


def read_pods(path: Path) -> tuple[Pod, ...]:
    """Read a pod list in file order.

    Its columns are name, cpu_milli, memory_mib, num_gpu, gpu_milli, and where there are such gpu_spec, qos,
    creation_time and deletion_time. Raises `UserError` naming file, line, column and value.
    """
    return _read_pods(path.resolve())


def _count(field: str, text: str) -> int:
    """Read a whole number; nothing stands for 0."""
    return int(_WHOLE(field, text or "0"))


def _columns(*names: str) -> dict[str, Parser]:
    return dict.fromkeys(names, _count)


@lru_cache(maxsize=8)
def _read_nodes(path: Path) -> tuple[Node, ...]:
    required = {"sn": any_text, "model": any_text, **_columns("cpu_milli", "memory_mib", "gpu")}
    nodes = []
    for row in read_table(path, required, {RACK_LABEL: any_text, SERVER_LABEL: any_text}):
        allocatable = {CPU: row["cpu_milli"], MEMORY: row["memory_mib"] * _MIB, PODS: PODS_PER_NODE}
        labels = {key: row[key] for key in (RACK_LABEL, SERVER_LABEL) if key in row}
        nodes.append(Node(row["sn"], allocatable, labels, gpu_count=row["gpu"], gpu_model=row["model"]))
    return tuple(nodes)


@lru_cache(maxsize=32)
def _read_pods(path: Path) -> tuple[Pod, ...]:
    required = {"name": any_text, **_columns("cpu_milli", "memory_mib", "num_gpu", "gpu_milli")}
    texts = dict.fromkeys(("gpu_spec", *(column for _, column in _LABELS)), any_text)
    times = dict.fromkeys(("creation_time", "deletion_time"), number())
    pods = []
    for row in read_table(path, required, {**texts, **times}):
        count, models = row["num_gpu"], frozenset(filter(None, row.get("gpu_spec", "").split("|")))
        created, deleted = row.get("creation_time"), row.get("deletion_time")
        pods.append(
            Pod(
                row["name"],
                namespace="openb",
                requests={CPU: row["cpu_milli"], MEMORY: row["memory_mib"] * _MIB},
                gpu=GpuRequest(count, row["gpu_milli"] if count else 0, models) if count or models else NO_GPU,
                labels={key: row[column] for key, column in _LABELS if column in row},
                created_s=created or 0.0,
                lifetime_s=None if created is None or deleted is None else deleted - created,
                qos=row.get("qos", ""),
            )
        )
    return tuple(pods)
