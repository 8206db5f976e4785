"""PPO for placing pods, all on one page: `python examples/ppo_single_file.py`, a few minutes on two cores.

It needs the Gymnasium environment and torch, nothing else of the platform. There is no critic: a group of clusters sees
the same arrivals, and what they earn on average is the baseline. What arrives next moves a return far more than where
the last pod went; within a group only the choices differ (Mao et al., Variance reduction for reinforcement learning in
input-driven environments, ICLR 2019). The update is that of Schulman et al., Proximal policy optimization algorithms,
2017, eq. 7. One network scores every node, so what it learned on 10 nodes runs on any number of them.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn

import aaml


@dataclass(frozen=True)
class Args:
    """Every field is a flag."""

    task: str = "balance"
    nodes: int = 10
    steps: int = 400_000  # decisions to learn from, of all clusters together
    envs: int = 64  # clusters in lockstep
    group_size: int = 8  # of them see the same arrivals
    horizon: int = 128  # decisions of each cluster between updates
    gamma: float = 0.5  # discount of a reward one decision later: the reward already says what a placement was worth
    learning_rate: float = 1e-2
    clip: float = 0.2  # how far an update may move the policy
    epochs: int = 4  # passes over what was gathered
    batch: int = 1024  # decisions of a gradient step
    entropy: float = 0.001  # reward for staying undecided, in nats; falls to 0
    width: int = 32  # of the hidden layers
    seed: int = 0
    threads: int = 1  # of torch; small networks gain nothing from more
    evaluate: int = 10  # unseen episodes for the comparison in the end; 0: none
    rivals: str = "least-variance,kube-scheduler,random"  # or model files; the first is what others are compared with
    out: str = ""  # file for the weights


@dataclass
class Seen:
    """What is seen of B clusters with N nodes: nodes [B, N, F], pairs [B, N, K], pod [B, P], mask bool [B, N]."""

    nodes: Tensor
    pairs: Tensor
    pod: Tensor
    mask: Tensor

    @classmethod
    def of(cls, observation: dict[str, np.ndarray]) -> "Seen":
        """Take over an observation of the environment in the mode "dict"."""
        parts = (torch.as_tensor(np.asarray(observation[name])) for name in ("nodes", "pairs", "pod"))
        return cls(*parts, mask=torch.as_tensor(np.asarray(observation["mask"])).bool())

    def __getitem__(self, rows: Tensor) -> "Seen":
        return Seen(self.nodes[rows], self.pairs[rows], self.pod[rows], self.mask[rows])

    @staticmethod
    def joined(several: "list[Seen]") -> "Seen":
        """Put batches one behind the other."""
        return Seen(*(torch.cat([getattr(each, field.name) for each in several]) for field in fields(Seen)))


class Scorer(nn.Module):
    """The same small network for every node: its features, this pod on it, the pod, and the mean of all nodes."""

    def __init__(self, seen: Seen, width: int) -> None:
        super().__init__()
        features, pairs, pod = seen.nodes.shape[2], seen.pairs.shape[2], seen.pod.shape[1]
        self.hidden = nn.Sequential(
            nn.Linear(2 * features + pairs + pod, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()
        )
        self.out = nn.Linear(width, 1)
        nn.init.zeros_(self.out.weight)  # begin undecided
        self.direct = nn.Linear(pairs, 1, bias=False)  # a good linear rule is found within a few updates
        nn.init.zeros_(self.direct.weight)

    def forward(self, seen: Seen) -> Tensor:
        """Return [B, N] scores; those of nodes where the pod may not go are very low."""
        count = seen.nodes.shape[1]
        shared = torch.cat([seen.nodes.mean(dim=1), seen.pod], dim=1).unsqueeze(1).expand(-1, count, -1)
        hidden = self.hidden(torch.cat([seen.nodes, seen.pairs, shared], dim=2))
        return (self.out(hidden) + self.direct(seen.pairs)).squeeze(2).masked_fill(~seen.mask, -1e9)


def advantages(rewards: np.ndarray, over: np.ndarray, gamma: float, group_size: int) -> np.ndarray:
    """Return [T, B] by how much each decision's discounted return is above the group's mean.

    `rewards` and `over` are [T, B], oldest first; a return ends where the episode is over, and with the last row.
    """
    returns = np.zeros_like(rewards)
    running = np.zeros(rewards.shape[1])
    for t in range(len(rewards) - 1, -1, -1):
        running = rewards[t] + gamma * running * ~over[t]
        returns[t] = running
    groups = returns.reshape(len(returns), -1, group_size)
    return (groups - groups.mean(axis=2, keepdims=True)).reshape(returns.shape)


def train(args: Args) -> Scorer:
    """Return the network after `args.steps` decisions."""
    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    envs = gymnasium.make_vec(
        "aaml/Cluster-v0", num_envs=args.envs, vectorization_mode="vector_entry_point", task=args.task,
        nodes=args.nodes, group_size=args.group_size, observation="dict", lookahead=0,
    )  # fmt: skip
    observation, _ = envs.reset(seed=args.seed)
    seen = Seen.of(observation)
    network = Scorer(seen, args.width)
    optimizer = torch.optim.Adam(network.parameters(), lr=args.learning_rate)
    updates = max(1, args.steps // (args.envs * args.horizon))
    metrics: list[float] = []
    for update in range(updates):
        left = 1.0 - update / updates  # learning rate and entropy fall to 0
        optimizer.param_groups[0]["lr"] = args.learning_rate * left
        gathered, actions, old, rewards, over = [], [], [], [], []
        for _ in range(args.horizon):
            with torch.no_grad():
                choice = torch.distributions.Categorical(logits=network(seen))
                action = choice.sample()
            gathered.append(seen)
            actions.append(action)
            old.append(choice.log_prob(action))
            observation, reward, terminated, truncated, info = envs.step(action.numpy())
            rewards.append(reward)
            over.append(terminated | truncated)
            if "final_info" in info:
                metrics += info["final_info"]["metric"][info["_final_info"]].tolist()
            seen = Seen.of(observation)

        advantage = torch.as_tensor(
            advantages(np.stack(rewards), np.stack(over), args.gamma, args.group_size), dtype=torch.float32
        ).flatten()
        advantage /= advantage.std() + 1e-8
        batch, action, old_log = Seen.joined(gathered), torch.cat(actions), torch.cat(old)
        for _ in range(args.epochs):
            for rows in torch.randperm(len(action)).split(args.batch):
                choice = torch.distributions.Categorical(logits=network(batch[rows]))
                ratio = (choice.log_prob(action[rows]) - old_log[rows]).exp()
                gain = advantage[rows]
                kept = torch.minimum(ratio * gain, ratio.clamp(1.0 - args.clip, 1.0 + args.clip) * gain)
                loss = -kept.mean() - args.entropy * left * choice.entropy().mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(network.parameters(), 1.0)
                optimizer.step()
        if (update + 1) % max(1, updates // 10) == 0:
            last = np.mean(metrics[-args.envs :]) if metrics else float("nan")
            print(
                f"{(update + 1) * args.envs * args.horizon:>9,} decisions: metric of the last episodes {last:.5f}",
                flush=True,
            )
    envs.close()
    return network


def policy(network: Scorer) -> Callable[[Any], np.ndarray]:
    """Return the network as a function that scores every node, which is what `aaml.evaluate` takes."""

    def one_file_ppo(context: Any) -> np.ndarray:
        shown = context.observation
        seen = Seen.of({name: getattr(shown, name)[None] for name in ("nodes", "pairs", "pod", "mask")})
        with torch.no_grad():
            return network(seen)[0].numpy()

    return one_file_ppo


def main() -> None:
    """Train, keep the weights, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for field in fields(Args):
        parser.add_argument(f"--{field.name}", type=type(field.default), default=field.default)
    args = Args(**vars(parser.parse_args()))
    network = train(args)
    if args.out:
        torch.save(network.state_dict(), args.out)
    if args.evaluate:
        rivals = args.rivals.split(",")
        seeds = range(1000, 1000 + args.evaluate)
        task = aaml.task(args.task, nodes=args.nodes)
        results = aaml.evaluate([policy(network), *rivals], task, seeds=seeds, workers=1)
        print(results.compare(Path(rivals[0]).stem))


if __name__ == "__main__":
    main()
