"""MaskablePPO of sb3-contrib on `aaml/Cluster-v0`: train it, compare it, and name it as a policy of AAML.

    python examples/sb3_maskable_ppo.py
    aaml evaluate --nodes 10 --policies kube-scheduler examples/sb3_maskable_ppo.py:ppo

The network sees all nodes in one row of numbers, so it runs on the number of nodes that it was trained with, and on no
other. `ppo_single_file.py` scores one node at a time and runs on any number.
"""

import argparse
import os
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

import numpy as np
import torch
from sb3_contrib import MaskablePPO

import aaml
from aaml.sim.sb3 import Sb3VecEnv, sb3_policy

FILE = os.environ.get("SB3_MODEL", "runs/sb3.zip")


@dataclass(frozen=True)
class Args:
    """Every field is a flag."""

    task: str = "balance"
    nodes: int = 10
    steps: int = 400_000  # decisions to learn from, of all clusters together
    envs: int = 64  # clusters in lockstep
    gamma: float = 0.5  # discount of a reward one decision later: the reward already says what a placement was worth
    seed: int = 0
    evaluate: int = 10  # unseen episodes for the comparison in the end; 0: none
    out: str = FILE  # file for the weights


def train(args: Args) -> MaskablePPO:
    """Return the model after `args.steps` decisions."""
    torch.set_num_threads(1)  # small networks gain nothing from more, and lose much on a busy machine
    clusters = Sb3VecEnv(args.envs, args.task, args.nodes, lookahead=0)  # a real cluster does not show the next pods
    model = MaskablePPO(
        "MlpPolicy", clusters, n_steps=128, batch_size=1024, n_epochs=4, learning_rate=1e-3, gamma=args.gamma,
        seed=args.seed, device="cpu", verbose=1,
    )  # fmt: skip
    model.learn(args.steps)
    clusters.close()
    return model


@cache
def _kept() -> Any:
    return sb3_policy(MaskablePPO.load(FILE, device="cpu"))


def ppo(context: Any) -> np.ndarray:
    """Score every node with the weights in `FILE`: the policy `examples/sb3_maskable_ppo.py:ppo`."""
    return _kept().scores(context)


def main() -> None:
    """Train, keep the weights, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for field in fields(Args):
        parser.add_argument(f"--{field.name}", type=type(field.default), default=field.default)
    args = Args(**vars(parser.parse_args()))
    model = train(args)
    model.save(args.out)
    if args.evaluate:
        task = aaml.task(args.task, nodes=args.nodes)
        seeds = range(1000, 1000 + args.evaluate)
        results = aaml.evaluate([model, "least-variance", "kube-scheduler"], task, seeds=seeds)
        print(results.compare("kube-scheduler"))


if __name__ == "__main__":
    main()
