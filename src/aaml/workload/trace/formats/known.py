"""The formats that can be converted: how a file is told from others, where data is published, how it is checked.

Data with a published SHA-256 is held to it. Of the rest the SHA-256 of the first download is written to SHA256SUMS
beside the files, and later downloads must agree with that.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from aaml.errors import bad_value
from aaml.workload.philly import FILE as PHILLY_FILE
from aaml.workload.trace.formats import jobs, logs, tables
from aaml.workload.trace.formats.common import Converted, Options

_CLUSTERDATA = "https://raw.githubusercontent.com/alibaba/clusterdata/master"
_SIA = "https://raw.githubusercontent.com/siasosp23/artifacts/37c68be73bc2ea5f53c778190d1b88f6c00e7352"
_PAI = "https://aliopentrace.oss-cn-beijing.aliyuncs.com/v2020GPUTraces"


@dataclass(frozen=True)
class File:
    """A published file; `sha256` is empty where its publisher names none."""

    url: str
    sha256: str = ""

    @property
    def name(self) -> str:
        """What the file is called."""
        return self.url.rpartition("/")[2]


@dataclass(frozen=True)
class Format:
    """A format: what it is, how it is read, and by which names its files are known.

    `files` can be fetched; `where` says how to come by the data otherwise.
    """

    summary: str
    read: Callable[[Path, Options], Converted]
    marks: tuple[str, ...]
    files: tuple[File, ...] = ()
    where: str = ""


FORMATS: Mapping[str, Format] = {
    "table": Format("a table of one's own: pods.csv with nodes.csv beside it", tables.own_table, (tables.PODS_FILE,)),
    "openb": Format("Alibaba's GPU-sharing trace of 2023", tables.openb, ("openb_pod_list_*.csv",)),
    "seed-recording": Format("a recording of the seeds, data/sched_*.csv", tables.seed_recording, ("sched_*.csv",)),
    "seed-deployments": Format(
        "deployments of the seeds, deployment_data/*.csv", tables.seed_deployments, ("data_*.csv",)
    ),
    "swf": Format(
        "a log in the Standard Workload Format", tables.swf, ("*.swf", "*.swf.gz"),
        where="choose a log at https://www.cs.huji.ac.il/labs/parallel/workload/logs.html",
    ),
    "alibaba2020": Format(
        "Alibaba's PAI GPU trace of 2020", logs.alibaba_2020, ("pai_instance_table.csv*",),
        files=(
            File(f"{_PAI}/pai_machine_spec.tar.gz", "cc0d38a4045af1b1af8179de8b1b54b1ddd995e6160d6d061a6b1000f1276c2d"),
            File(f"{_PAI}/pai_task_table.tar.gz", "cd1d6dc3215d2a8607ccf6b6dd952b5db776df86926c73259fea7c1499ac40e5"),
            File(f"{_PAI}/pai_job_table.tar.gz", "5aad7f7caac501136d14ed6a48e40546f825d7b0617a3a4f337e2348fe0a6cb0"),
            File(
                f"{_PAI}/pai_instance_table.tar.gz", "1bf1e423a7ce3f8d086699801c362fd56a7182abdb234139e5ebbed97995ca06"
            ),
        ),
        where="unpack the archives in their folder: for f in *.tar.gz; do tar -xzf $f; done",
    ),
    "alibaba2026": Format(
        "Alibaba's spot GPU trace of 2026", tables.alibaba_spot, ("job_info_df.csv*",),
        files=(
            File(f"{_CLUSTERDATA}/cluster-trace-v2026-spot-gpu/node_info_df.csv"),
            File(f"{_CLUSTERDATA}/cluster-trace-v2026-spot-gpu/job_info_df.csv"),
        ),
    ),
    "philly": Format(
        "jobs of Microsoft's Philly clusters, GPU, 2017", jobs.philly, ("philly*.csv",),
        files=(
            File(
                f"{_SIA}/sia-simulator/traces/{PHILLY_FILE}",
                "ebffb3dd1589bdf4e7bcd74496201c5ded1d557d498ee14f560463f37ec353da",
            ),
        ),
    ),
    "azure2020": Format(
        "Azure's packing trace of 2020", logs.azure_2020, ("*.sqlite", "*.sqlite3", "*.db"),
        files=(
            File(
                "https://github.com/Azure/AzurePublicDataset/releases/download/dataset-packing-2020/"
                "azurevmallocation_dataset2020_AzurePackingTraceV1.zip"
            ),
        ),
        where="unpack the archive: it holds one SQLite file",
    ),
    "google2019": Format(
        "Google's cluster trace of 2019 (version 3)", logs.google_2019, ("instance_events*.json*",),
        where="export machine_events and instance_events of a cell as JSON lines, as the trace's description says: "
        "https://github.com/google/cluster-data/blob/master/ClusterData2019.md",
    ),
}  # fmt: skip


def detect(source: Path) -> str:
    """Return the format of a file or folder by its name or what is in it. Raises `UserError` when that is not clear."""
    matches = [
        name
        for name, each in FORMATS.items()
        if any(source.match(mark) if source.is_file() else next(source.glob(mark), None) for mark in each.marks)
    ]
    if len(matches) != 1:
        raise bad_value("source", str(source), f"what is clearly one of {', '.join(FORMATS)}; say --format")
    return matches[0]


def convert(source: Path, name: str, options: Options) -> Converted:
    """Read a source. Raises `UserError` for what is not of that format, naming file, line, column and value."""
    if name not in FORMATS:
        raise bad_value("format", name, f"one of {', '.join(FORMATS)}")
    if not source.exists():
        raise bad_value("source", str(source), "a file or folder that is there")
    return FORMATS[name].read(source, options)
