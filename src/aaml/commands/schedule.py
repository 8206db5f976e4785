"""Run a scheduler: it places the pods that ask for it, and a learned one learns from what its decisions led to.

`dqn`, `gnn`, `acdqn` and `acgnn` learn; `policy` is any policy that does not. SIGTERM and Ctrl-C end a run in good
order. Curves go to tlogs/, the log and every decision to logs/, a model to models/ (now and then, and at the end).
With `--cluster sim` it runs on an in-process cluster with a workload of its own, until that ends; with `--dry-run` it
looks on as another scheduler works.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import tyro

from aaml.commands.signals import ends_by
from aaml.learning.config import LIVE, SCRIPT_NAMES
from aaml.live.settings import LearnerSettings, SchedulerSettings
from aaml.threads import one_thread

if TYPE_CHECKING:
    from aaml.live.run import SchedulerRun
    from aaml.scheduling.ports import Policy
    from aaml.sim.threaded import ThreadedCluster

LOST_STATUS = 1


@dataclass(frozen=True)
class PolicyArgs(SchedulerSettings):
    """Any policy, without learning."""

    policy: str = "least-allocated"
    """policy by name, FILE.py:NAME, kube-scheduler:FILE.yaml, or a model file"""
    expected_pods: str | None = None
    """pods like those to come, by which policies such as fgd weigh fragments of GPUs: an openb trace by name, a pod
    list (.csv), or YAML with pods and workloads"""
    log_scrolling: bool = True
    """show every decision as a line"""
    records: bool = False
    """write curves to tlogs/, every decision and the log to logs/"""


LEARNED = {name: LearnerSettings(agent=agent) for name, agent in LIVE.items()}
"""The settings that `rundqn`, `rungnn`, `runacdqn` and `runacgnn` start from."""
Command = (
    Annotated[LearnerSettings, tyro.conf.subcommand("dqn", default=LEARNED["dqn"], description="DQN, MLP encoder")]
    | Annotated[LearnerSettings, tyro.conf.subcommand("gnn", default=LEARNED["gnn"], description="DQN, graph encoder")]
    | Annotated[
        LearnerSettings, tyro.conf.subcommand("acdqn", default=LEARNED["acdqn"], description="A2C, MLP encoder")
    ]
    | Annotated[
        LearnerSettings, tyro.conf.subcommand("acgnn", default=LEARNED["acgnn"], description="A2C, graph encoder")
    ]
    | Annotated[PolicyArgs, tyro.conf.subcommand("policy")]
)


@dataclass(frozen=True)
class Args:
    """Which agent, with its own flags."""

    other_names: ClassVar = SCRIPT_NAMES
    agent: tyro.conf.OmitSubcommandPrefixes[tyro.conf.OmitArgPrefixes[Command]]


def run(args: Args) -> int:
    """Run the agent or policy that was named."""
    if isinstance(args.agent, PolicyArgs):
        return run_policy(args.agent)
    return run_agent(args.agent)


def run_policy(args: PolicyArgs) -> int:
    """Run a policy as a scheduler until it is stopped, and return the exit status."""
    one_thread()
    from aaml.errors import UserError
    from aaml.evaluation.entries import check_live
    from aaml.evaluation.policies import load_policy, needs_expected_pods, origin
    from aaml.kube.objects.manifests import pods_like
    from aaml.live.run import SchedulerRun
    from aaml.live.source import PolicySource

    expected = pods_like(args.expected_pods) if args.expected_pods else ()

    def make() -> "Policy":
        policy = load_policy(args.policy, seed=args.seed, expected=expected)
        if needs_expected_pods(policy):
            found = f"no pod with a GPU in {args.expected_pods}" if args.expected_pods else "none"
            raise UserError(f"expected-pods: {found}; expected an openb trace or a file of pods, for {policy.name}")
        return policy

    for spec in (args.policy, args.fallback):  # before it connects
        check_live(spec, args.sim_nodes if args.cluster == "sim" else None)
    cluster = _cluster(args)
    source = PolicySource(make, origin(args.policy), args.policy)
    return _go(SchedulerRun(source, args, cluster=cluster), cluster)


def run_agent(args: LearnerSettings) -> int:
    """Run one agent until it is stopped and return the exit status."""
    one_thread()
    from aaml.evaluation.entries import check_live
    from aaml.live.agents import AgentRun

    check_live(args.fallback, args.sim_nodes if args.cluster == "sim" else None)
    cluster = _cluster(args)
    scheduler = AgentRun(args, cluster=cluster)
    if args.recording is not None:
        count = scheduler.populate_replay(args.recording)
        print(f"{count} steps of experience from {args.recording}")
    return _go(scheduler, cluster)


def _cluster(settings: SchedulerSettings) -> "ThreadedCluster | None":
    from aaml.live.in_process import in_process_cluster

    return in_process_cluster(settings.sim_nodes) if settings.cluster == "sim" else None


def _go(scheduler: "SchedulerRun", cluster: "ThreadedCluster | None") -> int:
    """Run until the end, on an in-process cluster with a workload, and return the exit status."""
    from aaml.live.workload import WorkloadDeploymentSimulator, run_together

    settings = scheduler.settings
    with ends_by(scheduler.stop) as interruption:
        if cluster is None:
            scheduler.run()
        else:
            load = settings.sim_load
            workload = WorkloadDeploymentSimulator(
                load, load, load, settings.profile, cluster=cluster, seed=settings.seed,
                shapes=settings.sim_shapes,
            )  # fmt: skip
            run_together(scheduler, workload, cluster, epochs=settings.sim_rounds)
        return LOST_STATUS if scheduler.lost else interruption.service_status
