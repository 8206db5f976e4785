"""The optimisers are torch's to the bit, and do not wait for torch's compiler."""

import subprocess
import sys

import pytest
import torch
from torch import nn

from aaml.learning.optim import make_optimizer

RATE = 0.05


@pytest.mark.parametrize("name", ["Adam", "AdamW", "RMSprop", "SGD"])
def test_a_step_is_that_of_torchs_optimiser_and_goes_on_from_its_state(name: str) -> None:
    inputs = torch.randn(6, 4)
    ours, theirs = nn.Linear(4, 2), nn.Linear(4, 2)
    theirs.load_state_dict(ours.state_dict())
    mine, torchs = make_optimizer(name, ours, RATE), getattr(torch.optim, name)(theirs.parameters(), lr=RATE)
    for step in range(5):
        for network, optimizer in ((ours, mine), (theirs, torchs)):
            optimizer.zero_grad(set_to_none=True)
            network(inputs).square().sum().backward()
            optimizer.step()
        assert torch.equal(ours.weight, theirs.weight)
        if step == 2:  # each goes on from what the other has kept
            kept, given = mine.state_dict(), torchs.state_dict()
            assert kept["param_groups"] == given["param_groups"]
            mine, torchs = make_optimizer(name, ours, 1.0), getattr(torch.optim, name)(theirs.parameters(), lr=1.0)
            mine.load_state_dict(given)
            torchs.load_state_dict(kept)


def test_a_process_that_learns_does_not_import_torchs_compiler() -> None:
    code = """if True:
        import sys
        import torch
        from aaml.learning.graph import network_graph
        from aaml.learning.networks import NetworkSpec, make_network
        from aaml.learning.optim import descend, make_optimizer
        layer = torch.nn.Linear(4, 2)
        descend(layer(torch.ones(1, 4)).sum(), layer, make_optimizer("Adam", layer, 0.1), 1.0)
        network_graph(make_network(NetworkSpec(), 0))
        print({"torch._dynamo", "torch.distributed.tensor", "sympy"} & set(sys.modules) or "none of them")"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (said.stdout, said.stderr) == ("none of them\n", "")
