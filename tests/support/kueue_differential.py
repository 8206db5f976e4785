"""Lets the real Kueue and AAML's rules admit the same workloads, many worlds at a time, one event after the other.

Of a world at most one workload is made in a second, because Kueue orders by seconds and draws among queues whose oldest
are of the same one. After an event both are left alone until nothing moves; then who was admitted, with which flavors
and into which domains, has to be the same.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from aaml.kube.provision import create_nodes
from aaml.kube.transport import NOT_FOUND, Transport, allowing
from aaml.scheduling.kueue.admission import RETRY_S, Admission, Admitted
from aaml.scheduling.kueue.objects import Workload
from support.differential import Tally
from support.kueue_cases import VERSION, World, manifests, workload_manifest

KUEUE = f"/apis/{VERSION['apiVersion']}"
WORKLOADS = f"{KUEUE}/namespaces/default/workloads"
_MOST_PENDING = 7
_QUIET_S, _STEADY_S = RETRY_S + 0.5, 0.3
_PATIENCE_S = 20.0


@dataclass
class Bench:
    """A world on the real cluster, beside the rules."""

    world: World
    rules: Admission
    known: dict[str, Workload] = field(default_factory=dict)
    wrong: bool = False
    log: list[str] = field(default_factory=list)


class Differential:
    """Worlds on one cluster with Kueue."""

    def __init__(self, api: Transport, tally: Tally) -> None:
        self.api, self.tally, self._steps = api, tally, 0

    def play(self, worlds: Sequence[World], steps: int) -> None:
        """Let so many events happen in each world, and take all of it off the cluster again."""
        benches = [Bench(world, world.model()) for world in worlds]
        create_nodes(self.api, [node for world in worlds for node in world.nodes], progress=False)
        for world in worlds:
            for plural, manifest in manifests(world):
                self.api.request("POST", f"{KUEUE}/{plural}", manifest)
        self._wait(self._queues_active, worlds)
        try:
            for _ in range(steps):
                self._step(benches)
        finally:
            self._clear(worlds)

    def _step(self, benches: Sequence[Bench]) -> None:
        began = time.monotonic()
        self._steps += 1
        for bench in benches:
            # Where there are Cohort objects Kueue tries again for another second or two after an event.
            if not bench.wrong and (self._steps % 2 or not bench.world.cohorts):
                self._event(bench)
        time.sleep(max(0.0, began + _QUIET_S - time.monotonic()))
        found = self._steady()
        late = [bench for bench in benches if not bench.wrong and self._differs(bench, found)]
        if late:  # a busy machine: once more
            time.sleep(3.0)
            found = self._steady()
        for bench in benches:
            if not bench.wrong:
                self._compare(bench, found)

    def _event(self, bench: Bench) -> None:
        """Make a workload, or end one."""
        rng, rules = bench.world.rng, bench.rules
        pending = len(bench.known) - len(rules.admitted)
        if pending < _MOST_PENDING and (not rules.admitted or rng.random() < 0.6):
            drawn = bench.world.workload()
            made = json.loads(self.api.request("POST", WORKLOADS, workload_manifest(drawn)))["metadata"]
            created_s = datetime.fromisoformat(made["creationTimestamp"]).timestamp()
            workload = replace(drawn, created_s=created_s, uid=made["uid"])
            bench.known[workload.name] = workload
            bench.log.append(f"+{workload.name} {workload}")
            rules.submit(workload)
            _settled(rules, workload.queue, retry=False)
            return
        waiting = sorted(bench.known.keys() - rules.admitted.keys())
        gone = rng.choice(
            waiting if waiting and (not rules.admitted or rng.random() < 0.25) else sorted(rules.admitted)
        )
        self.api.request("DELETE", f"{WORKLOADS}/{gone}")
        del bench.known[gone]
        bench.log.append(f"-{gone}")
        _settled(rules, rules.finish(gone), retry=True)

    def _steady(self) -> dict[str, Any]:
        """Return all workloads by name once two looks at them agree on who is admitted."""
        deadline, before = time.monotonic() + _PATIENCE_S, None
        while True:
            items = json.loads(self.api.request("GET", WORKLOADS))["items"]
            found = {each["metadata"]["name"]: each for each in items}
            now = {name: _theirs(each) for name, each in found.items()}
            if now == before or time.monotonic() > deadline:
                return found
            before = now
            time.sleep(_STEADY_S)

    def _differs(self, bench: Bench, found: dict[str, Any]) -> bool:
        return any(_ours(bench.rules, name) != _theirs(found.get(name, {})) for name in bench.known)

    def _compare(self, bench: Bench, found: dict[str, Any]) -> None:
        for name in bench.known:
            ours, theirs = _ours(bench.rules, name), _theirs(found.get(name, {}))
            if ours == theirs:
                continue
            if bench.world.balanced and _as_good(ours, theirs):
                self.tally.count("pod sets in other domains that are as good")
                _follow(bench.rules, name, theirs)
                continue
            said = [each["message"] for each in found.get(name, {}).get("status", {}).get("conditions", [])]
            self.tally.mismatches.append(
                f"{name}: ours {ours}, Kueue's {theirs}; seed {bench.world.seed}; {said}; {bench.log[-1]}"
            )
            bench.wrong = True
        for name, admitted in bench.rules.admitted.items():
            if name not in self._counted:
                self._count(name, admitted)

    _counted: frozenset[str] = frozenset()

    def _count(self, name: str, admitted: Admitted) -> None:
        self._counted |= {name}
        self.tally.count("admissions")
        for given in admitted.pod_sets:
            request = given.pod_set.topology
            self.tally.count(f"pod sets, {'no request' if request is None else request.how}")
            if given.domains is not None:
                self.tally.count("domains", len(given.domains))

    def _queues_active(self, worlds: Sequence[World]) -> bool:
        items = json.loads(self.api.request("GET", f"{KUEUE}/clusterqueues"))["items"]
        active = {
            each["metadata"]["name"]
            for each in items
            if any(
                one["type"] == "Active" and one["status"] == "True"
                for one in each.get("status", {}).get("conditions", [])
            )
        }
        nodes = json.loads(self.api.request("GET", "/api/v1/nodes"))["items"]
        ready = {
            each["metadata"]["name"]
            for each in nodes
            if not any(one["key"].startswith("node.kubernetes.io/not") for one in each["spec"].get("taints", []))
        }
        wanted = {node.name for world in worlds for node in world.nodes}
        return {queue.name for world in worlds for queue in world.queues} <= active and wanted <= ready

    def _wait(self, condition: Any, *arguments: Any) -> None:
        deadline = time.monotonic() + 60.0
        while not condition(*arguments):
            assert time.monotonic() < deadline, f"{condition.__name__}: not in a minute"
            time.sleep(0.2)

    def _clear(self, worlds: Sequence[World]) -> None:
        self.api.request("DELETE", WORKLOADS)
        for world in worlds:
            for plural, manifest in reversed(manifests(world)):
                with allowing(NOT_FOUND):
                    self.api.request("DELETE", f"{KUEUE}/{plural}/{manifest['metadata']['name']}")
            for node in world.nodes:
                with allowing(NOT_FOUND):
                    self.api.request("DELETE", f"/api/v1/nodes/{node.name}")


def _settled(rules: Admission, queue: str, *, retry: bool) -> None:
    """Let a change of a queue, and what it leads to, come to rest."""
    rules.settle()
    changed = {queue} if retry or rules.stirs(queue) else set()
    while changed:
        for name in changed:
            rules.retry(name)
        changed = {each.workload.queue for each in rules.settle() if rules.stirs(each.workload.queue)}


def _ours(rules: Admission, name: str) -> Any:
    if name not in rules.admitted:
        return None
    found = []
    for given in rules.admitted[name].pod_sets:
        domains = None
        if given.domains is not None:
            by_node = rules.rooms[given.domain_flavor].levels[-1] == "kubernetes.io/hostname"
            domains = {(values[-1:] if by_node else values): count for values, count in given.domains}
        found.append((dict(sorted(given.flavors.items())), domains))
    return found


def _as_good(ours: Any, theirs: Any) -> bool:
    """Say whether both have the same flavors, and as many pods in as many domains."""
    if ours is None or theirs is None:
        return False
    return all(
        flavors == other and sorted((domains or {}).values()) == sorted((others or {}).values())
        for (flavors, domains), (other, others) in zip(ours, theirs, strict=True)
    )


def _follow(rules: Admission, name: str, theirs: Any) -> None:
    """Let a workload have the domains that Kueue drew."""
    for given, (_, domains) in zip(rules.admitted[name].pod_sets, theirs, strict=True):
        if given.domains is None:
            continue
        room = rules.rooms[given.domain_flavor]
        room.add(given.domains, given.pod_set.requests, -1)
        leaves = {leaf[-len(next(iter(domains))) :]: leaf for leaf in room.leaves}
        given.domains = tuple((leaves[values], count) for values, count in domains.items())
        room.add(given.domains, given.pod_set.requests)


def _theirs(workload: dict[str, Any]) -> Any:
    admission = workload.get("status", {}).get("admission")
    if admission is None:
        return None
    return [
        (dict(sorted(each.get("flavors", {}).items())), _domains(each.get("topologyAssignment")))
        for each in admission["podSetAssignments"]
    ]


def _domains(assignment: dict[str, Any] | None) -> dict[tuple[str, ...], int] | None:
    """Return the domains of a topology assignment, whose values Kueue writes down without what they have in common."""
    if assignment is None:
        return None
    found: dict[tuple[str, ...], int] = {}
    for part in assignment["slices"]:
        columns = []
        for level in part["valuesPerLevel"]:
            if "universal" in level:
                columns.append([level["universal"]] * part["domainCount"])
            else:
                each = level["individual"]
                columns.append([each.get("prefix", "") + root + each.get("suffix", "") for root in each["roots"]])
        counts = part["podCounts"].get("individual") or [part["podCounts"]["universal"]] * part["domainCount"]
        found |= dict(zip(zip(*columns, strict=True), counts, strict=True))
    return found
