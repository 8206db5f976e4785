"""Networks: any cluster size, order of nodes, padding, and the numpy twin."""

import numpy as np
import pytest
import torch

from aaml.learning.collate import collate
from aaml.learning.convolution import adjacency
from aaml.learning.inference import _FACTORS, FastNetwork, find_kinds
from aaml.learning.networks import NetworkSpec, make_network
from aaml.scheduling.observation import Observation

COMBINATIONS = [(encoder, head) for encoder in ("mlp", "gnn") for head in ("q", "actor", "critic")]


@pytest.mark.parametrize(("encoder", "head"), COMBINATIONS)
def test_one_network_takes_any_size_and_padding_changes_nothing(make, encoder, head):
    network = make_network(NetworkSpec(encoder=encoder, head=head), seed=1)
    observations = [make.random(n, n) for n in (1, 3, 10, 40)] + [make.random(7, 5, make.two_racks(7))]
    with torch.inference_mode():
        together = network(collate(observations))
        for row, observation in zip(together, observations, strict=True):
            alone = network(collate([observation]))[0]
            torch.testing.assert_close(row[: len(observation.mask)] if row.ndim else row, alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("encoder", "head"), COMBINATIONS)
def test_the_numpy_twin_gives_what_the_network_gives_and_follows_its_updates(make, encoder, head):
    network = make_network(NetworkSpec(encoder=encoder, head=head), seed=2)
    fast = FastNetwork(network)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    for observation in (make.random(10, 1), make.random(33, 2), make.random(6, 3, make.two_racks(6))):
        output = network(collate([observation]))
        np.testing.assert_allclose(fast(observation), output[0].detach().numpy(), rtol=1e-4, atol=1e-5)
        output.square().mean().backward()
        optimizer.step()


def repeated(make, kinds: int, nodes: int, *, racks: bool = False) -> tuple[Observation, np.ndarray]:
    """Return an observation in which many nodes look alike, and which kind each is of."""
    few, kind = make.random(kinds, 5), np.random.default_rng(1).integers(kinds, size=nodes)
    graph = make.two_racks(nodes) if racks else make.star(nodes)
    return Observation(few.nodes[kind], few.pairs[kind], few.pod, few.mask[kind], graph), kind


@pytest.mark.parametrize(("encoder", "head"), COMBINATIONS)
@pytest.mark.parametrize(("kinds", "racks"), [(1, False), (40, False), (100_000, False), (40, True)])
def test_nodes_that_look_alike_are_scored_once_and_counted_as_often_as_they_are(make, encoder, head, kinds, racks):
    network = make_network(NetworkSpec(encoder=encoder, head=head), seed=6)
    seen, kind = repeated(make, kinds, 300, racks=racks)
    with torch.inference_mode():
        output = network(collate([seen]))[0].numpy()
    scores = FastNetwork(network)(seen)
    np.testing.assert_allclose(scores, output, rtol=1e-4, atol=1e-5)
    if head != "critic" and not racks:
        for each in np.unique(kind):
            assert len(set(scores[kind == each].tolist())) == 1  # to the last bit: ties go to the first of them


def test_kinds_are_rows_that_are_equal_in_the_columns_that_count_and_in_the_mask():
    rng = np.random.default_rng(2)
    nodes, pairs = (rng.integers(2, size=(500, width)).astype(np.float32) for width in (3, 4))
    mask = rng.random(500) < 0.5
    kind, first, count = np.empty((3, 500), dtype=np.int64)
    found = find_kinds(nodes.view(np.uint32), 2, pairs.view(np.uint32), 3, mask, _FACTORS, kind, first, count)
    rows = [tuple(row) for row in np.column_stack([nodes[:, :2], pairs[:, :3], mask]).tolist()]
    in_order = list(dict.fromkeys(rows))  # 2^6 of them
    assert found == len(in_order) == 64
    assert kind.tolist() == [in_order.index(row) for row in rows]
    assert first[:found].tolist() == [rows.index(row) for row in in_order]
    assert count[:found].tolist() == [rows.count(row) for row in in_order]


