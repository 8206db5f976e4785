"""Pod groups drawn at random, on the clusters of `Cases`: of pods alike and unlike, in a rack, a zone or anywhere."""

from collections.abc import Sequence
from typing import Any

from support.scheduling_cases import KEYS, NAMESPACES, Cases, Manifest

_SIZES = (1, 2, 2, 3, 3, 4, 5, 6)


def _without_hard_spread(pod: Manifest) -> None:
    """Take out the constraints under which kube-scheduler's preemption by a group is no oracle.

    PodTopologySpread keeps the two domains with the fewest pods, drawn where some are equal, and no more. As pods are
    put back in many domains, that is no longer the minimum (`criticalPaths` of filtering.go says so itself).
    """
    constraints = pod["spec"].get("topologySpreadConstraints", ())
    soft = [each for each in constraints if each["whenUnsatisfiable"] != "DoNotSchedule"]
    pod["spec"] |= {"topologySpreadConstraints": soft}


class GroupCases(Cases):
    """Clusters with groups; `Cases` has the nodes and single pods."""

    def group(self, name: str, demanding: float, **spec: Any) -> tuple[Manifest, list[Manifest]]:
        """A PodGroup and its pods, in the order in which they are to be tried."""
        rng = self.rng
        size, namespace = rng.choice(_SIZES), rng.choice(list(NAMESPACES))
        gang = {"gang": {"minCount": rng.randint(1, size) if self.chance(0.4) else size}}
        policy = {"basic": {}} if self.chance(0.1) else gang
        topology = [{"key": rng.choice(["rack", "rack", KEYS[1], KEYS[0]])}] if self.chance(0.75) else []
        mode = {"disruptionMode": {"all": {}}} if self.chance(0.5) else {}
        group = {
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"schedulingPolicy": policy, "schedulingConstraints": {"topology": topology}, **mode, **spec},
        }
        alike = self.pod(demanding=demanding) if self.chance(0.5) else None
        pods = []
        for number in range(size):
            pod = self.pod(demanding=demanding) if alike is None else {**alike, "spec": dict(alike["spec"])}
            labels = pod["metadata"]["labels"]
            pod["metadata"] = {"name": f"{name}-{number}", "namespace": namespace, "labels": labels}
            pod["spec"]["schedulingGroup"] = {"podGroupName": name}
            if "priorityClassName" in spec:
                pod["spec"]["priorityClassName"] = spec["priorityClassName"]
                _without_hard_spread(pod)
            pods.append(pod)
        return group, pods

    def running_groups(self, nodes: Sequence[Manifest], count: int) -> tuple[list[Manifest], list[Manifest]]:
        """Groups and pods that run, each pod for another time; some of the pods are of a group of their priority."""
        pods, groups = self.running(nodes, count, leaving=False), []
        for number in range(self.rng.randint(0, 4)):
            namespace, name = self.rng.choice(list(NAMESPACES)), f"{self.prefix}-running-{number}"
            free = [pod for pod in pods if pod["metadata"]["namespace"] == namespace]
            free = [pod for pod in free if "schedulingGroup" not in pod["spec"]]
            members = self.rng.sample(free, min(len(free), self.rng.randint(1, 4)))
            priority = self.rng.choice(["lowest", "low", "middle"])
            for pod in members:
                pod["spec"] |= {"schedulingGroup": {"podGroupName": name}, "priorityClassName": priority}
            mode = self.rng.choice([{}, {"disruptionMode": {"all": {}}}, {"disruptionMode": {"all": {}}}])
            spec = {"schedulingPolicy": {"basic": {}}, "priorityClassName": priority, **mode}
            groups.append({"metadata": {"name": name, "namespace": namespace}, "spec": spec})
        return groups, pods
