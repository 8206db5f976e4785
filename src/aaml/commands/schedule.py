"""Run a learned scheduler: it places the pods that ask for it and learns from what its decisions led to.

Curves go to tlogs/, the model to models/ (now and then, and at the end), a log to logs/. SIGTERM and Ctrl-C end it in
good order. With `--cluster sim` it runs on an in-process cluster with a workload of its own, until that ends.
"""

import dataclasses
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from aaml.commands.signals import ends_by
from aaml.experiment.build import DEFAULT_REWARD
from aaml.experiment.duty import LOST_STATUS, DutyOptions
from aaml.experiment.schedulers import SAVE_EVERY_S, SCHEDULERS
from aaml.learning.config import AgentConfig, AgentKind, OptimizerName

Flag = Annotated[bool, tyro.conf.FlagCreatePairsOff]


@dataclass(frozen=True)
class _Common(DutyOptions):
    progress: Flag = False
    """show a progress bar"""
    log_scrolling: Flag = False
    """show every decision as a line"""
    cluster: Literal["kube", "sim"] = "kube"
    """a Kubernetes cluster, or one in this process with a workload of its own"""
    kubeconfig: Path | None = None
    """of the Kubernetes cluster; without it $KUBECONFIG and ~/.kube/config"""
    scheduler_name: str = "custom-scheduler"
    """pods with this schedulerName are placed"""
    model: Path | None = None
    """a model file to go on from"""
    no_learn: Flag = False
    """take the best choice, never explore or update"""
    dry_run: Flag = False
    """decide and log, never bind: beside another scheduler"""
    reward: str = DEFAULT_REWARD
    """a reward by name, a weighted sum (balance=1,compress=0.5), or FILE.py:NAME"""
    tensorboard_name: str = ""
    """name of the run: tlogs/<agent>_<name>; without it the time"""
    seed: int = 0
    """of weights and exploration"""
    save_every_s: float = SAVE_EVERY_S
    """seconds between saves of the model; 0 saves at the end only"""
    sim_nodes: int = 10
    """nodes of the in-process cluster"""
    sim_load: float = 0.2
    """load at which its workload ends a round, a fraction"""
    sim_rounds: int = 3
    """rounds of its workload"""
    sim_shapes: Path | None = None
    """mixture of pod shapes of its workload, a CSV file"""


@dataclass(frozen=True)
class DqnArgs(_Common):
    """DQN with an MLP."""

    hidden_layers: int = 32
    """width of every hidden layer"""
    init_epsi: float = 1.0
    """chance to explore at the first decision"""
    min_epsi: float = 0.01
    """chance to explore in the end"""
    epsi_decay: float = 0.995
    """factor on the chance to explore, a decision"""
    gamma: float = 0.99
    """discount of a reward one decision later"""
    learning_rate: float = 0.001
    """step size of the optimiser"""
    replay_buffer_size: int = 2000
    """steps of experience kept"""
    update_frequency: int = 25
    """decisions between updates"""
    target_update_frequency: int = 50
    """decisions between copies to the target network"""
    batch_size: int = 200
    """experience per update"""
    use_heuristic: Flag = False
    """explore by the least requested node instead of a random one"""
    recording: Path | None = None
    """fill the replay buffer from this recording first (data/sched_*.csv)"""


@dataclass(frozen=True)
class GnnArgs(DqnArgs):
    """DQN with a graph network."""

    replay_buffer_size: int = 1000
    """steps of experience kept"""
    update_frequency: int = 20
    """decisions between updates"""
    target_update_frequency: int = 40
    """decisions between copies to the target network"""


@dataclass(frozen=True)
class ActorCriticArgs(_Common):
    """Actor-critic with MLPs; a deployment is an episode."""

    hidden_layers: int = 32
    """width of every hidden layer"""
    gamma: float = 0.95
    """discount of a reward one decision later"""
    actor_learning_rate: float = 0.001
    """step size of the actor"""
    critic_learning_rate: float = 0.001
    """step size of the critic"""
    optimizer: OptimizerName = "Adam"
    """of actor and critic"""


@dataclass(frozen=True)
class ActorCriticGnnArgs(ActorCriticArgs):
    """Actor-critic with graph networks; a deployment is an episode."""


