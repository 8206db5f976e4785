"""Formats that are lists of training jobs with their numbers of GPUs: Philly's."""

from collections import Counter
from pathlib import Path

from aaml.errors import bad_value
from aaml.workload.gangs import JobShape, Racks
from aaml.workload.philly import FILE, read_jobs
from aaml.workload.trace.formats.common import Converted, Options, file_in, standing
from aaml.workload.trace.formats.tables import unplaced


def philly(path: Path, options: Options) -> Converted:
    """Jobs of Microsoft's Philly clusters: timestamp, duration, num_gpus, gpu_time, cluster (a virtual cluster).

    A job of at most a node's GPUs is a pod, a larger one a pod group whose pods all start together, in one rack where
    there are racks and one is large enough. A virtual cluster is a namespace. The record knows neither nodes nor CPU:
    there are `options.nodes` nodes, and pods ask for GPUs alone.
    """
    file = file_in(path, FILE) if path.is_dir() else path
    jobs = read_jobs(file)
    largest = max((job.gpus for job in jobs), default=0)
    fewest = -(-largest // options.gpus_per_node)
    if fewest > options.nodes:
        raise bad_value(
            "nodes", options.nodes, f"at least {fewest} of {options.gpus_per_node} GPUs: a job asks for {largest}"
        )
    racks = Racks((options.nodes_per_rack,) if options.nodes_per_rack else (), options.gpus_per_node)
    per_rack = racks.largest(options.nodes)
    shape = JobShape(options.gpus_per_node, per_rack, scheduler_name="philly")
    left_out: Counter[str] = Counter()
    lives = []
    for number, job in enumerate(jobs):
        pods = shape.pods(f"job-{number}", job.queue, job.gpus)
        if len(pods) > per_rack > 0:
            left_out["requirements of one rack, by jobs larger than a rack"] += 1
        lives += [unplaced(pod, job.submitted_s, job.duration_s) for pod in pods]
    return Converted(file.name, standing(racks(options.nodes)), tuple(lives), left_out)
