"""Formats that are tables of what was asked for: one's own, openb, the seeds' CSV files, SWF, spot GPUs.

They tell when pods came and how long they ran, and (apart from the seeds' recordings) not where: such pods have a
lifetime of their own, and whoever replays them places those too that ran when a window began.
"""

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from aaml.cluster.fleet import workers
from aaml.cluster.objects import GpuRequest, Node, Pod, PodGroup
from aaml.cluster.quantity import CPU, MEMORY, PODS
from aaml.errors import UserError, bad_value
from aaml.workload import traces
from aaml.workload.deployments import Deployment, read_deployments
from aaml.workload.table import Parser, any_text, choice, number, quantity, read_lines, read_table, whole_number
from aaml.workload.trace.formats.common import (
    DEVICE_MILLI,
    PODS_PER_NODE,
    Converted,
    Options,
    file_in,
    gpus_of,
    opened,
    standing,
)
from aaml.workload.trace.trace import Life

PODS_FILE, NODES = "pods.csv", "nodes.csv"  # of one's own
_STEP_S = 1.0  # between the lines of the seeds' files, which have no times
_USUAL_PODS = 110  # of a kubelet
_LARGEST_PRIORITY = 1 << 31
_KIB = 1024


class _SwfJob(NamedTuple):
    """A line of the Standard Workload Format 2.2; -1 is what is not known."""

    number: float
    submit_s: float
    wait_s: float
    run_s: float
    used_procs: float
    used_cpu_s: float
    used_memory_kib: float
    asked_procs: float
    asked_s: float
    asked_memory_kib: float
    status: float
    user: float
    group: float
    program: float
    queue: float
    partition: float
    after_job: float
    after_s: float


def unplaced(pod: Pod, created_s: float, lifetime_s: float | None) -> Life:
    """Return the life of a pod of which nobody says where it ran."""
    pod = replace(pod, lifetime_s=lifetime_s)
    if lifetime_s is None:
        return Life(pod, created_s)
    return Life(pod, created_s, ended_s=created_s + lifetime_s, how="succeeded")


def own_table(path: Path, _options: Options) -> Converted:
    """A person's own pods.csv with nodes.csv beside it; amounts are Kubernetes quantities, times seconds.

    nodes.csv has name, cpu, memory, and where there are such pods, gpus and gpu_model. pods.csv has name, cpu, memory
    and created_s, and where they are known runs_s (without it a pod runs on), gpus (shared below 1), namespace,
    priority, and node with bound_s: who ran where since when. The trace ends with the last arrival.
    """
    folder = path if path.is_dir() else path.parent
    amounts = {"name": any_text, "cpu": quantity(CPU), "memory": quantity(MEMORY)}
    nodes = [
        Node(
            row["name"], {CPU: row["cpu"], MEMORY: row["memory"], PODS: row.get("pods", _USUAL_PODS)},
            gpu_count=row.get("gpus", 0), gpu_model=row.get("gpu_model", ""),
        )
        for row in read_table(
            folder / NODES, amounts, {"pods": whole_number(1), "gpus": whole_number(), "gpu_model": any_text}
        )
    ]  # fmt: skip
    known = {node.name for node in nodes}
    further: dict[str, Parser] = {
        **dict.fromkeys(("runs_s", "bound_s", "gpus"), number()),
        "namespace": any_text, "node": choice(*known), "priority": whole_number(-_LARGEST_PRIORITY),
    }  # fmt: skip
    lives = []
    for line, row in read_lines(folder / PODS_FILE, {**amounts, "created_s": number()}, further):
        if ("node" in row) != ("bound_s" in row):
            raise UserError(f"{folder / PODS_FILE}, line {line}: has one of node and bound_s; expected both or neither")
        pod = Pod(
            row["name"], row.get("namespace", "default"), uid=f"{line}", priority=row.get("priority", 0),
            requests={CPU: row["cpu"], MEMORY: row["memory"]}, gpu=gpus_of(row.get("gpus", 0.0)),
        )  # fmt: skip
        if "node" in row:
            end_s = row["bound_s"] + row["runs_s"] if "runs_s" in row else None
            how = "succeeded" if end_s is not None else None
            lives.append(Life(pod, row["created_s"], row["bound_s"], row["node"], ended_s=end_s, how=how))  # type: ignore[arg-type]
        else:
            lives.append(unplaced(pod, row["created_s"], row.get("runs_s")))
    until_s = max((life.created_s if life.bound_s is None else life.bound_s for life in lives), default=0.0)
    return Converted(folder.resolve().name, standing(nodes), tuple(lives), {}, until_s)


