"""The graph of a network's computation, as TensorBoard shows it."""

import warnings

import torch
from torch import Tensor, nn
from torch.utils.tensorboard._pytorch_graph import graph

from aaml.learning.collate import Batch
from aaml.learning.networks import GraphLayer, Network

_NODES = 3  # of the cluster that is computed; the graph is the same for any


def network_graph(network: Network) -> bytes:
    """Trace a network on a star of a few nodes and return its graph, a serialised `GraphDef`."""
    spec = network.spec
    example = (
        torch.zeros(1, _NODES, len(spec.node_features)), torch.zeros(1, _NODES, len(spec.pair_features)),
        torch.zeros(1, spec.pod_size), torch.ones(1, _NODES, dtype=torch.bool), torch.tensor([_NODES]),
    )  # fmt: skip
    for part in network.modules():
        if isinstance(part, GraphLayer):
            part.layer()  # made within a trace it would be traced
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # torch tells of branches that a trace takes for fixed; a graph may
        traced, _ = graph(TracedNetwork(network), example)  # type: ignore[no-untyped-call]
    result: bytes = traced.SerializeToString()
    return result


class TracedNetwork(nn.Module):
    """The network as a function of tensors alone, which is what can be traced."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network

    def forward(self, nodes: Tensor, pairs: Tensor, pod: Tensor, mask: Tensor, counts: Tensor) -> Tensor:
        """Return what the network says of the batch."""
        result: Tensor = self.network(Batch(nodes, pairs, pod, mask, counts=counts))
        return result
