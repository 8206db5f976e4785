"""What a training is told: flags of `aaml train`, keys of its settings file, the record in a run's folder."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from aaml.errors import UserError, bad_value
from aaml.evaluation.zoo import model_file
from aaml.extras import lazily
from aaml.files import in_a_name
from aaml.learning.config import AGENTS, LIVE, AgentConfig, GroupConfig, NetworkAgent
from aaml.parallel.workers import parse_workers
from aaml.settings import Count, Natural, RemainingLifetimes, Settings
from aaml.sim.search_config import SearchConfig

if TYPE_CHECKING:
    from aaml.sim import tasks
    from aaml.training import collectors, compilable, rollouts
else:  # numba and torch: what can be said, and so `aaml train --help`, is there without
    tasks = lazily("aaml.sim.tasks")
    collectors, compilable, rollouts = (
        lazily(f"aaml.training.{name}") for name in ("collectors", "compilable", "rollouts")
    )

TEACHERS: Mapping[str, str] = {
    "mean_variance": "least-variance",
    "cost": "most-allocated",
    "mean_empty_fraction": "most-allocated",
    "mean_gpu_waiting": "best-fit",
    "final_gpu_allocation": "fgd",
    "waiting_mean_s": "least-variance",
    "final_cpu_variance": "least-variance",
}
"""The usual policy of the warm start by the metric that a task is measured by."""


@dataclass(frozen=True)
class TrainConfig(Settings):
    """A training run, with the settings of its agent."""

    without_repeats: ClassVar = Settings.without_repeats - {"nodes"}

    agent: AgentConfig = AGENTS["gnn"]
    """GNN or MLP by DQN, MLP or GNN by actor-critic, the binned Q-table, or a linear scorer by cross-entropy"""
    task: str = "balance"
    """a task by name (`aaml show tasks` lists them), with a load after @ (compress@0.5); the folder of a trace, or
    TASK@FOLDER for the metric of a task; your own as FILE.py:NAME"""
    steps: Natural = 1_000_000
    """training decisions (environment steps), after the warm start. `group` rounds up to whole rounds of episodes.
    A step of the other methods takes about a hundred times as long"""
    seed: Natural = 0
    """seed of weights, exploration and episodes: the same seed gives the same curve"""
    envs: Count = 8
    """number of clusters that are simulated at once"""
    workers: str = "1"
    """where the clusters are simulated: a number of processes, ray (a Ray cluster of this machine) or ray:HOST:PORT.
    The result is the same"""
    nodes: tuple[Count, ...] = ()
    """numbers of nodes; each episode draws one, and one that stands twice is drawn twice as often. Default: the
    task's"""
    pods: Count | None = None
    """pods of an episode. Default: the task's"""
    trace: str | None = None
    """an openb pod list; its requests replace the synthetic ones"""
    reward: str = ""
    """a reward by name, a weighted sum (balance=1,compress=0.5), or FILE.py:NAME. Default: the task's"""
    teacher: str = ""
    """policy that the agent imitates first (warm start): a name, a model file, or none. The agent also takes over a
    model's order of waiting pods. Default: the task's"""
    teacher_steps: Natural = 6_000
    """decisions of the teacher to imitate"""
    teacher_passes: Count = 20
    """epochs over the decisions of the teacher"""
    start: Path | None = None
    """continue from a model file of the same agent, or from the folder of a training; no warm start"""
    chunk: Count = 32
    """decisions of each cluster between two exchanges of weights"""
    validate_every: Count = 50_000
    """decisions between two validations; each validation saves the run"""
    validation_episodes: Count = 10
    """validation episodes per cluster size"""
    patience: Natural = 0
    """stop after so many validations without improvement; 0: never"""
    lifetimes: bool = False
    """the agent observes how long a pod will run"""
    remaining_lifetimes: RemainingLifetimes = "nothing"
    """what the agent observes of the remaining lifetimes of running pods: nothing, an estimate learned from pods that
    ended, or the truth (an upper bound: no real scheduler knows it)"""
    costs: bool = False
    """show the agent what nodes cost, where an autoscaler provisions them"""
    method: Literal["auto", "group", "rewards", "expert"] = "auto"
    """group: compiled episodes in lockstep; an advantage is relative to a group with the same arrivals. rewards: learns
    from the reward of each decision; takes your own rewards and several workers. expert: imitates a look-ahead search
    (DAgger), `teacher_passes` epochs at each validation. auto: group where possible"""
    device: Literal["cpu", "cuda"] = "cpu"
    """group: device of the networks; the simulator runs on the CPU. A GPU is faster from about 4,000 clusters at once
    (--envs 1024 --batch_size 16384)"""
    group: GroupConfig = GroupConfig()
    search: SearchConfig = SearchConfig(candidates=3, samples=16)
    rollout: str = ""
    """expert: policy that plays the imagined futures; agent: the agent itself. Default: the teacher"""

    def __post_init__(self) -> None:
        super().__post_init__()
        parse_workers(self.workers)
        if (self.start is not None or self.method == "expert") and not isinstance(self.agent, NetworkAgent):
            raise bad_value("agent", self.agent.name, f"one of {', '.join(LIVE)}")

    @property
    def resolved(self) -> Self:
        """The training with every hyperparameter set, by default where it was left unset."""
        if not isinstance(self.agent, NetworkAgent):
            return self
        return replace(self, agent=self.agent.resolved("group" if self.resolved_method == "group" else "rewards"))

    @property
    def learner(self) -> AgentConfig:
        """The agent with every hyperparameter set, those that depend on the length of the training included."""
        return self.resolved.agent.for_steps(self.steps)

    @property
    def network(self) -> NetworkAgent:
        """The same, for one of the four agents with a network. Raises `UserError` for the others."""
        agent = self.learner
        if not isinstance(agent, NetworkAgent):
            raise bad_value("agent", agent.name, f"one of {', '.join(LIVE)}")
        return agent

    @property
    def expert(self) -> SearchConfig | None:
        """How the expert looks ahead, None without one."""
        return self.search if self.resolved_method == "expert" else None

    @property
    def resolved_method(self) -> Literal["group", "rewards", "expert"]:
        """The method, chosen."""
        if self.method != "auto":
            return self.method
        return "rewards" if self.why_no_group else "group"

    @property
    def why_no_group(self) -> str:
        """Why the agent cannot learn by group rollouts, "" where it can."""
        if self.workers != "1":
            return "episodes in lockstep are played by one process"
        return compilable.why_no_reward(self.reward) or compilable.why_no_task(self.task)

    def check_method(self) -> None:
        """Raise `UserError` where the agent cannot learn by the method."""
        if self.resolved_method == "group" and self.why_no_group:
            raise UserError(f"method group: {self.why_no_group}; use --method rewards")
        if self.resolved_method != "group" and self.device != "cpu":
            raise bad_value("device", self.device, f"cpu, where the method is {self.resolved_method}")

    def last_step(self, until: int | None) -> int:
        """Return the step that a call ends at which is to go on `until` a step, or to the end."""
        return self.steps if until is None else min(until, self.steps)

    def groups(self, nodes: int) -> int:
        """Return the episodes of a round on clusters of a size: about as many nodes in all for any size."""
        return max(1, round(self.envs * min(self.sizes) / nodes))

    @property
    def round_steps(self) -> int:
        """The decisions of a round, about: the most for any cluster size."""
        task = tasks.find_task(self.task)
        return max(self.groups(size) * self.group.group_size * task.size(size, self.pods)[1] for size in self.sizes)

    @property
    def label(self) -> str:
        """The task as file names have it."""
        return in_a_name(self.task)

    @property
    def actor(self) -> "collectors.Actor":
        """Who acts in training: the agent, or the expert that searches from the agent's choices."""
        teacher = "" if self.teacher_name == "none" else self.teacher_name
        guide = teacher if getattr(self.agent, "use_heuristic", False) else ""
        rollout = "" if self.rollout == "agent" else self.rollout or teacher
        return collectors.Actor(self.network, guide, self.expert, rollout, self.begins_with)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The cluster sizes that episodes are drawn from. Raises `UserError` for a task that is not known."""
        return self.nodes or (tasks.find_task(self.task).nodes,)

    @property
    def teacher_name(self) -> str:
        """The policy of the warm start (a name or a model file), "none" without one."""
        return self.teacher or TEACHERS.get(self._metric, "none")

    @property
    def begins_with(self) -> Path | None:
        """The model file that the agent goes on from, None for fresh weights."""
        return None if self.start is None else model_file(self.start)

    @property
    def imitates(self) -> bool:
        """Whether the run begins with imitating a teacher."""
        return self.start is None and self.teacher_name != "none" and self.teacher_steps > 0

    @property
    def nothing_better(self) -> str:
        """What is to be said of a run whose best weights are those that it began with."""
        begun = f"the warm start, a copy of {self.teacher_name}" if self.imitates else "those that the run began with"
        return f"nothing learned beat the start: the kept weights are {begun}"

    @property
    def reference(self) -> str:
        """The policy that validation compares with: the teacher, or the task's usual one without."""
        teacher = self.teacher_name
        return TEACHERS.get(self._metric, "least-allocated") if teacher == "none" else teacher

    @property
    def _metric(self) -> str:
        return tasks.find_task(self.task).metric

    @property
    def env_config(self) -> "rollouts.EnvConfig":
        """What episodes are like. Raises `UserError` for a task that is not known."""
        return rollouts.EnvConfig(
            self.task, self.sizes, self.pods, self.trace, self.reward, tasks.find_task(self.task).lookahead,
            lifetimes=self.lifetimes, remaining_lifetimes=self.remaining_lifetimes, costs=self.costs,
            sorter="" if self.teacher_name == "none" else self.teacher_name,
        )  # fmt: skip


@dataclass(frozen=True)
class DemoConfig(Settings):
    """How much the demonstration trains and evaluates."""

    task: str = "balance"
    """a task by name"""
    steps: Count = 500_000
    """training decisions of each agent, after the warm start; a million take half a minute on compiled tasks"""
    teacher_steps: Natural = 2_000
    """decisions of a heuristic that each agent imitates first (warm start)"""
    episodes: Count = 20
    """held-out episodes of the evaluation"""
    nodes: Count = 10
    """nodes of the cluster"""
    workers: Count = 2
    """processes"""
    seed: Natural = 0
    """seed of the training; the held-out episodes are always the same"""

    @property
    def seeds(self) -> range:
        """The seeds of the evaluation, apart from all that training and validation use."""
        return range(1000, 1000 + self.episodes)
