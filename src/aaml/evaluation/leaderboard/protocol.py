"""What the leaderboard asks of a policy: tasks, sizes, seeds, metrics and references, fixed under a version number.

Whoever changes a number here gives the protocol another version: results of another version are not shown together.
A round that is added changes no result that stands, so it needs none.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from aaml.errors import bad_value
from aaml.sim.metrics import Metric, find_metric
from aaml.sim.task import Task
from aaml.sim.tasks import find_task


@dataclass(frozen=True, slots=True)
class Round:
    """A task of the protocol at its cluster sizes.

    `sizes` are pairs of a number of nodes and a number of episodes. The first of `metrics` ranks the policies, all are
    kept. `reference` is the heuristic that policies are compared with. `knows` is a policy that knows what nobody can:
    what it gains on the reference is what there is to gain, as far as known; empty where there is none. `usual` are the
    policies that are run where none is named, and `scale` multiplies values of the first metric where they are shown.
    With `relative` they are shown in terms of the reference's, each episode counting alike: for episodes that differ
    more than policies do.
    """

    task: str
    sizes: tuple[tuple[int, int], ...]
    metrics: tuple[str, ...]
    reference: str
    usual: tuple[str, ...]
    knows: str = ""
    scale: int = 1
    relative: bool = False

    @property
    def metric(self) -> Metric:
        """The metric that ranks."""
        return find_metric(self.metrics[0])

    def scale_of(self, metric: str) -> int:
        """Return by what a metric's values are multiplied where they are shown."""
        return self.scale if metric == self.metrics[0] else 1


@dataclass(frozen=True, slots=True)
class Piece:
    """One round at one size: what one result file holds of a policy."""

    round: Round
    nodes: int
    seeds: range

    @property
    def task(self) -> Task:
        """The task."""
        return find_task(self.round.task)

    @property
    def name(self) -> str:
        """What files and messages call it, such as balance-10."""
        return f"{self.round.task}-{self.nodes}"


@dataclass(frozen=True, slots=True)
class Protocol:
    """Rounds, and the number of the first seed: an episode's seeds go up from there, the same for all rounds."""

    version: int
    first_seed: int
    rounds: tuple[Round, ...]

    def round(self, task: str) -> Round:
        """Return the round of a task. Raises `UserError` where there is none."""
        for each in self.rounds:
            if each.task == task:
                return each
        raise bad_value("task", task, f"one of {', '.join(each.task for each in self.rounds)}")

    def pieces(self, tasks: Sequence[str] = (), nodes: Sequence[int] = ()) -> Iterator[Piece]:
        """Yield the pieces of these tasks and sizes, of all where none are given. Raises `UserError` for other ones."""
        rounds = [self.round(task) for task in tasks] or self.rounds
        known = sorted({size for each in rounds for size, _ in each.sizes})
        for size in nodes:
            if size not in known:
                raise bad_value("nodes", size, f"one of {', '.join(map(str, known))}")
        for each in rounds:
            for size, episodes in each.sizes:
                if not nodes or size in nodes:
                    yield Piece(each, size, range(self.first_seed, self.first_seed + episodes))


_PACKING = ("most-allocated", "best-fit", "kube-scheduler-packing", "kube-scheduler")
_LIFETIMES = ("nilas", "lava", "clairvoyant")
_ORDERS = ("shortest-first", "clairvoyant-shortest-first")

PROTOCOL = Protocol(
    version=1,
    first_seed=50_000,
    rounds=(
        Round(
            "balance", ((10, 30), (37, 20), (100, 10), (400, 4)), ("mean_variance",), "least-variance",
            ("least-variance", "kube-scheduler", "least-allocated", "random"), scale=1000,
        ),
        Round(
            "varied", ((10, 60), (40, 30), (100, 10)), ("mean_variance",), "least-variance",
            ("least-variance", "kube-scheduler", "least-allocated", "random"), scale=1000, relative=True,
        ),
        Round(
            "compress", ((10, 50), (40, 20), (100, 10)), ("mean_empty_fraction",), "most-allocated",
            (*_PACKING, *_LIFETIMES), knows="clairvoyant",
        ),
        Round(
            "waiting", ((10, 50), (20, 20)), ("waiting_mean_s", "waiting_p99_s"), "kube-scheduler",
            (
                "kube-scheduler", "kube-scheduler-packing", "least-variance", "first-come", "smallest-first",
                "least-work-first", "clairvoyant-least-work-first",
            ),
        ),
        *(
            Round(
                f"services-and-jobs@{load}", ((10, 20), (40, 5)), ("mean_empty_fraction",), "best-fit",
                (*_PACKING, *_LIFETIMES), knows="clairvoyant",
            )
            for load in (0.2, 0.35, 0.5)
        ),
        *(
            Round(
                f"churn@{load}", ((10, 20), (40, 10)), ("mean_gpu_waiting", "mean_whole_gpus", "mean_gpu_allocation"),
                "fgd",
                ("fgd", "best-fit", "dot-product", "gpu-packing", "kube-scheduler", "random", *_LIFETIMES, *_ORDERS),
                knows="clairvoyant",
            )
            for load in (0.8, 0.9, 1.0)
        ),
        Round(
            "bill", ((20, 30), (100, 10)), ("cost", "bill", "waiting_p99_s", "evicted"), "kube-scheduler-packing",
            ("kube-scheduler", "kube-scheduler-packing", "most-allocated", "best-fit", *_LIFETIMES, "random"),
            relative=True,
        ),
        Round(
            "bill-openb", ((20, 10),), ("cost", "bill", "waiting_p99_s", "evicted"), "kube-scheduler-packing",
            ("kube-scheduler", "kube-scheduler-packing", "most-allocated", "best-fit", "fgd", *_LIFETIMES, "random"),
            relative=True,
        ),
    ),
)  # fmt: skip
