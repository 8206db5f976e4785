"""The settings of a scheduler on a cluster, whatever decides in it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from aaml.learning.config import LIVE, NetworkAgent
from aaml.settings import Count, Natural, NotNegative, Percent, Port, Settings, Share

Flag = Annotated[bool, tyro.conf.FlagCreatePairsOff]
ClusterKind = Literal["kube", "sim"]
FailoverWhen = Literal["models", "always", "never"]
DEFAULT_REWARD = "balance"


@dataclass(frozen=True)
class Folders:
    """Where a run writes, relative to the working directory unless absolute."""

    curves: Path = Path("tlogs")
    models: Path = Path("models")
    logs: Path = Path("logs")
    data: Path = Path("data")
    deployments: Path = Path("deployment_data")


@dataclass(frozen=True)
class ProbeSettings(Settings):
    """Where a process answers probes."""

    health_port: Port = 0
    """port of /healthz, /readyz and /metrics; 0: none"""
    health_host: str = "127.0.0.1"
    """address that the probes listen on"""


@dataclass(frozen=True)
class RecordSettings(Settings):
    """The reward of decisions, and what is shown and written of them."""

    reward: str = DEFAULT_REWARD
    """a reward by name, a weighted sum (balance=1,compress=0.5), or FILE.py:NAME"""
    seed: Natural = 0
    """seed of ties, weights and exploration"""
    progress: Flag = False
    """show a progress bar"""
    log_scrolling: Flag = False
    """print a line for every decision"""
    records: bool = True
    """write curves to tlogs/, and the decisions and the log to logs/"""
    explain: Flag = False
    """write the scores of all nodes to logs/*.explained.jsonl, for `aaml explain`; also turns `records` on. It copies
    the state for each decision"""
    tensorboard_name: str = ""
    """name of the run: tlogs/<policy>_<name>. Default: the time"""


@dataclass(frozen=True)
class AgentSettings(Settings):
    """Which agent learns, from where it goes on, and when its model is kept."""

    agent: NetworkAgent = LIVE["dqn"]
    model: Path | None = None
    """continue from a model file, or from the folder of a training"""
    save_every_s: NotNegative = 300.0
    """seconds between two saves of the model; 0: only at the end"""


@dataclass(frozen=True)
class ReplicaSettings(ProbeSettings):
    """Leader election among replicas, and where the process answers probes."""

    leader_elect: bool = False
    """one of several replicas decides, the others wait"""
    lease_name: str = "aaml-scheduler"
    """name of the Lease that the replicas share"""
    lease_namespace: str = "kube-system"
    """namespace of the Lease"""
    lease_duration_s: float = 15.0
    """seconds without a renewal after which another replica may lead"""
    renew_deadline_s: float = 10.0
    """seconds after which a leader that cannot renew the Lease exits"""
    retry_period_s: float = 2.0
    """seconds between two attempts to get or renew the Lease"""


@dataclass(frozen=True)
class SchedulerSettings(ReplicaSettings, RecordSettings):
    """Settings of every scheduler."""

    cluster: ClusterKind = "kube"
    """kube: a Kubernetes cluster; sim: a simulated cluster in this process, with its own workload"""
    kubeconfig: Path | None = None
    """kubeconfig of the cluster. Default: $KUBECONFIG, ~/.kube/config or the service account"""
    scheduler_name: str = ""
    """schedulerName of the pods to place (default custom-scheduler) or, in a dry run, to watch (default
    default-scheduler)"""
    namespaces: tuple[str, ...] = ()
    """only pods of these namespaces"""
    preemption: bool = True
    """evict pods of lower priority where a pod fits nowhere else, if RBAC allows it"""
    scheduled_events: bool = True
    """write the event Scheduled for each bound pod"""
    dry_run: Flag = False
    """never bind: decide for pods that another scheduler places, and compare"""
    shadow_log: str = "-"
    """file of a dry run, one JSON line per pod; -: the terminal"""
    fallback: str = "kube-scheduler"
    """policy that decides where the chosen one is late, fails or names no feasible node; none: no fallback"""
    deadline_s: NotNegative = 1.0
    """seconds that a decision may take before the fallback decides; 0: no limit. Built-in policies have none"""
    percentage_of_nodes_to_score: Percent = 100
    """share of the nodes that a network scores for a pod, at least 100 nodes; 0: as kube-scheduler chooses it"""
    failover: FailoverWhen = "models"
    """fail over to the fallback for good when the policy is measurably worse: models (only for model files), always or
    never"""
    sim_nodes: Count = 10
    """nodes of the in-process cluster"""
    sim_load: Share = 0.2
    """load at the end of a round of its workload, a fraction"""
    sim_rounds: Count = 3
    """rounds of the workload"""
    sim_shapes: Path | None = None
    """CSV file of pod shapes for the workload"""

    @property
    def profile(self) -> str:
        """Whose pods are placed or watched: `scheduler_name`, or what it stands for when it is empty."""
        return self.scheduler_name or ("default-scheduler" if self.dry_run else "custom-scheduler")

    def defaults(self) -> "SchedulerSettings":
        """Return the settings without any flag."""
        return type(self)()


@dataclass(frozen=True)
class LearnerSettings(SchedulerSettings, AgentSettings):
    """Settings of a scheduler that learns, with those of its agent."""

    recording: Path | None = None
    """fill the replay buffer of a DQN from this recording (data/sched_*.csv)"""
    no_learn: Flag = False
    """greedy actions only: no exploration, no updates"""

    def defaults(self) -> SchedulerSettings:
        """Return the settings with no flag but the agent."""
        return type(self)(agent=LIVE[self.agent.name])
