"""The settings of a scheduler on a cluster, whatever decides in it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from aaml.learning.config import LIVE, NetworkAgent
from aaml.settings import Count, Natural, NotNegative, Percent, Port, Settings, Share

Flag = Annotated[bool, tyro.conf.FlagCreatePairsOff]
ClusterKind = Literal["kube", "sim"]
HandOverWhen = Literal["models", "always", "never"]
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
    """port of /healthz, /readyz and /metrics; 0 leaves them out"""
    health_host: str = "127.0.0.1"
    """address of these"""


@dataclass(frozen=True)
class RecordSettings(Settings):
    """How decisions are judged, and what is shown and kept of them."""

    reward: str = DEFAULT_REWARD
    """a reward by name, a weighted sum (balance=1,compress=0.5), or FILE.py:NAME"""
    seed: Natural = 0
    """of ties, weights and exploration"""
    progress: Flag = False
    """show a progress bar"""
    log_scrolling: Flag = False
    """show every decision as a line"""
    records: bool = True
    """write curves to tlogs/, every decision and the log to logs/"""
    explain: Flag = False
    """write why each node was chosen to logs/*.explained.jsonl, for `aaml explain`, and the other records too (copies
    the state for each decision)"""
    tensorboard_name: str = ""
    """name of the run: tlogs/<policy>_<name>; without it the time"""


@dataclass(frozen=True)
class AgentSettings(Settings):
    """Which agent learns, from where it goes on, and when its model is kept."""

    agent: NetworkAgent = LIVE["dqn"]
    model: Path | None = None
    """a model file, or the folder of a training, to go on from"""
    save_every_s: NotNegative = 300.0
    """seconds between saves of the model; 0 saves at the end only"""


@dataclass(frozen=True)
class DutySettings(ProbeSettings):
    """How a scheduler process runs among replicas, and where it answers probes."""

    leader_elect: bool = False
    """of several replicas one decides, the others stand by"""
    lease_name: str = "aaml-scheduler"
    """name of the Lease that the replicas share"""
    lease_namespace: str = "kube-system"
    """its namespace"""
    lease_duration_s: float = 15.0
    """seconds after which a silent leader is followed by another"""
    renew_deadline_s: float = 10.0
    """seconds after which a leader that cannot renew the lease ends"""
    retry_period_s: float = 2.0
    """seconds between renewals, and between tries to lead"""


@dataclass(frozen=True)
class SchedulerSettings(DutySettings, RecordSettings):
    """What every scheduler can be told."""

    cluster: ClusterKind = "kube"
    """a Kubernetes cluster, or one in this process with a workload of its own"""
    kubeconfig: Path | None = None
    """of the Kubernetes cluster; without it $KUBECONFIG, ~/.kube/config or the service account"""
    scheduler_name: str = ""
    """pods with this schedulerName are placed (custom-scheduler) or, in a dry run, watched (default-scheduler)"""
    namespaces: tuple[str, ...] = ()
    """place pods of these namespaces only"""
    preemption: bool = True
    """delete less important pods where a pod fits nowhere otherwise, as far as the account may"""
    scheduled_events: bool = True
    """write the event Scheduled for each bound pod"""
    dry_run: Flag = False
    """never bind: decide on what another scheduler places, and compare"""
    shadow_log: str = "-"
    """file that a dry run adds a JSON line a pod to; - is the terminal"""
    fallback: str = "kube-scheduler"
    """policy that decides where the chosen one is late, fails or names no feasible node; none: nobody does"""
    deadline_s: NotNegative = 1.0
    """seconds that a decision may take before the fallback decides; 0: any. Built-in policies have no limit"""
    percentage_of_nodes_to_score: Percent = 100
    """how many nodes a network scores for a pod, the next feasible ones in turn, 100 at least; 0: as kube-scheduler"""
    hand_over: HandOverWhen = "models"
    """let the fallback decide for good once the policy does measurably worse: one from a model file, any, or never"""
    sim_nodes: Count = 10
    """nodes of the in-process cluster"""
    sim_load: Share = 0.2
    """load at which its workload ends a round, a fraction"""
    sim_rounds: Count = 3
    """rounds of its workload"""
    sim_shapes: Path | None = None
    """mixture of pod shapes of its workload, a CSV file"""

    @property
    def profile(self) -> str:
        """Whose pods are placed or watched: `scheduler_name`, or what it stands for when it is empty."""
        return self.scheduler_name or ("default-scheduler" if self.dry_run else "custom-scheduler")

    def defaults(self) -> "SchedulerSettings":
        """Return the settings of somebody who told none."""
        return type(self)()


@dataclass(frozen=True)
class LearnerSettings(SchedulerSettings, AgentSettings):
    """What a scheduler that learns can be told besides, with the settings of its agent."""

    recording: Path | None = None
    """fill the replay buffer of a DQN from this recording first (data/sched_*.csv)"""
    no_learn: Flag = False
    """take the best choice, never explore or update"""

    def defaults(self) -> SchedulerSettings:
        """Return the settings of somebody who told nothing but which agent."""
        return type(self)(agent=LIVE[self.agent.name])
