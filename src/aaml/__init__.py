"""AAML: research, train, compare and run learned Kubernetes schedulers.

    import aaml
    task  = aaml.task("balance", nodes=10)
    agent = aaml.train("gnn", task, steps=1_000_000)
    print(aaml.evaluate([agent, "kube-scheduler", "least-variance"], task, seeds=range(1000, 1020)))
    aaml.schedule(agent, aaml.connect())

Each name below is imported when it is first used: `import aaml` itself costs nothing. One that needs an extra which is
not installed raises `UserError` with the line that says how to install it. `gymnasium.make("aaml/Cluster-v0")` is the
environment.
"""

from typing import TYPE_CHECKING, Any

from aaml.environments import register as _register

if TYPE_CHECKING:
    from aaml.errors import UserError as UserError
    from aaml.evaluation.comparison import Comparison as Comparison
    from aaml.evaluation.evaluate import evaluate as evaluate
    from aaml.evaluation.policies import load as load
    from aaml.evaluation.policies import load_policy as policy
    from aaml.evaluation.results import Results as Results
    from aaml.learning.config import ActorCritic as ActorCritic
    from aaml.learning.config import Dqn as Dqn
    from aaml.learning.config import Linear as Linear
    from aaml.learning.config import QTable as QTable
    from aaml.live.scheduler import Scheduler as Scheduler
    from aaml.live.scheduler import connect as connect
    from aaml.live.scheduler import schedule as schedule
    from aaml.live.workload import simulate as simulate
    from aaml.policies.registry import register_policy as register_policy
    from aaml.policies.registry import register_reward as register_reward
    from aaml.scheduling.observation import ObservationSpec as ObservationSpec
    from aaml.scheduling.queue_sort import QueueSort as QueueSort
    from aaml.sim.task import Task as Task
    from aaml.sim.tasks import make_task as task
    from aaml.training.run import train as train

    __version__: str

# name -> (module, what it is called there)
_DOOR = {
    "ActorCritic": ("aaml.learning.config", "ActorCritic"),
    "Comparison": ("aaml.evaluation.comparison", "Comparison"),
    "Dqn": ("aaml.learning.config", "Dqn"),
    "Linear": ("aaml.learning.config", "Linear"),
    "ObservationSpec": ("aaml.scheduling.observation", "ObservationSpec"),
    "QTable": ("aaml.learning.config", "QTable"),
    "QueueSort": ("aaml.scheduling.queue_sort", "QueueSort"),
    "Results": ("aaml.evaluation.results", "Results"),
    "Scheduler": ("aaml.live.scheduler", "Scheduler"),
    "Task": ("aaml.sim.task", "Task"),
    "UserError": ("aaml.errors", "UserError"),
    "connect": ("aaml.live.scheduler", "connect"),
    "evaluate": ("aaml.evaluation.evaluate", "evaluate"),
    "load": ("aaml.evaluation.policies", "load"),
    "policy": ("aaml.evaluation.policies", "load_policy"),
    "register_policy": ("aaml.policies.registry", "register_policy"),
    "register_reward": ("aaml.policies.registry", "register_reward"),
    "schedule": ("aaml.live.scheduler", "schedule"),
    "simulate": ("aaml.live.workload", "simulate"),
    "task": ("aaml.sim.tasks", "make_task"),
    "train": ("aaml.training.run", "train"),
}
__all__ = [
    "ActorCritic", "Comparison", "Dqn", "Linear", "ObservationSpec", "QTable", "QueueSort", "Results", "Scheduler",
    "Task", "UserError", "__version__", "connect", "evaluate", "load", "policy", "register_policy", "register_reward",
    "schedule", "simulate", "task", "train",
]  # fmt: skip

_register()


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("aaml")
    if name not in _DOOR:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from aaml.extras import load

    module, called = _DOOR[name]
    return globals().setdefault(name, getattr(load(module), called))


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
