"""The public record of Microsoft's Philly clusters: jobs of 2017, with their GPUs, durations and virtual clusters.

The file is in the folder that the environment variable `AAML_PHILLY` names, by default `data/philly` under the working
directory, where `aaml trace fetch philly` puts it. It is the table of Sia's artifact (SOSP 2023), made from the traces
of Jeon et al., "Analysis of Large-Scale Multi-Tenant GPU Clusters for DNN Training Workloads", USENIX ATC 2019.
"""

import os
import re
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from aaml.errors import UserError, bad_value
from aaml.workload.table import number, read_lines, whole_number

FILE = "philly.csv"
DEFAULT_FOLDER = Path("data/philly")
_TIME = "%Y-%m-%d %H:%M:%S"
_NAMESPACE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_MOST_GPUS = 1_000_000
_ROUNDED = 1e-3  # by how much the product of two columns may be off, of itself


class Job(NamedTuple):
    """A job of the record: when it came (seconds since 1970), how long it ran, its GPUs and its virtual cluster."""

    submitted_s: float
    duration_s: float
    gpus: int
    queue: str


def record_file() -> Path:
    """Return the file of the record. Raises `UserError`, with the command that gets it, when it is not there."""
    path = Path(os.environ.get("AAML_PHILLY") or DEFAULT_FOLDER) / FILE
    if not path.is_file():
        raise UserError(f"{FILE} is not in {path.parent}: get it with `aaml trace fetch philly`, or set AAML_PHILLY")
    return path.resolve()


def load_jobs() -> tuple[Job, ...]:
    """Read the record, in the order in which its jobs came."""
    return _sorted_jobs(record_file())


@lru_cache(maxsize=2)
def _sorted_jobs(path: Path) -> tuple[Job, ...]:
    return tuple(sorted(read_jobs(path)))


def read_jobs(path: Path) -> list[Job]:
    """Read jobs in file order: the columns timestamp, duration, num_gpus, gpu_time and cluster.

    Raises `UserError` naming file, line, column and value.
    """
    columns = {
        "timestamp": _time, "duration": number(), "num_gpus": _gpus, "gpu_time": number(), "cluster": _queue,
    }  # fmt: skip
    jobs = []
    for line, row in read_lines(path, columns):
        product = row["duration"] * row["num_gpus"]
        if abs(row["gpu_time"] - product) > 1.0 + _ROUNDED * product:
            field = f"{path}, line {line}, column gpu_time"
            raise bad_value(field, row["gpu_time"], f"duration times num_gpus, {product:g}")
        jobs.append(Job(row["timestamp"], row["duration"], row["num_gpus"], row["cluster"]))
    return jobs


def _time(field: str, text: str) -> float:
    try:
        return datetime.strptime(text, _TIME).replace(tzinfo=UTC).timestamp()
    except ValueError:
        raise bad_value(field, text, "a time as 2017-10-09 07:01:55") from None


def _gpus(field: str, text: str) -> int:
    count: int = whole_number(1)(field, text)
    if count > _MOST_GPUS:
        raise bad_value(field, text, f"a whole number of at most {_MOST_GPUS}")
    return count


def _queue(field: str, text: str) -> str:
    if not _NAMESPACE.fullmatch(text):
        raise bad_value(field, text, "a namespace's name: up to 63 of a-z, 0-9 and -")
    return text
