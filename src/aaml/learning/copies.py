"""Learning from copies of the same episodes in lockstep: what each agent does in many rows at once, and its update.

Copies see the same arrivals, so that what one earns more than the others is due to its choices. Nearly all choices are
the agent's best; a few are drawn, and only these are to blame: the fewer there are, the less each drowns in what the
others did, and the fewer have to be learned from.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from aaml.learning.agent import LearnedAgent, PolicyAgent, ValueAgent
from aaml.learning.collate import Batch
from aaml.learning.config import CopiesConfig, NetworkAgent
from aaml.learning.losses import (
    around_the_value,
    clipped_policy_loss,
    double_q_target,
    entropy,
    imitation_loss,
    log_policy,
    margin_loss,
    mask_scores,
    mean_of_choices,
    normalize,
    select,
    value_loss,
)
from aaml.learning.networks import NodeScorer
from aaml.learning.optim import descend
from aaml.learning.replay import Replay
from aaml.scheduling.curves import ACTION_VALUE, ACTOR_LOSS, CRITIC_LOSS, ENTROPY, VALUE_LOSS

_IMITATION_RATE, _IMITATION_BATCH, _IMITATION_NORM = 3e-3, 128, 10.0
_SHOWN, _OPEN, _LEAST_FACTOR = 2_000, 0.8, 1e-3  # decisions; share of the largest entropy; of the logits
_SHARP = 100.0
_SHARPNESS = 6.0  # of the policy that a DQN draws by: logits, in standard deviations of the action values
_RECENT = 9.0  # a DQN's average of its weights is over the last ninth of its rounds


@dataclass(frozen=True)
class Choice:
    """What an agent does in B rows: `action` int64 [B], `drawn` bool [B], and the `log_prob` [B, N] of drawing each."""

    action: Tensor
    drawn: Tensor
    log_prob: Tensor

    def take(self, rows: Tensor) -> "Choice":
        """Return a part of the rows."""
        return Choice(self.action[rows], self.drawn[rows], self.log_prob[rows])


@dataclass(frozen=True)
class Compared:
    """M decisions of a round and what they came to, in units of the typical difference between an episode's copies.

    =========  ============  ======================================================================================
    seen       Batch of M    what was seen
    action     int64 [M]     what was done
    log_prob   float [M, N]  of each action when one was drawn
    advantage  float32 [M]   discounted rewards to the episode's end, less the mean of the copies'
    returns    float32 [M]   discounted rewards to the episode's end
    n_step     float32 [M]   the first n discounted rewards, less the mean of the copies'
    following  Batch of K    what was seen n decisions later, where the episode still went on; None: nowhere
    goes_on    bool [M]      where that is: K in all
    discount   float         of what follows: gamma^n
    =========  ============  ======================================================================================
    """

    seen: Batch
    action: Tensor
    log_prob: Tensor
    advantage: Tensor
    returns: Tensor
    n_step: Tensor
    following: Batch | None
    goes_on: Tensor
    discount: float

    def __len__(self) -> int:
        """M."""
        return len(self.action)


@dataclass(frozen=True)
class Remembered:
    """A round that is kept, and the `priority` float [M] of each of its decisions, which changes."""

    compared: Compared
    priority: Tensor

    def sample(self, size: int, generator: torch.Generator, *, prioritized: bool) -> tuple[Tensor, Tensor | None]:
        """Return (rows int64, importance weights float), `size` of each, drawn with replacement.

        By priority as `aaml.learning.replay.Replay` does (Schaul et al. 2016); else each is as likely as any other, and
        there are no weights.
        """
        if not prioritized:
            return torch.randint(len(self.compared), (size,), generator=generator), None
        chance = self.priority**Replay.ALPHA
        rows = torch.multinomial(chance, size, replacement=True, generator=generator)
        weight = (len(chance) * chance[rows] / chance.sum()) ** -Replay.BETA
        return rows, weight / weight.max()

    def reprioritize(self, rows: Tensor, error: Tensor) -> None:
        """Set the priority of decisions to the size of their errors."""
        self.priority[rows] = error.abs() + Replay.LEAST


class LastRounds:
    """The last rounds of each cluster size, up to `most` decisions of it, 0: four rounds.

    What is learned of one size is soon lost without it.
    """

    USUAL = 4

    def __init__(self, most: int) -> None:
        self._most = most
        self._by_size: dict[int, deque[Remembered]] = {}

    def add(self, compared: Compared) -> None:
        """Remember a round, in place of the oldest of its size where there are enough."""
        size = compared.seen.mask.shape[1]
        highest = max((float(each.priority.max()) for each in self._rounds), default=1.0)
        remembered = Remembered(compared, torch.full((len(compared),), highest))
        kept = self._by_size.setdefault(size, deque())
        kept.append(remembered)
        while len(kept) > 1 and self._too_many(kept):
            kept.popleft()

    def draw(self, generator: torch.Generator) -> Remembered:
        """Return one of them, each as likely as any other."""
        rounds = self._rounds
        return rounds[int(torch.randint(len(rounds), (1,), generator=generator))]

    def _too_many(self, kept: Sequence[Remembered]) -> bool:
        return sum(len(each.compared) for each in kept) > self._most if self._most else len(kept) > self.USUAL

    @property
    def _rounds(self) -> list[Remembered]:
        return [each for size in self._by_size.values() for each in size]

    def forget(self) -> None:
        """Remember nothing."""
        self._by_size.clear()


ImitationLoss = Callable[[Tensor, Tensor, Tensor], Tensor]  # of scores [B, N], the mask and the teacher's choices [B]
Shown = Sequence[tuple[Batch, Tensor]]
"""What a teacher saw and did, int64 [B], on clusters of each size."""


class _Base:
    def __init__(self, agent: LearnedAgent, config: CopiesConfig) -> None:
        self._config = config
        self._network = agent.scorer
        self._rate = agent.config.learning_rate

    def _imitate(self, shown: Shown, passes: int, loss: ImitationLoss, generator: torch.Generator) -> float:
        """Pass over a teacher's choices, those of all cluster sizes mixed: one after the other, only the last is kept.

        Returns the last loss.
        """
        optimizer, latest = torch.optim.Adam(self._network.parameters(), _IMITATION_RATE), 0.0
        for step in range(passes):
            optimizer.param_groups[0]["lr"] = _IMITATION_RATE * (1.0 - step / passes)
            pieces = [
                (seen, action, rows)
                for seen, action in shown
                for rows in self._batches(len(action), _IMITATION_BATCH, generator)
            ]
            for number in torch.randperm(len(pieces), generator=generator).tolist():
                seen, action, rows = pieces[number]
                batch = seen.take(rows)
                error = loss(self._network(batch), batch.mask, action[rows])
                latest = descend(error, self._network, optimizer, _IMITATION_NORM)
        return latest

    @torch.no_grad()
    def best(self, seen: Batch) -> Tensor:
        """Return int64 [B], the best row for each pod."""
        return mask_scores(self._network(seen), seen.mask).argmax(dim=1)

    @property
    def _scorer(self) -> NodeScorer:
        if self._network.scorer is None:
            raise TypeError("a critic scores no nodes")
        return self._network.scorer

    def _draw(self, scores: Tensor, mask: Tensor, generator: torch.Generator) -> Choice:
        """Take the highest scores, and in a share of the rows a sample of their softmax."""
        log_prob = log_policy(scores, mask)
        # The largest of logits plus Gumbel noise is a sample of the softmax (Gumbel 1954).
        noise = -torch.empty_like(scores).exponential_(generator=generator).log()
        drawn = torch.rand(len(scores), generator=generator) < self._config.sampled
        sample = mask_scores(scores + noise, mask).argmax(dim=1)
        action = torch.where(drawn, sample, log_prob.argmax(dim=1))
        return Choice(action, drawn, log_prob)

    def _batches(self, count: int, size: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        return torch.split(torch.randperm(count, generator=generator), size)

    def _set_rate(self, optimizer: torch.optim.Optimizer, left: float) -> None:
        for group in optimizer.param_groups:
            group["lr"] = self._rate * left


class CopiesActor(_Base):
    """PPO on the drawn choices (Schulman et al. 2017) with the copies' mean for a baseline; the critic learns returns.

    The critic is no part of the update: it is what a live cluster, where there are no copies, goes on with.
    """

    def __init__(self, agent: PolicyAgent, config: CopiesConfig) -> None:
        super().__init__(agent, config)
        self._learner, self._agent = agent.learner, agent

    @torch.no_grad()
    def choose(self, seen: Batch, generator: torch.Generator) -> Choice:
        """Draw from the policy."""
        return self._draw(self._network(seen), seen.mask, generator)

    @torch.no_grad()
    def begin_as(self, heuristic: Mapping[str, float], seen: Sequence[Batch]) -> None:
        """Score nodes by a weighted sum of pair features alone; what is learned is added to it."""
        scorer = self._scorer
        scorer.out.weight.zero_()
        scorer.direct.weight.zero_()
        for name, weight in heuristic.items():
            scorer.direct.weight[0, self._network.spec.pair_features.index(name)] = _SHARP * weight
        self._scale(seen)

    def imitate(self, shown: Shown, passes: int, generator: torch.Generator) -> float:
        """Clone the choices (behaviour cloning); returns the last loss."""
        loss = self._imitate(shown, passes, imitation_loss, generator)
        self._scale([seen for seen, _ in shown])
        return loss

    @torch.no_grad()
    def _scale(self, seen: Sequence[Batch]) -> None:
        """Scale the logits down until the policy is open: a sharp one would draw nothing but its best choices."""
        for each in seen:
            shown = each.take(torch.arange(min(len(each), _SHOWN)))
            wanted = _OPEN * shown.mask.sum(dim=1).clamp(min=1).log().mean()
            logits, factor = self._network(shown), 1.0
            while factor > _LEAST_FACTOR and entropy(factor * logits, shown.mask).mean() < wanted:
                factor *= 0.8
            for parameter in (self._scorer.out.weight, self._scorer.out.bias, self._scorer.direct.weight):
                parameter.mul_(factor)

    def learn(self, compared: Compared, left: float, generator: torch.Generator) -> Mapping[str, float]:
        """Update by passes over the drawn choices."""
        learner, config = self._learner, self._learner.config
        self._set_rate(learner.actor_optimizer, left)
        self._set_rate(learner.critic_optimizer, left)
        norm, advantage = config.max_grad_norm, normalize(compared.advantage)
        before, size = select(compared.log_prob, compared.action), _step_size(config, compared)
        loss = fit = openness = torch.zeros(())
        for _ in range(config.n_epochs):
            for rows in self._batches(len(compared), size, generator):
                batch = compared.seen.take(rows)
                logits = self._network(batch)
                log_prob = select(log_policy(logits, batch.mask), compared.action[rows])
                loss = clipped_policy_loss(log_prob, before[rows], advantage[rows], config.clip_range)
                openness = entropy(logits, batch.mask).mean()
                descend(loss - config.ent_coef * openness, learner.actor, learner.actor_optimizer, norm)
        for rows in self._batches(len(compared), size, generator):
            fit = value_loss(learner.critic(compared.seen.take(rows)), compared.returns[rows])
            descend(fit, learner.critic, learner.critic_optimizer, norm)
        self._agent.updates += 1
        return {ACTOR_LOSS: float(loss.detach()), CRITIC_LOSS: float(fit.detach()), ENTROPY: float(openness.detach())}


class CopiesValue(_Base):
    """Double dueling DQN with returns relative to the copies, on the drawn choices of each cluster size's last rounds.

    It draws by its action values, in units of their spread in each row, and advantages are learned around their mean
    under that policy (`around_the_value`). What a choice is worth drowns in what else happens, so the weights that act,
    are bootstrapped from and are kept are a running average of those that each update changes, over the last ninth of
    the rounds (Polyak and Juditsky 1992; the shares are those of Shamir and Zhang 2013). Between rounds the learner's
    network holds the average and its target network the latest.
    """

    def __init__(self, agent: ValueAgent, config: CopiesConfig) -> None:
        super().__init__(agent, config)
        self._learner, self._agent = agent.learner, agent
        self._rounds = LastRounds(agent.config.buffer_size)

    @torch.no_grad()
    def choose(self, seen: Batch, generator: torch.Generator) -> Choice:
        """Draw by the action values."""
        return self._draw(self._logits(self._network(seen), seen.mask), seen.mask, generator)

    def imitate(self, shown: Shown, passes: int, generator: torch.Generator) -> float:
        """Rank the teacher's choice first by a margin (Hester et al. 2018); returns the last loss."""
        loss = partial(margin_loss, margin=0.1)
        latest = self._imitate(shown, passes, loss, generator)
        self._learner.sync_target()
        return latest

    def learn(self, compared: Compared, left: float, generator: torch.Generator) -> Mapping[str, float]:
        """Update on this round and the ones before that are remembered."""
        self._rounds.add(compared)
        learner, config = self._learner, self._learner.config
        size = _step_size(config, compared)
        self._set_rate(learner.optimizer, left)
        updates = max(1, config.n_epochs * len(compared) // size)
        share = _RECENT / (_RECENT + self._agent.updates) / updates
        loss = value = 0.0
        with _exchanged(learner.network, learner.target):
            for _ in range(updates):
                drawn = self._rounds.draw(generator)
                rows, weight = drawn.sample(size, generator, prioritized=config.prioritized)
                chosen = drawn.compared
                batch, target = chosen.seen.take(rows), self._targets(chosen, rows)
                q = around_the_value(learner.network(batch), chosen.log_prob[rows], batch.mask)
                taken = select(q, chosen.action[rows])
                fit = value_loss(taken, target, weight)
                loss = descend(fit, learner.network, learner.optimizer, config.max_grad_norm)
                if config.prioritized:
                    drawn.reprioritize(rows, (taken - target).detach())
                value = float(q.detach().gather(1, chosen.action[rows][:, None]).mean())
                for average, latest in zip(learner.target.parameters(), learner.network.parameters(), strict=True):
                    average.lerp_(latest.detach(), share)
        self._agent.updates += 1
        return {VALUE_LOSS: loss, ACTION_VALUE: value}

    def forget(self) -> None:
        """Forget the rounds remembered, so that what a run goes on from stays small."""
        self._rounds.forget()

    @torch.no_grad()
    def _targets(self, chosen: Compared, rows: Tensor) -> Tensor:
        targets = chosen.n_step[rows].clone()
        goes_on = chosen.goes_on[rows]
        if chosen.following is not None and bool(goes_on.any()):
            places = (chosen.goes_on.cumsum(0) - 1)[rows][goes_on]
            batch = chosen.following.take(places)
            discount = torch.full((len(places),), chosen.discount)
            q = self._learner.target(batch)
            q = around_the_value(q, log_policy(self._logits(q, batch.mask), batch.mask), batch.mask)
            online = self._learner.network(batch)
            targets[goes_on] = double_q_target(targets[goes_on], discount, online, q, batch.mask)
        return targets

    def _logits(self, q: Tensor, mask: Tensor) -> Tensor:
        return _SHARPNESS * q / (_spread(q, mask) + 1e-6)


def _step_size(config: NetworkAgent, compared: Compared) -> int:
    """Return the decisions of a step of the optimiser."""
    return max(1, min(config.batch_size, config.max_batch_rows // compared.seen.mask.shape[1]))


@contextmanager
def _exchanged(one: nn.Module, other: nn.Module) -> Iterator[None]:
    """Let two networks have each other's weights for a while."""
    _exchange(one, other)
    try:
        yield
    finally:
        _exchange(one, other)


def _exchange(one: nn.Module, other: nn.Module) -> None:
    for left, right in zip(one.parameters(), other.parameters(), strict=True):
        left.data, right.data = right.data, left.data


def _spread(q: Tensor, mask: Tensor) -> Tensor:
    """Return [B, 1], the standard deviation of action values over the rows that may be chosen."""
    return mean_of_choices((q - mean_of_choices(q, mask)) ** 2, mask).sqrt()


def in_copies(agent: LearnedAgent, config: CopiesConfig) -> CopiesActor | CopiesValue:
    """Return what an agent does in lockstep."""
    if isinstance(agent, PolicyAgent):
        return CopiesActor(agent, config)
    if isinstance(agent, ValueAgent):
        return CopiesValue(agent, config)
    raise TypeError(f"{type(agent).__name__} is no agent with a network")
