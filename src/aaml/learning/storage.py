"""Experience, and many items of it as a few tensors, so that a training run goes on from disk to the last bit.

Items share observations (what follows one step is seen by the next) and observations share graphs; each is kept once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from aaml.cluster.topology import Graph
from aaml.scheduling.observation import Observation


@dataclass(frozen=True, slots=True)
class Experience:
    """An n-step transition: `reward` is the discounted sum of the n rewards, `discount` what the value after counts.

    `discount` is gamma^n, 0 where the episode was terminated (`next_observation` is None then).
    """

    observation: Observation
    action: int
    reward: float
    discount: float
    next_observation: Observation | None


def pack(items: Sequence[Experience]) -> dict[str, Any]:
    """Return tensors and plain values that `unpack` makes the items from."""
    if not items:
        return {"count": 0}
    seen: dict[int, tuple[int, Observation]] = {}
    for item in items:
        for observation in (item.observation, item.next_observation):
            if observation is not None:
                seen.setdefault(id(observation), (len(seen), observation))
    observations = [observation for _, observation in seen.values()]
    graphs: dict[int, tuple[int, Graph]] = {}
    for observation in observations:
        graphs.setdefault(id(observation.graph), (len(graphs), observation.graph))
    following = [-1 if item.next_observation is None else seen[id(item.next_observation)][0] for item in items]
    return {
        "count": len(items),
        "graphs": [
            {"nodes": graph.node_count, "edges": torch.from_numpy(graph.edge_index), "hubs": list(graph.hubs)}
            for _, graph in graphs.values()
        ],
        "graph": [graphs[id(observation.graph)][0] for observation in observations],
        "rows": [len(observation.mask) for observation in observations],
        "nodes": torch.from_numpy(np.concatenate([observation.nodes for observation in observations])),
        "pairs": torch.from_numpy(np.concatenate([observation.pairs for observation in observations])),
        "mask": torch.from_numpy(np.concatenate([observation.mask for observation in observations])),
        "pod": torch.from_numpy(np.stack([observation.pod for observation in observations])),
        "observation": [seen[id(item.observation)][0] for item in items],
        "next": following,
        "action": [item.action for item in items],
        "reward": [item.reward for item in items],
        "discount": [item.discount for item in items],
    }


def unpack(packed: dict[str, Any]) -> list[Experience]:
    """Return the items that `pack` was given."""
    if not packed["count"]:
        return []
    graphs = [Graph(each["nodes"], each["edges"].numpy(), tuple(each["hubs"])) for each in packed["graphs"]]
    ends = np.cumsum(packed["rows"])[:-1]
    parts = [np.split(packed[name].numpy(), ends) for name in ("nodes", "pairs", "mask")]
    observations = [
        Observation(nodes, pairs, pod, mask, graphs[graph])
        for nodes, pairs, mask, pod, graph in zip(*parts, packed["pod"].numpy(), packed["graph"], strict=True)
    ]
    return [
        Experience(observations[first], action, reward, discount, None if following < 0 else observations[following])
        for first, action, reward, discount, following in zip(
            packed["observation"], packed["action"], packed["reward"], packed["discount"], packed["next"], strict=True
        )
    ]
