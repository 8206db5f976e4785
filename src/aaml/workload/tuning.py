"""How the published GPU-sharing runs make a workload of a trace.

They shuffle its pods, sample copies up to a target, and rank the nodes (Weng et al., USENIX ATC 2023). The draws come
from Go's generator in a fixed order, so a seed means the same pods here.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from aaml.cluster.objects import Node, Pod
from aaml.workload.gorand import GoRand

IntArray = npt.NDArray[np.int64]

_DRAWS_BEFORE_NODE_ORDER = 10  # what the published program draws between tuning and naming the nodes


@dataclass(frozen=True, slots=True)
class TunedWorkload:
    """One seeded run: the pods that arrive and the order of nodes with the same score.

    `pods` int64 [T] are rows of the trace's pods in the order of arrival. Of several nodes with the same score that
    with the smallest `node_rank`, int64 [N], is taken.
    """

    pods: IntArray
    node_rank: IntArray


def tune(pods: Sequence[Pod], nodes: Sequence[Node], seed: int, target: float = 1.3) -> TunedWorkload:
    """Shuffle `pods` and sample copies of them, or drop some, until they ask for `target` of the nodes' GPU capacity.

    Rows in the result are those of `pods` and `nodes` as given. A sampled pod that would go beyond the target ends the
    sampling. As in the published program the test counts one of its devices, and the sum all of them.
    """
    stream = GoRand(seed)
    stream.int63()
    by_name = sorted(range(len(pods)), key=lambda row: pods[row].name)
    arrivals = list(by_name)
    stream.shuffle(arrivals)
    limit = target * 1000 * sum(node.gpu_count for node in nodes)
    total = sum(pod.gpu.total_milli for pod in pods)
    if total > limit:
        while arrivals and total > limit:
            total -= pods[arrivals.pop(stream.intn(len(arrivals)))].gpu.total_milli
    else:
        while arrivals:
            row = by_name[stream.intn(len(by_name))]
            if pods[row].gpu.count > 0 and total + pods[row].gpu.milli > limit:
                break
            arrivals.append(row)
            total += pods[row].gpu.total_milli
    for _ in range(_DRAWS_BEFORE_NODE_ORDER):
        stream.int63()
    permutation = stream.perm(len(nodes))
    rank = np.empty(len(nodes), dtype=np.int64)
    for position, row in enumerate(sorted(range(len(nodes)), key=lambda row: nodes[row].name)):
        rank[row] = permutation[position]
    return TunedWorkload(np.array(arrivals, dtype=np.int64), rank)
