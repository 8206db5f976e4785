"""Plays a scenario's operations on a cluster, as the benchmark's own executor does, and counts the results."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

from aaml.errors import UserError
from aaml.perf.cluster import PerfCluster
from aaml.perf.objects import claim_and_volume, new_node, pod_of, resource_slice
from aaml.perf.operations import (
    AnyOperation,
    Barrier,
    ChurnObjects,
    CreateAny,
    CreateNamespaces,
    CreateNodes,
    CreatePods,
    CreateResourceDriver,
    DeletePods,
    StartCollectingMetrics,
    StopCollectingMetrics,
    UpdateAny,
)
from aaml.perf.scenarios import Play
from aaml.perf.tally import PodTally, TrackedPod
from aaml.perf.templates import Manifest, read_object
from aaml.threads import Background

_SETTLE_S = 10.0
_QUIET_S = 0.3
_CHURN_S = 1.1  # the benchmark itself looks once a second: so long its churn goes on at least


@dataclass(frozen=True)
class PodCounts:
    """Pods that were bound (also those that are gone since), that wait at the end, and that gave way to others."""

    bound: int
    pending: int
    preempted: int

    def __str__(self) -> str:
        """`bound/pending/preempted`, as tables show it."""
        return f"{self.bound}/{self.pending}/{self.preempted}"


@dataclass(frozen=True)
class PlayResult:
    """What came of a play.

    `all` counts every pod. `sure` leaves out those whose number depends on how long the play took, because objects
    were churned or pods deleted before anybody waited for them: two schedulers must agree on it. `pods_s` is the rate
    of binds from the first measured pod's to the last's, 0 with fewer than two. `stuck` says what never came true.
    """

    all: PodCounts
    sure: PodCounts
    pods_s: float
    stuck: str = ""


class _Stuck(Exception):  # noqa: N818  (an outcome of the play, no error of the program)
    """What was waited for did not come true."""


@dataclass
class ScenarioPlayer:
    """Plays one scenario. `alive` raises when the scheduler has ended; each wait takes `wait_s` at most."""

    cluster: PerfCluster
    alive: Callable[[], None]
    wait_s: float
    _tally: PodTally = field(init=False)
    _waited: dict[str, int] = field(init=False, default_factory=dict)
    _raced: set[str] = field(init=False, default_factory=set)
    _measured: set[str] = field(init=False, default_factory=set)
    _measuring: tuple[frozenset[str], Mapping[str, str]] | None = field(init=False, default=None)
    _tasks: list[Background[None]] = field(init=False, default_factory=list)
    _over: threading.Event = field(init=False, default_factory=threading.Event)

    def play(self, play: Play) -> PlayResult:
        """Carry out every operation and return the results. The cluster must be empty."""
        stuck = ""
        with PodTally(self.cluster.api) as self._tally:
            try:
                with self._in_background():
                    for index, step in enumerate(play.steps):
                        self._do(step, index, play.folder)
            except _Stuck as error:
                stuck = str(error)
            self._settle()
            return self._outcome(stuck)

    # ---- the operations ----------------------------------------------------------------------------------------------

    def _do(self, step: AnyOperation, index: int, folder: Path) -> None:  # noqa: C901, PLR0912
        match step:
            case CreateNodes():
                self._create_nodes(step, index, folder)
            case CreateNamespaces():
                template = read_object(folder / step.namespace_template_path) if step.namespace_template_path else None
                for number in range(step.count):
                    self.cluster.ensure_namespace(f"{step.prefix}-{number}", template)
                    self._waited.setdefault(f"{step.prefix}-{number}", 0)
            case CreatePods():
                self._create_pods(step, index, folder)
            case CreateAny():
                self._create_any(step, folder)
            case UpdateAny():
                self._update_any(step, folder)
            case DeletePods():
                self._delete_pods(step)
            case CreateResourceDriver():
                self._create_driver(step)
            case ChurnObjects():
                self._churn(step, index, folder)
            case Barrier():
                self._barrier(step)
            case StartCollectingMetrics():
                self._measuring = (frozenset(step.namespaces), step.label_selector)
            case StopCollectingMetrics():
                self._stop_measuring()
            case _:
                raise UserError(f"scenario: the operation {type(step).__name__} is not played")

    def _create_nodes(self, step: CreateNodes, index: int, folder: Path) -> None:
        def create(number: int) -> None:
            template = (
                read_object(folder / step.node_template_path, number, step.count) if step.node_template_path else None
            )
            node, csi_node = new_node(template, f"node-{index}-", number, step)
            if csi_node is not None:
                self.cluster.create("/apis/storage.k8s.io/v1/csinodes", csi_node)
            self.cluster.create("/api/v1/nodes", node)

        self.cluster.together(create, step.count)

    def _create_driver(self, step: CreateResourceDriver) -> None:
        names = [each["metadata"]["name"] for each in self.cluster.get("/api/v1/nodes")]
        having = [name for name in names if fnmatchcase(name, step.nodes)]

        def create(number: int) -> None:
            devices = resource_slice(step.driver_name, having[number], step.max_claims_per_node)
            self.cluster.create("/apis/resource.k8s.io/v1/resourceslices", devices)

        self.cluster.together(create, len(having))

    def _create_pods(self, step: CreatePods, index: int, folder: Path) -> None:
        if step.steady_state:
            raise UserError("scenario: createPods in a steady state is not played")
        namespace = step.namespace or f"namespace-{index}"
        self.cluster.ensure_namespace(namespace)
        self._waited.setdefault(namespace, 0)
        if step.collect_metrics:
            self._measuring = (frozenset({namespace}), {})
        root = f"/api/v1/namespaces/{namespace}"

        def create(number: int) -> None:
            template = (
                read_object(folder / step.pod_template_path, number, step.count) if step.pod_template_path else None
            )
            pod = pod_of(template)
            if step.pod_template_path:
                pod["metadata"].setdefault("labels", {})["signature"] = (
                    f"signature-label-{number // step.signature_batch_size}"
                )
            if step.persistent_volume_template_path and step.persistent_volume_claim_template_path:
                claim, volume = claim_and_volume(
                    read_object(folder / step.persistent_volume_claim_template_path),
                    read_object(folder / step.persistent_volume_template_path),
                    namespace,
                    number,
                )
                self.cluster.create(f"{root}/persistentvolumeclaims", claim)
                self.cluster.create("/api/v1/persistentvolumes", volume)
                use = {"name": "vol", "persistentVolumeClaim": {"claimName": claim["metadata"]["name"]}}
                pod["spec"]["volumes"] = [use]
            self.cluster.create(f"{root}/pods", pod)

        self.cluster.together(create, step.count)
        if step.skip_wait_to_completion:
            self._waited[namespace] += step.count
            return
        self._wait_bound(namespace, step.count, {})
        if step.collect_metrics:
            self._stop_measuring()

    def _create_any(self, step: CreateAny, folder: Path) -> None:
        if step.namespace:
            self.cluster.ensure_namespace(step.namespace)
        for number in range(step.count):
            manifest = read_object(folder / step.template_path, number, step.count)
            self.cluster.create(self.cluster.path(manifest, step.namespace), manifest)

    def _update_any(self, step: UpdateAny, folder: Path) -> None:
        for number in self._paced(step.count, step.update_per_second):
            manifest = read_object(folder / step.template_path, number, step.count)
            path = f"{self.cluster.path(manifest, step.namespace)}/{manifest['metadata']['name']}"
            for part in (*(step.subresources or [""]), "status"):
                self.cluster.api.request("PUT", f"{path}/{part}".rstrip("/"), manifest)

    def _delete_pods(self, step: DeletePods) -> None:
        doomed = list(self._tally.select({step.namespace}, step.label_selector))
        if not all(pod.awaited for pod in doomed):
            self._raced.add(step.namespace)

        def delete() -> None:
            for number in self._paced(len(doomed), step.delete_pods_per_second):
                self.cluster.delete(f"/api/v1/namespaces/{step.namespace}/pods/{doomed[number].name}")

        if step.skip_wait_to_completion:
            self._start(delete)
        else:
            delete()

    def _churn(self, step: ChurnObjects, index: int, folder: Path) -> None:
        namespace = step.namespace or f"namespace-{index}"
        self.cluster.ensure_namespace(namespace)
        self._raced.add(namespace)
        templates = [read_object(folder / path) for path in step.template_paths]
        names: dict[tuple[int, int], str] = {}

        def one(slot: int, kind: int, template: Manifest) -> None:
            path = self.cluster.path(template, namespace)
            if step.mode == "recreate" and (name := names.pop((slot, kind), "")):
                self.cluster.delete(f"{path}/{name}")
            else:
                names[slot, kind] = str(self.cluster.create(path, template)["metadata"]["name"])

        def churn() -> None:
            count, least_s = 0, time.monotonic() + _CHURN_S
            while time.monotonic() < least_s or not self._over.is_set():
                time.sleep(step.interval_milliseconds / 1000)
                if step.mode == "create" and step.number and count >= step.number:
                    return
                for kind, template in enumerate(templates):
                    one(count % step.number if step.mode == "recreate" else count, kind, template)
                count += 1

        self._start(churn)

    def _barrier(self, step: Barrier) -> None:
        for namespace in step.namespaces or list(self._waited):
            count = self._waited.get(namespace, 0)
            if step.stage_requirement == "Scheduled":
                self._wait_bound(namespace, count, step.label_selector)
                self._waited.pop(namespace, None)
            else:
                attempted = partial(self._wait_for, namespace, count, step.label_selector)
                attempted("tried", lambda pod: bool(pod.node) or pod.attempted)

    # ---- waiting and measuring ---------------------------------------------------------------------------------------

    def _wait_bound(self, namespace: str, count: int, labels: Mapping[str, str]) -> None:
        self._wait_for(namespace, count, labels, "bound", lambda pod: bool(pod.node))
        for pod in self._tally.select({namespace}, labels):
            pod.awaited = bool(pod.node)

    def _wait_for(
        self, namespace: str, count: int, labels: Mapping[str, str], what: str, met: Callable[[TrackedPod], bool]
    ) -> None:
        def found() -> int:
            return sum(map(met, self._tally.select({namespace}, labels)))

        if not self._tally.wait(lambda: found() >= count, self.wait_s, self._check):
            raise _Stuck(f"{found()} of {count} pods of {namespace} {what} in {self.wait_s:g} s")

    def _stop_measuring(self) -> None:
        if self._measuring is not None:
            namespaces, labels = self._measuring
            self._measured |= {uid for uid, pod in self._tally.pods.items() if self._counts(pod, namespaces, labels)}
            self._measuring = None

    @staticmethod
    def _counts(pod: TrackedPod, namespaces: frozenset[str], labels: Mapping[str, str]) -> bool:
        return pod.namespace in namespaces and labels.items() <= pod.labels.items()

    def _settle(self) -> None:
        """Let what the last operation began come to its end: every pod tried, and nothing new for a moment."""
        self._tally.wait(
            lambda: all(pod.node or pod.attempted or pod.terminating for pod in self._tally.select((), {})),
            _SETTLE_S,
            self._check,
        )
        seen = None
        while seen != (now := self._placed_and_gone()):
            seen = now
            time.sleep(_QUIET_S)

    def _placed_and_gone(self) -> tuple[int, int]:
        pods = list(self._tally.pods.values())
        return sum(bool(pod.node) for pod in pods), sum(pod.gone for pod in pods)

    def _outcome(self, stuck: str) -> PlayResult:
        self._stop_measuring()
        pods = list(self._tally.pods.values())
        times = sorted(pod.bound_s for uid in self._measured if (pod := self._tally.pods[uid]).bound_s)
        rate = (len(times) - 1) / (times[-1] - times[0]) if len(times) > 1 and times[-1] > times[0] else 0.0
        sure = [pod for pod in pods if pod.namespace not in self._raced]
        victims = 0 if self._raced else sum(pod.preempted for pod in sure)
        return PlayResult(_counted(pods), PodCounts(_counted(sure).bound, _counted(sure).pending, victims), rate, stuck)

    # ---- what goes on meanwhile --------------------------------------------------------------------------------------

    @contextmanager
    def _in_background(self) -> Iterator[None]:
        """End the threads of the block's operations with it; an error of theirs becomes the block's."""
        try:
            yield
        finally:
            self._over.set()
            for task in self._tasks:
                task.wait()
        self._check()

    def _start(self, act: Callable[[], None]) -> None:
        self._tasks.append(Background(act, "benchmark"))

    def _check(self) -> None:
        self.alive()
        for task in self._tasks:
            task.check()

    def _paced(self, count: int, per_s: int) -> Iterator[int]:
        """Yield 0 to `count` - 1, so many a second (0: at once), until the play is over."""
        for number in range(count):
            if per_s and self._over.wait(1 / per_s):
                return
            yield number


def _counted(pods: list[TrackedPod]) -> PodCounts:
    return PodCounts(
        sum(bool(pod.node) for pod in pods), sum(pod.pending for pod in pods), sum(pod.preempted for pod in pods)
    )
