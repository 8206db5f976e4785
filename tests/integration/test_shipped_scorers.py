"""The models that ship keep what docs/benchmark/ says of them, on episodes that nothing was tuned on."""

from pathlib import Path

import numpy as np

from aaml.episodes.flow import Flow
from aaml.episodes.kube_flow import KubeFlow
from aaml.evaluation.evaluate import evaluate
from aaml.learning.linear import load_linear
from aaml.policies.kube_scores.config import KubeSchedulerConfig
from aaml.sim.tasks import find_task
from aaml.training.linear import start_weights

ROOT = Path(__file__).parents[2]
MODELS = ROOT / "models"


def test_the_scorer_of_compress_keeps_more_nodes_empty_than_most_allocated():
    weights, usual = load_linear(MODELS / "Linear_linear_compress_s1.json").weights, start_weights("most-allocated")
    gains = []
    for seed in range(40):
        flow = Flow.of(find_task("compress").build(seed, 40))
        name = "mean_empty_fraction"
        gains.append(flow.play(weights)[name] - flow.play(usual)[name])
    assert np.mean(gains) > 2 * np.std(gains, ddof=1) / np.sqrt(len(gains))


def test_the_networks_of_compress_gain_what_the_scorer_gains_that_they_are_copies_of():
    names = ("Actor_acdqn", "Actor_acgnn", "DQN_Model_dqn", "GNN_Model_gnn")
    networks = [f"{name}={MODELS / name}_compress_s0.pth" for name in names]
    frame = evaluate(["most-allocated", *networks], "compress", range(8), 40, progress=False).frame()
    empty = frame.pivot_table(index="seed", columns="policy", values="mean_empty_fraction")
    gains = empty[list(names)].sub(empty["most-allocated"], axis=0)
    assert (gains.mean() > 0.001).all()
    assert gains.mean(axis=1).mean() > 2 * gains.mean(axis=1).std() / np.sqrt(len(gains))


def test_the_scorer_of_waiting_shortens_the_longest_waits_and_the_mean():
    scorer, names = load_linear(MODELS / "Linear_linear_waiting_s0.json"), ("waiting_mean_s", "waiting_p99_s")
    waits = np.empty((2, 100, len(names)))
    for seed in range(100):
        cluster = find_task("waiting").build(seed, 10)
        ours = Flow.of(cluster, scorer.observation_spec).play(scorer.weights, scorer.queue_sort)
        usual = KubeFlow.of(cluster).play(KubeSchedulerConfig())
        waits[:, seed] = [[metrics[name] for name in names] for metrics in (ours, usual)]
    less = waits[1] - waits[0]
    assert (less.mean(axis=0) > 2 * less.std(axis=0, ddof=1) / np.sqrt(len(less))).all()
    assert waits[0, :, 1].mean() < 0.8 * waits[1, :, 1].mean()


def test_agents_of_varied_workloads_spread_a_fleet_of_unequal_nodes_that_they_never_saw():
    uneven = f"{ROOT / 'examples' / 'other_workloads.py'}:uneven"
    names = ("Actor_acdqn", "Actor_acgnn", "DQN_Model_dqn", "GNN_Model_gnn")
    policies = ("least-variance", *(f"{name}={MODELS / name}_varied_s0.pth" for name in names))
    frame = evaluate(policies, uneven, range(8), 20, progress=False).compare("least-variance").frame()
    assert (frame.set_index("policy").ratio_high[list(names)] < 1.0).all()
