"""Shipped graph networks decide as torch-geometric's layers with their weights do."""

from pathlib import Path

import numpy as np
import pytest
import torch

from aaml.evaluation.policies import load
from aaml.learning.checkpoint import load_checkpoint
from aaml.learning.collate import collate
from aaml.learning.networks import make_network
from aaml.scheduling.play import play
from aaml.sim.tasks import find_task

MODELS = Path(__file__).parents[2] / "models"


@pytest.mark.parametrize("model", ["Actor_acgnn_balance_s0", "GNN_Model_gnn_balance_s0", "Actor_acgnn_varied_s0"])
@pytest.mark.parametrize(("nodes", "pods"), [(7, 60), (260, 15)])
def test_a_shipped_model_chooses_what_the_layers_choose(model, nodes, pods):
    path = MODELS / f"{model}.pth"
    policy, checkpoint = load(path), load_checkpoint(path)
    network = make_network(checkpoint.spec, 0)
    network.load_state_dict(checkpoint.states["model"])
    network.encoder._compiled = network.encoder._defined
    short = []

    class Compared:
        name, observation_spec = "compared", policy.observation_spec

        def act(self, context):
            with torch.inference_mode():
                scores = network(collate([context.observation]))[0].numpy()
            best, decision = np.where(context.mask, scores, -np.inf).max(), policy.act(context)
            short.append(best - scores[decision.node_index])
            return decision

    play(find_task("balance").build(3, nodes, pods=pods), Compared())
    assert len(short) == pods
    np.testing.assert_allclose(short, 0.0, atol=1e-4)
