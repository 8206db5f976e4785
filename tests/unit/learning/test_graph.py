"""The graph of a network as TensorBoard shows it: its parts by name."""

import pytest
from tensorboard.compat.proto.graph_pb2 import GraphDef

from aaml.learning.graph import network_graph
from aaml.learning.networks import NetworkSpec, make_network


@pytest.mark.parametrize("encoder", ["mlp", "gnn"])
@pytest.mark.parametrize(("head", "part"), [("q", "scorer"), ("actor", "scorer"), ("critic", "value")])
def test_the_parts_of_each_network_are_in_its_graph(encoder, head, part):
    graph = GraphDef.FromString(network_graph(make_network(NetworkSpec(encoder=encoder, head=head), 0)))
    names = "\n".join(node.name for node in graph.node)
    for each in ("encoder", "pool", part):
        assert f"[{each}]" in names