@dataclass(frozen=True)
class PolicyArgs(DutyOptions):
    """Any policy, without learning. With --dry-run it only looks on as another scheduler works: a JSON line a pod."""

    policy: str = "least-allocated"
    """policy by name, FILE.py:NAME, or a model file"""
    kubeconfig: Path | None = None
    """of the Kubernetes cluster; without it $KUBECONFIG, ~/.kube/config or the service account"""
    scheduler_name: str = ""
    """pods with this schedulerName are placed (aaml-scheduler) or, in a dry run, watched (default-scheduler)"""
    namespaces: tuple[str, ...] = ()
    """place pods of these namespaces only"""
    scheduled_events: bool = True
    """write the event Scheduled for each bound pod"""
    preemption: bool = True
    """delete less important pods where a pod fits nowhere otherwise, as far as the account may"""
    dry_run: Flag = False
    """never bind; compare with what the other scheduler does"""
    shadow_log: str = "-"
    """file that a dry run adds its lines to; - is the terminal"""
    seed: int = 0
    """of ties and of random policies"""


Command = (
    Annotated[DqnArgs, tyro.conf.subcommand("dqn")]
    | Annotated[GnnArgs, tyro.conf.subcommand("gnn")]
    | Annotated[ActorCriticArgs, tyro.conf.subcommand("acdqn")]
    | Annotated[ActorCriticGnnArgs, tyro.conf.subcommand("acgnn")]
    | Annotated[PolicyArgs, tyro.conf.subcommand("policy")]
)
_KINDS: dict[type[_Common], AgentKind] = {
    DqnArgs: "dqn", GnnArgs: "gnn", ActorCriticArgs: "acdqn", ActorCriticGnnArgs: "acgnn",
}  # fmt: skip


@dataclass(frozen=True)
class Args:
    """Which agent, with its own flags."""

    agent: tyro.conf.OmitSubcommandPrefixes[tyro.conf.OmitArgPrefixes[Command]]


def run(args: Args) -> int:
    """Run the agent that was named."""
    if isinstance(args.agent, PolicyArgs):
        return run_policy(args.agent)
    return run_agent(args.agent)


def run_policy(args: PolicyArgs) -> int:
    """Run a policy as a scheduler until it is stopped, or loses its lease, and return the exit status."""
    import logging

    from aaml.experiment.policy_scheduler import PolicyRun, PolicyScheduler

    logging.basicConfig(format="%(asctime)s %(levelname)-7s %(message)s", level=logging.INFO)
    settings = PolicyRun(
        args.policy,
        args.scheduler_name or ("default-scheduler" if args.dry_run else "aaml-scheduler"),
        kubeconfig=args.kubeconfig,
        namespaces=args.namespaces,
        seed=args.seed,
        scheduled_events=args.scheduled_events,
        preemption=args.preemption,
        shadow_log=args.shadow_log if args.dry_run else None,
        duty=args,
    )
    scheduler = PolicyScheduler(settings)
    with ends_by(scheduler.stop) as interruption:
        status = scheduler.run()
        return status or interruption.status


def run_agent(args: _Common) -> int:
    """Run one agent until it is stopped and return the exit status."""
    from aaml.experiment.build import in_process_cluster
    from aaml.experiment.duty import on_duty
    from aaml.experiment.simulator import WorkloadDeploymentSimulator, run_together

    os.environ.setdefault(
        "OMP_NUM_THREADS", "1"
    )  # torch reads it when it loads; products this small are not shared out
    names = {field.name for field in dataclasses.fields(AgentConfig)}
    given = {name: value for name, value in dataclasses.asdict(args).items() if name in names}
    cluster = in_process_cluster(args.sim_nodes) if args.cluster == "sim" else None
    scheduler = SCHEDULERS[_KINDS[type(args)]](
        args.scheduler_name,
        cluster=cluster,
        kubeconfig=args.kubeconfig,
        dry_run=args.dry_run,
        model=args.model,
        reward=args.reward,
        seed=args.seed,
        learn=not args.no_learn,
        tensorboard_name=args.tensorboard_name,
        progress_indication=args.progress,
        log_scrolling=args.log_scrolling,
        save_every_s=args.save_every_s,
        **given,
    )
    if isinstance(args, DqnArgs) and args.recording is not None:
        count = scheduler.populate_replay(args.recording)
        print(f"{count} steps of experience from {args.recording}")
    with ends_by(scheduler.stop) as interruption:
        if cluster is None:
            with on_duty(args, scheduler.stop, kubeconfig=args.kubeconfig, profile=args.scheduler_name) as duty:
                if duty.acquire(lambda: bool(interruption.signal)):
                    scheduler.duty = duty
                    scheduler.run()
            return LOST_STATUS if duty.lost else interruption.status
        load = args.sim_load
        simulator = WorkloadDeploymentSimulator(
            load, load, load, args.scheduler_name, cluster=cluster, seed=args.seed, shapes=args.sim_shapes
        )
        run_together(scheduler, simulator, cluster, epochs=args.sim_rounds)
        return interruption.status