@pytest.mark.parametrize("encoder", ["mlp", "gnn"])
def test_scores_follow_the_nodes_when_these_change_places(make, encoder):
    network = make_network(NetworkSpec(encoder=encoder), seed=3)
    observation = make.random(12, 4)
    order = np.random.default_rng(0).permutation(12)
    moved = Observation(
        observation.nodes[order], observation.pairs[order], observation.pod, observation.mask[order], observation.graph
    )
    with torch.inference_mode():
        scores, other = (network(collate([each]))[0] for each in (observation, moved))
    torch.testing.assert_close(scores[torch.from_numpy(order)], other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("encoder", ["mlp", "gnn"])
def test_twice_the_same_cluster_is_scored_like_the_cluster(make, encoder):
    """Every feature and every mean is the same when each node comes twice: no score may depend on the size itself."""
    network = make_network(NetworkSpec(encoder=encoder), seed=4)
    one = make.random(9, 6)
    two = Observation(
        np.concatenate([one.nodes, one.nodes]), np.concatenate([one.pairs, one.pairs]), one.pod,
        np.concatenate([one.mask, one.mask]), make.star(18),
    )  # fmt: skip
    with torch.inference_mode():
        scores, doubled = (network(collate([each]))[0] for each in (one, two))
    if encoder == "mlp":
        torch.testing.assert_close(doubled[:9], scores, rtol=1e-4, atol=1e-5)
    # A hub's mean counts itself once among N + 1: equal up to that, and more so the larger the cluster.
    assert (doubled[:9] - scores).abs().max() < 0.1 * max(1.0, float(scores.abs().max()))


def test_the_adjacency_is_a_mean_over_a_vertex_and_its_neighbours(make):
    edges = adjacency(make.star(3))
    dense = np.zeros((4, 4))
    for vertex in range(4):
        for entry in range(edges.offsets[vertex], edges.offsets[vertex + 1]):
            dense[vertex, edges.sources[entry]] += edges.weights[entry]
    expected = [[0.5, 0, 0, 0.5], [0, 0.5, 0, 0.5], [0, 0, 0.5, 0.5], [0.25, 0.25, 0.25, 0.25]]
    np.testing.assert_allclose(dense, expected)


def test_graph_layers_are_dense_products_with_that_adjacency(make):
    network = make_network(NetworkSpec(encoder="gnn"), seed=5)
    observation = make.random(5, 7, make.two_racks(5))
    graph = observation.graph
    dense = np.eye(graph.vertex_count, dtype=np.float32)
    dense[graph.edge_index[1], graph.edge_index[0]] = 1.0
    mean = torch.from_numpy(dense / dense.sum(axis=1, keepdims=True))
    hidden = torch.zeros(graph.vertex_count, observation.nodes.shape[1] + 1)
    hidden[:5, :-1] = torch.from_numpy(observation.nodes)
    hidden[5:, -1] = 1.0
    for number, layer in enumerate(network.encoder.layers):
        result = torch.relu(mean @ hidden @ layer.lin.weight.T + layer.bias)
        hidden = result if number == 0 else hidden + result
    torch.testing.assert_close(network.encoder(collate([observation]))[0], hidden[:5], rtol=1e-4, atol=1e-5)


def test_an_mlp_ignores_the_graph_and_a_gnn_asks_for_it(make):
    observation = make.random(4, 8)
    make_network(NetworkSpec(encoder="mlp"), 0)(collate([observation], graphs=False))
    with pytest.raises(ValueError, match="graphs"):
        make_network(NetworkSpec(encoder="gnn"), 0)(collate([observation], graphs=False))


def test_initial_weights_depend_on_the_seed_alone_and_leave_torchs_generator_alone():
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    one, same, other = (make_network(NetworkSpec(), seed) for seed in (1, 1, 2))
    assert torch.equal(torch.rand(1), expected)
    assert torch.equal(one.scorer.hidden.weight, same.scorer.hidden.weight)
    assert not torch.equal(one.scorer.hidden.weight, other.scorer.hidden.weight)
