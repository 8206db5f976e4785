"""Double dueling DQN for placing pods, all on one page: `python examples/dqn_single_file.py`, minutes on two cores.

It needs the Gymnasium environment and torch, nothing else of the platform. The parts: a replay buffer of plain arrays,
a network that chooses the next node and a slow copy that values it (van Hasselt et al., Double Q-learning, 2016), a
value of the cluster plus an advantage of each node (Wang et al., Dueling network architectures, 2016), and a chance to
explore that falls. One network values every node, so what it learned on 10 nodes runs on any number of them.
"""

import argparse
import copy
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

import aaml


@dataclass(frozen=True)
class Args:
    """Every field is a flag."""

    task: str = "balance"
    nodes: int = 10
    steps: int = 60_000  # decisions to learn from, of all clusters together
    envs: int = 16  # clusters in lockstep
    gamma: float = 0.5  # discount of a reward one decision later: the reward already says what a placement was worth
    learning_rate: float = 1e-3
    buffer: int = 20_000  # decisions kept
    batch: int = 256  # of them learned from at a time
    begin: int = 1_000  # decisions before the first update
    copy_every: int = 100  # updates between copies to the slow network
    epsilon: float = 1.0  # chance to explore at first
    least_epsilon: float = 0.02  # and from the middle of the training on
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


class Scorer(nn.Module):
    """Values of nodes: the same small network for every node, and the value of the cluster (dueling)."""

    def __init__(self, seen: Seen, width: int) -> None:
        super().__init__()
        features, pairs, pod = seen.nodes.shape[2], seen.pairs.shape[2], seen.pod.shape[1]
        self.hidden = nn.Sequential(
            nn.Linear(2 * features + pairs + pod, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()
        )
        self.out = nn.Linear(width, 1)
        self.direct = nn.Linear(pairs, 1, bias=False)  # a good linear rule is found within a few updates
        nn.init.zeros_(self.direct.weight)
        self.value = nn.Sequential(nn.Linear(features + pod, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, seen: Seen) -> Tensor:
        """Return [B, N] action values; those of nodes where the pod may not go are very low."""
        count = seen.nodes.shape[1]
        shared = torch.cat([seen.nodes.mean(dim=1), seen.pod], dim=1)
        spread = shared.unsqueeze(1).expand(-1, count, -1)
        hidden = self.hidden(torch.cat([seen.nodes, seen.pairs, spread], dim=2))
        advantage = (self.out(hidden) + self.direct(seen.pairs)).squeeze(2)
        choices = seen.mask.sum(dim=1, keepdim=True).clamp(min=1)
        mean = (advantage * seen.mask).sum(dim=1, keepdim=True) / choices
        return (self.value(shared) + advantage - mean).masked_fill(~seen.mask, -1e9)


class Replay:
    """The last decisions, as arrays that are made once and written over."""

    def __init__(self, room: int, first: Seen) -> None:
        self.now, self.next = (self._empty(room, first) for _ in range(2))
        self.action = torch.zeros(room, dtype=torch.int64)
        self.reward, self.goes_on = torch.zeros(room), torch.zeros(room)
        self.room, self.written = room, 0

    @staticmethod
    def _empty(room: int, like: Seen) -> Seen:
        return Seen(*(torch.zeros(room, *part.shape[1:], dtype=part.dtype) for part in vars(like).values()))

    def add(self, now: Seen, action: Tensor, reward: np.ndarray, over: np.ndarray, after: Seen) -> None:
        """Write B decisions; where an episode is over, what comes next counts for nothing."""
        rows = torch.arange(self.written, self.written + len(action)) % self.room
        for mine, given in ((self.now, now), (self.next, after)):
            for part, values in zip(vars(mine).values(), vars(given).values(), strict=True):
                part[rows] = values
        self.action[rows] = action
        self.reward[rows] = torch.as_tensor(reward, dtype=torch.float32)
        self.goes_on[rows] = torch.as_tensor(~over, dtype=torch.float32)
        self.written += len(action)

    def sample(self, count: int) -> Tensor:
        """Return rows drawn evenly."""
        return torch.randint(min(self.written, self.room), (count,))


def loss_of(network: Scorer, slow: Scorer, replay: Replay, rows: Tensor, gamma: float) -> Tensor:
    """Return the mean Huber loss of the chosen nodes' values towards reward + gamma * value of the next best node."""
    with torch.no_grad():
        after = replay.next[rows]
        best = network(after).argmax(dim=1, keepdim=True)
        value = slow(after).gather(1, best).squeeze(1)
        value = torch.where(after.mask.any(dim=1), value, torch.zeros_like(value))
        target = replay.reward[rows] + gamma * replay.goes_on[rows] * value
    chosen = network(replay.now[rows]).gather(1, replay.action[rows].unsqueeze(1)).squeeze(1)
    return functional.huber_loss(chosen, target)


def train(args: Args) -> Scorer:
    """Return the network after `args.steps` decisions."""
    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    envs = gymnasium.make_vec(
        "aaml/Cluster-v0", num_envs=args.envs, vectorization_mode="vector_entry_point", task=args.task,
        nodes=args.nodes, observation="dict", lookahead=0,
    )  # fmt: skip
    observation, _ = envs.reset(seed=args.seed)
    seen = Seen.of(observation)
    network = Scorer(seen, args.width)
    slow = copy.deepcopy(network)
    optimizer = torch.optim.Adam(network.parameters(), lr=args.learning_rate)
    replay = Replay(args.buffer, seen)
    rounds, updates = max(1, args.steps // args.envs), 0
    metrics: list[float] = []
    for number in range(rounds):
        epsilon = max(args.least_epsilon, args.epsilon * (1.0 - 2.0 * number / rounds))
        with torch.no_grad():
            greedy = network(seen).argmax(dim=1)
        chance = torch.multinomial(seen.mask.float(), 1).squeeze(1)
        action = torch.where(torch.rand(args.envs) < epsilon, chance, greedy)
        observation, reward, terminated, truncated, info = envs.step(action.numpy())
        after = Seen.of(observation)
        replay.add(seen, action, reward, terminated | truncated, after)
        seen = after
        if "final_info" in info:
            metrics += info["final_info"]["metric"][info["_final_info"]].tolist()
        if replay.written >= min(args.begin, args.steps // 2):
            loss = loss_of(network, slow, replay, replay.sample(args.batch), args.gamma)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(network.parameters(), 10.0)
            optimizer.step()
            updates += 1
            if updates % args.copy_every == 0:
                slow.load_state_dict(network.state_dict())
        if (number + 1) % max(1, rounds // 10) == 0:
            last = np.mean(metrics[-args.envs :]) if metrics else float("nan")
            print(f"{(number + 1) * args.envs:>9,} decisions: metric of the last episodes {last:.5f}", flush=True)
    envs.close()
    return network


def policy(network: Scorer) -> Callable[[Any], np.ndarray]:
    """Return the network as a function that scores every node, which is what `aaml.evaluate` takes."""

    def one_file_dqn(context: Any) -> np.ndarray:
        shown = context.observation
        seen = Seen.of({name: getattr(shown, name)[None] for name in ("nodes", "pairs", "pod", "mask")})
        with torch.no_grad():
            return network(seen)[0].numpy()

    return one_file_dqn


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
