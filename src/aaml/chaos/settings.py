"""The settings of trials on a real cluster."""

from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta

from aaml.settings import Count, Positive, Settings


@dataclass(frozen=True)
class ChaosSettings(Settings):
    """How a scheduler is tried."""

    pods: Count = 2000
    """pods of a run"""
    nodes: Annotated[int, Meta(ge=5)] = 20
    """nodes of the cluster, of which some faults take four away; the pods fill three fifths of it"""
    runs: Count = 10
    """runs of each fault"""
    scheduler: str = "dqn"
    """who decides: an agent that learns meanwhile (dqn, gnn, acdqn, acgnn), a policy by name, a model file, or a plugin
    in kube-scheduler (the folder of `aaml export`, plugin:MODEL)"""
    faults: tuple[str, ...] = ()
    """the faults; by default all that can strike this scheduler"""
    wait_s: Positive = 300.0
    """seconds after the end of a fault within which every pod must have a node"""


@dataclass(frozen=True)
class SoakSettings(Settings):
    """A run of many pods that each stay for a while."""

    minutes: Positive = 60.0
    """how long pods come"""
    rate: Positive = 30.0
    """pods a second, about half of what an agent that learns can place"""
    lifetime_s: Positive = 20.0
    """seconds after which a pod is deleted"""
    nodes: Count = 20
    """nodes of the cluster"""
    scheduler: str = "dqn"
    """who decides: an agent that learns meanwhile, a policy by name, or a model file"""
    run: Literal["scheduler", "without-learner", "idle-extender"] = "scheduler"
    """what runs: the scheduler; the scheduler, each learner of which is killed at once; or `aaml serve` with that
    policy (kube-scheduler for an agent), which watches and serves nothing, while kube-scheduler places the pods"""
    every_s: Positive = 10.0
    """seconds between two lines of the record"""
