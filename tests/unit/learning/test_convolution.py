"""The compiled graph convolution against torch-geometric's layer, which defines it."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some

from aaml.cluster.topology import Graph
from aaml.learning.collate import Batch
from aaml.learning.convolution import Convolution, adjacency, stacked, star_of_kinds, stars
from aaml.learning.networks import GraphLayer, NetworkSpec, make_network

WIDTH = 5


def defining_layer(width):
    """Return torch-geometric's layer; to import it takes seconds, for which no other worker waits."""
    from torch_geometric.nn import GCNConv

    return GCNConv(WIDTH, width, normalize=False)


@some.composite
def graphs(draw):
    """Any graph over some nodes and hubs, vertices without neighbours among them."""
    nodes, hubs = draw(some.integers(1, 6)), draw(some.integers(1, 3))
    count = nodes + hubs
    pairs = draw(some.sets(some.tuples(some.integers(0, count - 1), some.integers(0, count - 1)), max_size=15))
    linked = np.array([(a, b) for a, b in pairs if a < b], dtype=np.int64).reshape(-1, 2).T
    return Graph(nodes, np.hstack([linked, linked[::-1]]), tuple(f"hub {i}" for i in range(hubs)))


def layer_and_inputs(count, seed):
    torch.manual_seed(seed)
    layer = defining_layer(WIDTH)
    torch.nn.init.normal_(layer.bias)
    return layer, torch.randn(count, WIDTH, requires_grad=True), torch.randn(count, WIDTH)


def test_weights_are_drawn_and_named_as_the_layer_draws_and_names_them():
    """So that what was trained with it is the same to the bit, and its checkpoints load."""
    torch.manual_seed(3)
    defined = defining_layer(7).state_dict()
    after = torch.rand(3)
    torch.manual_seed(3)
    ours = GraphLayer(WIDTH, 7).state_dict()
    torch.testing.assert_close(torch.rand(3), after, rtol=0, atol=0)
    assert list(ours) == list(defined)
    for name, values in defined.items():
        torch.testing.assert_close(ours[name], values, rtol=0, atol=0)


def gradients_of(out, wanted, layer, inputs):
    return out, *torch.autograd.grad((out * wanted).sum(), [inputs, layer.lin.weight, layer.bias])


@settings(max_examples=60, deadline=None)
@given(some.lists(graphs(), min_size=1, max_size=4), some.integers(0, 1000))
def test_the_compiled_twin_gives_the_layers_values_and_gradients(several, seed):
    edges, _ = stacked(several)
    layer, inputs, wanted = layer_and_inputs(edges.vertex_count, seed)
    defined = torch.relu(layer(inputs, *edges.edges(inputs.device)))
    twin = Convolution.apply(inputs @ layer.lin.weight.T, layer.bias, edges)
    ours, theirs = (gradients_of(out, wanted, layer, inputs) for out in (twin, defined))
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)


def test_stacked_stars_are_stars_beside_each_other_and_padding_has_no_entries(make):
    ours, (theirs, hubs) = stars(np.array([2, 1, 3]), 3), stacked([make.star(2), make.star(1), make.star(3)])
    assert hubs == 1
    for name in ("offsets", "sources", "weights"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))
    assert np.diff(ours.offsets).tolist() == [2, 2, 0, 3, 2, 0, 0, 2, 2, 2, 2, 4]


def test_a_leaf_may_stand_for_many_nodes_that_look_alike(make):
    values, bias = np.random.default_rng(0).normal(size=(3, WIDTH)).astype(np.float32), torch.zeros(WIDTH)
    few = Convolution.apply(torch.from_numpy(values), bias, star_of_kinds(np.array([3.0, 1.0], dtype=np.float32)))
    each = torch.from_numpy(values[[0, 0, 0, 1, 2]])
    all_of_them = Convolution.apply(each, bias, adjacency(make.star(4)))
    torch.testing.assert_close(few, all_of_them[[0, 3, 4]])


@pytest.mark.parametrize("head", ["q", "actor"])
def test_a_network_is_trained_alike_with_the_layer_and_with_its_twin(monkeypatch, head):
    network = make_network(NetworkSpec(encoder="gnn", head=head), 3)
    sizes, generator = torch.tensor([4, 7]), torch.Generator().manual_seed(1)
    features = [len(network.spec.node_features), len(network.spec.pair_features)]
    nodes, pairs = (torch.rand(2, 7, size, generator=generator) for size in features)
    own = (torch.arange(7) < sizes[:, None]).unsqueeze(2)
    pod, mask = torch.rand(2, network.spec.pod_size, generator=generator), own[:, :, 0]

    def outcome():
        network.zero_grad()
        scores = network(Batch(nodes * own, pairs * own, pod, mask, counts=sizes))[mask]
        scores.square().sum().backward()
        return scores.detach(), *(parameter.grad.clone() for parameter in network.parameters())

    twin = outcome()
    monkeypatch.setattr(network.encoder, "_compiled", network.encoder._defined)
    for mine, other in zip(twin, outcome(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-4)