def openb(path: Path, _options: Options) -> Converted:
    """Alibaba's openb GPU trace of 2023: a pod list (CSV) with its creation and deletion times, nodes beside it."""
    pods = traces.read_pods(path)
    nodes = traces.load_nodes(file_in(path.parent, traces.NODE_LIST))
    lives = [unplaced(replace(pod, scheduler_name="openb"), pod.created_s, pod.lifetime_s) for pod in pods]
    return Converted(path.name, standing(nodes), tuple(lives), {})


def seed_recording(path: Path, _options: Options) -> Converted:
    """data/sched_*.csv of the seeds: who was placed where, in this order; times are made up, a second a line."""
    sizes = path.with_name(f"{path.stem}.nodes.csv")
    columns = {"name": any_text, "cpu": quantity(CPU), "memory": quantity(MEMORY), "pods": whole_number(0)}
    nodes = [
        Node(row["name"], {CPU: row["cpu"], MEMORY: row["memory"], PODS: row["pods"]})
        for row in read_table(sizes, columns)
    ]
    columns = {
        "pod_name": any_text, "action": whole_number(0), "cpu_request": quantity(CPU),
        "memory_request": quantity(MEMORY),
    }  # fmt: skip
    lives = []
    for line, row in enumerate(read_table(path, columns)):
        if row["action"] >= len(nodes):
            raise bad_value(f"{path}, column action", row["action"], f"0 to {len(nodes) - 1}, a node's place")
        namespace, slash, name = row["pod_name"].partition("/")
        requests = {CPU: row["cpu_request"], MEMORY: row["memory_request"]}
        pod = Pod(name if slash else namespace, namespace if slash else "default", uid=f"{line}", requests=requests)
        lives.append(Life(pod, line * _STEP_S, line * _STEP_S, nodes[row["action"]].name))
    return Converted(path.name, standing(nodes), tuple(lives), {})


def seed_deployments(path: Path, options: Options) -> Converted:
    """deployment_data/*.csv of the seeds: what was created and deleted, in this order; a second a line, made up."""
    created: dict[str, tuple[Deployment, float]] = {}
    lives: list[Life] = []

    def leave(deployment: Deployment, since_s: float, until_s: float | None) -> None:
        lifetime_s = deployment.lifetime_s if until_s is None else until_s - since_s
        pods = deployment.pods("default-scheduler", uid_prefix=f"{since_s:g}/")
        lives.extend(unplaced(pod, since_s, lifetime_s) for pod in pods)

    for line, (deployment, action) in enumerate(read_deployments(path)):
        if action == "create":
            created[deployment.name] = deployment, line * _STEP_S
        else:
            leave(*created.pop(deployment.name), line * _STEP_S)
    for deployment, since_s in created.values():
        leave(deployment, since_s, None)
    return Converted(path.name, standing(workers(options.nodes)), tuple(lives), {})


