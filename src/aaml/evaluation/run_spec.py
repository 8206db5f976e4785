"""How the runs of an evaluation were made, and their replay: the same task, seed and policy decide the same."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from aaml.errors import UserError, bad_value
from aaml.evaluation.entries import PolicyEntry
from aaml.evaluation.identity import changed_since, identity
from aaml.evaluation.policies import frozen, is_model, split_nodes
from aaml.files import write_json
from aaml.insight.explain import explain
from aaml.insight.replay import AttemptRecord, Replay
from aaml.nodes.catalogue_file import read_catalogue
from aaml.scheduling.loop import never
from aaml.scheduling.play import play
from aaml.schema import convert, of_json, read_bytes
from aaml.sim.recorded import TraceTask
from aaml.sim.recorded_bill import RecordedBillTask, provisioned_from
from aaml.sim.task import Task
from aaml.sim.tasks import find_task, find_trace_task
from aaml.workload.trace.windows import Part

if TYPE_CHECKING:
    from aaml.insight.explanation import Explanation
    from aaml.scheduling.ports import Policy

RUN_SPECS = "recipes.json"


@dataclass(frozen=True)
class RunSpec:
    """How the runs on a task were made: its policies by label, and the pods of an episode where they were set.

    `instance_types` is the file of what could be provisioned in the bill of a trace, where one was given.
    """

    task: Task
    policies: Mapping[str, "str | Policy"] = field(default_factory=dict)
    pods: int | None = None
    instance_types: Path | None = None

    @classmethod
    def of(cls, task: Task, entries: Iterable[PolicyEntry], pods: int | None) -> "RunSpec":
        """Return the spec of an evaluation's runs."""
        return cls(task, {each.name: each.whole for each in entries}, pods)

    @property
    def learned(self) -> frozenset[str]:
        """The labels of policies that are model files."""
        return frozenset(
            label for label, spec in self.policies.items() if isinstance(spec, str) and is_model(split_nodes(spec)[0])
        )

    def over(self, earlier: "RunSpec") -> "RunSpec":
        """Return this with the policies of an earlier spec too."""
        return replace(self, policies={**earlier.policies, **self.policies})

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-able values; policies that are objects of a program are left out."""
        named = {label: spec for label, spec in self.policies.items() if isinstance(spec, str)}
        types = {} if self.instance_types is None else {"instance_types": str(self.instance_types)}
        part = {"part": self.task.part} if isinstance(self.task, TraceTask) and self.task.part != "holdout" else {}
        return {"task": self.task.name, "pods": self.pods, "policies": named, **types, **part}

    def entry(self, policy: str) -> PolicyEntry:
        """Return a policy by its label, or by anything that `aaml.evaluate` takes."""
        found = self.policies.get(policy, policy)
        spec, nodes = split_nodes(found) if isinstance(found, str) else (found, "")
        return PolicyEntry(spec, policy, nodes)

    def replay(
        self,
        policy: str,
        seed: int,
        nodes: int | None = None,
        *,
        until: Callable[[Replay], bool] | None = None,
        stop: Callable[[], bool] = never,
        begun: Callable[[Replay], object] = lambda _answers: None,
    ) -> Replay:
        """Run the episode again and return its replay, up to where `until(replay)` or `stop()` is true.

        `begun` is called with the replay before the first decision, so that it can be shown while it grows. Raises
        `UserError` where the file of instance types cannot be read any more.
        """
        entry = self.entry(policy)
        cluster = entry.task(self._provisioned()).build(seed, nodes, pods=self.pods)
        with frozen(entry.spec):
            player = entry.policy(self.task, seed)
            replay = Replay.of(cluster, player)
            replay.policy = entry.name
            begun(replay)
            play(cluster, player, observers=[replay], stop=lambda: stop() or (until is not None and until(replay)))
        return replay

    def changed(self, run: Mapping[str, Any]) -> str:
        """Return in a line what is not as it was in a run, a row of results: its task or its policy; "" for neither."""
        label = str(run["policy"])
        now = identity(self._provisioned(), self.pods, self.entry(label).whole, label)
        whats = {"task_sha256": f"task: {self.task.name}", "policy_sha256": f"policy: {label}"}
        return "; ".join(
            f"{whats[column]} is not what it was in this run ({column} {run[column] or 'none'}, now "
            f"{now[column] or 'none'})"
            for column in changed_since(run, now)
        )

    def _provisioned(self) -> Task:
        """Return the task with the types that nodes were provisioned from."""
        if self.instance_types is None or not isinstance(self.task, RecordedBillTask):
            return self.task
        return provisioned_from(self.task, read_catalogue(self.instance_types, {}))

    def explain(self, replay: Replay, record: AttemptRecord, policy: str = "", *, seed: int = 0) -> "Explanation":
        """Explain an attempt of a replay by the policy that decided, or say what another one would do in that state."""
        entry = self.entry(policy or replay.policy)
        with frozen(entry.spec):
            player = entry.policy(self.task, seed)  # its scores do not depend on what it has decided before
            context = replay.context(record, player)
            decided = replay.decision(record) if entry.name == replay.policy else None
            number = replay.forgotten + replay.decisions.index(record) if record in replay.decisions else -1
            explained = explain(context, player, decided, number=number, name=entry.name)
        timed = decided is not None and record.kind != "bound"  # which was seen when somebody else had decided
        took = {"filters (in the run)": record.filter_s, "policy (in the run)": record.policy_s} if timed else {}
        return replace(explained, seconds={**took, **explained.seconds})


def write_run_specs(folder: Path, run_specs: Mapping[str, RunSpec]) -> None:
    """Write the specs beside the results. Those that the folder holds of other tasks and policies are kept."""
    known = read_run_specs([folder])
    for task, spec in run_specs.items():
        known[task] = spec.over(known[task]) if task in known else spec
    if known:
        content = [spec.to_dict() for spec in known.values()]
        write_json(folder / RUN_SPECS, content, indent=2, field="recipes")


def read_run_specs(folders: Iterable[Path]) -> dict[str, RunSpec]:
    """Return the specs of the runs in result folders, by task. Raises `UserError` for a damaged file."""
    found: dict[str, RunSpec] = {}
    for path in (folder / RUN_SPECS for folder in folders):
        if not path.is_file():
            continue
        for each in convert(of_json(read_bytes(path, "recipes"), str(path)), list[_Kept], str(path)):
            types = None if each.instance_types is None else Path(each.instance_types)
            task = find_task(each.task) if each.part == "holdout" else find_trace_task(each.task, each.part)
            spec = RunSpec(task, each.policies, each.pods, types)
            name = spec.task.name
            found[name] = spec.over(found[name]) if name in found else spec
    return found


class _Kept(msgspec.Struct, forbid_unknown_fields=True):
    """What `RunSpec.to_dict` writes."""

    task: str
    policies: dict[str, str]
    pods: Annotated[int, Meta(ge=1)] | None = None
    instance_types: str | None = None
    part: Part = "holdout"


def find_attempt(replay: Replay, which: int | str) -> AttemptRecord:
    """Return a decision by its number, or the latest attempt to place a pod by its name. Raises `UserError`."""
    if isinstance(which, int):
        decisions = replay.decisions
        if not 0 <= which < len(decisions):
            raise bad_value("decision", which, f"0 to {len(decisions) - 1}, the decisions of this run")
        return decisions[which]
    wanted = which if "/" in which else f"default/{which}"
    for record in reversed(replay.attempts):
        if replay.pods[record.pod].key == wanted:
            return record
    names = ", ".join(replay.pods[record.pod].key for record in replay.attempts[:3])
    raise UserError(f"pod: {which!r} was not decided on in this run; its pods are called {names} ...")