def swf(path: Path, options: Options) -> Converted:
    """A log in the Standard Workload Format 2.2 (https://www.cs.huji.ac.il/labs/parallel/workload/swf.html).

    A job of more processors than a node has is a gang of pods. Nodes are as the header says (MaxNodes, MaxProcs), or
    `options.nodes` that hold the largest job together.
    """
    header: dict[str, int] = {}
    jobs: list[tuple[str, float, float, int, float]] = []
    left_out: Counter[str] = Counter()
    with opened(path) as file:
        for line, text in enumerate(file, start=1):
            if text.startswith(";"):
                key, _, value = text.lstrip("; ").partition(":")
                if value.split()[:1] and value.split()[0].isdigit():
                    header[key.strip()] = int(value.split()[0])
                continue
            cells = text.split()
            if not cells:
                continue
            try:
                fields = [float(cell) for cell in cells]
            except ValueError:
                fields = []
            if len(fields) != len(_SwfJob._fields) or not all(map(math.isfinite, fields)):
                raise UserError(f"{path}, line {line}: expected {len(_SwfJob._fields)} numbers of a job")
            run = _SwfJob(*fields)
            procs = int(run.asked_procs if run.asked_procs > 0 else run.used_procs)
            if procs <= 0 or run.run_s < 0:
                left_out["jobs that never ran, or without processors"] += 1
                continue
            memory_kib = run.asked_memory_kib if run.asked_memory_kib > 0 else max(run.used_memory_kib, 0.0)
            jobs.append((cells[0], run.submit_s, run.run_s, procs, memory_kib))
    most = max((procs for *_, procs, _ in jobs), default=1)
    count = header.get("MaxNodes", options.nodes)
    per_node = max(1, math.ceil(max(header.get("MaxProcs", 0), most if "MaxProcs" not in header else 0) / count))
    memory = math.ceil(max((memory_kib for *_, memory_kib in jobs), default=0.0)) * _KIB * per_node
    width = len(str(count - 1))
    nodes = [
        Node(f"node-{i:0{width}d}", {CPU: 1000 * per_node, MEMORY: memory, PODS: PODS_PER_NODE}) for i in range(count)
    ]
    lives = []
    for job, submit_s, run_s, procs, memory_kib in jobs:
        parts = math.ceil(procs / per_node)
        group = PodGroup(f"job-{job}", parts) if parts > 1 else None
        for part in range(parts):
            cores = min(per_node, procs - part * per_node)
            requests = {CPU: 1000 * cores, MEMORY: math.ceil(memory_kib * cores) * _KIB}
            pod = Pod(
                f"job-{job}-{part}", "swf", requests=requests, owner=f"Job/{job}", scheduler_name="swf", group=group
            )
            lives.append(unplaced(pod, submit_s, run_s))
    return Converted(path.name, standing(nodes), tuple(lives), left_out)


def alibaba_spot(folder: Path, _options: Options) -> Converted:
    """Alibaba's spot GPU trace of 2026 (cluster-trace-v2026-spot-gpu): node_info_df.csv and job_info_df.csv.

    Each of a job's `worker_num` instances asks for `cpu_request` cores and `gpu_request` GPUs of its model, and runs
    `duration` seconds. High-priority jobs have priority 1000, spot jobs 0. There is no memory in it.
    """
    columns = {"node_name": any_text, "gpu_model": any_text, "gpu_capacity_num": number(), "cpu_num": number()}
    nodes = [
        Node(
            f"node-{row['node_name']}", {CPU: round(1000 * row["cpu_num"]), PODS: PODS_PER_NODE},
            gpu_count=int(row["gpu_capacity_num"]), gpu_model=row["gpu_model"],
        )
        for row in read_table(file_in(folder, "node_info_df.csv"), columns)
    ]  # fmt: skip
    columns = {
        "job_name": any_text, "organization": any_text, "gpu_model": any_text, "job_type": any_text,
        **dict.fromkeys(("cpu_request", "gpu_request", "worker_num", "submit_time", "duration"), number()),
    }  # fmt: skip
    lives = []
    for row in read_table(file_in(folder, "job_info_df.csv"), columns):
        whole = row["gpu_request"] > 1
        gpu = GpuRequest(
            math.ceil(row["gpu_request"]), DEVICE_MILLI if whole else round(DEVICE_MILLI * row["gpu_request"]),
            frozenset({row["gpu_model"]} - {""}),
        )  # fmt: skip
        for worker in range(int(row["worker_num"])):
            pod = Pod(
                f"job-{row['job_name']}-{worker}", f"org-{row['organization']}",
                requests={CPU: round(1000 * row["cpu_request"])}, gpu=gpu, labels={"job_type": row["job_type"]},
                priority=1000 if row["job_type"] == "HP" else 0, owner=f"Job/{row['job_name']}",
                scheduler_name="alibaba-2026",
            )  # fmt: skip
            lives.append(unplaced(pod, row["submit_time"], row["duration"]))
    return Converted(folder.name, standing(nodes), tuple(lives), {})
