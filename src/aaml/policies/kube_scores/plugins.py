"""Which plugins a profile of kube-scheduler 1.37 runs where, and with which weights: the default ones and a file's.

Sources: `pkg/scheduler/apis/config/v1/default_plugins.go` (the default profile, the merge of a file's plugins) and
`pkg/scheduler/framework/runtime/framework.go` (multiPoint, weights) of Kubernetes 1.37.
"""

import re
from collections.abc import Iterator, Mapping

from aaml.errors import bad_value
from aaml.policies.kube_scores import wire
from aaml.policies.kube_scores.config import DEFAULT_WEIGHTS

_LARGEST_TOTAL = (2**63 - 1) // 100
_FILTERS = ("preFilter", "filter")
DEFAULTS: Mapping[str, tuple[tuple[str, ...], int]] = {
    "SchedulingGates": (("preEnqueue",), 0),
    "PrioritySort": (("queueSort",), 0),
    "NodeUnschedulable": (("filter",), 0),
    "NodeName": (("filter",), 0),
    "TaintToleration": (("filter", "preScore", "score"), 3),
    "NodeAffinity": ((*_FILTERS, "preScore", "score"), 2),
    "NodePorts": (_FILTERS, 0),
    "NodeResourcesFit": ((*_FILTERS, "preScore", "score"), 1),
    "VolumeRestrictions": (_FILTERS, 0),
    "NodeVolumeLimits": (_FILTERS, 0),
    "VolumeBinding": ((*_FILTERS, "preScore", "score"), 0),
    "VolumeZone": (_FILTERS, 0),
    "PodTopologySpread": ((*_FILTERS, "preScore", "score"), 2),
    "InterPodAffinity": ((*_FILTERS, "preScore", "score"), 2),
    "DynamicResources": (("preEnqueue", *_FILTERS, "postFilter", "score"), 2),
    "DefaultPreemption": (("preEnqueue", "postFilter"), 0),
    "NodeResourcesBalancedAllocation": (("preScore", "score"), 1),
    "ImageLocality": (("score",), 1),
    "DefaultBinder": (("bind",), 0),
    "NodeDeclaredFeatures": (_FILTERS, 0),
}
"""The default profile: plugin -> (those of its extension points that matter here, its weight)."""
_POINTS = ("preEnqueue", "queueSort", "preFilter", "filter", "postFilter", "preScore", "score", "bind")


class EnabledPlugins:
    """Which plugins of a profile run at which extension point, defaults and multiPoint included."""

    def __init__(self, plugins: wire.Plugins, where: str) -> None:
        self._where = where
        self._sets: dict[str, wire.PluginSet] = {
            point: getattr(plugins, re.sub("([A-Z])", r"_\1", point).lower()) for point in _POINTS
        }
        self._multi = self._merged(plugins.multi_point)
        everywhere: list[wire.PluginSet] = [getattr(plugins, name) for name in plugins.__struct_fields__]
        self._named = {each.name for given in everywhere for each in given.enabled} | set(self._multi)
        for point, given in self._sets.items():
            names = [each.name for each in given.enabled]
            for number, name in enumerate(names):
                if name in names[:number]:
                    raise bad_value(f"{where}.{point}.enabled", name, "a plugin once")
                if name in DEFAULTS and point not in DEFAULTS[name][0]:
                    raise bad_value(f"{where}.{point}.enabled", name, f"a plugin that extends {point}")
        for point, word in (("queueSort", "one plugin"), ("bind", "a plugin")):
            found = self.at(point)
            if not found or (point == "queueSort" and len(found) > 1):
                raise bad_value(f"{where}.{point}", ", ".join(found) or "none", word)
        total = sum(self.weights(every=True).values())
        if total > _LARGEST_TOTAL:
            raise bad_value(f"{where}.score: sum of weights", total, f"at most {_LARGEST_TOTAL}")

    def _merged(self, given: wire.PluginSet) -> dict[str, int]:
        """Return multiPoint's plugins with their weights: a plugin named again has the weight that is given there."""
        dropped = {each.name for each in given.disabled}
        defaults = {} if "*" in dropped else {name: of[1] for name, of in DEFAULTS.items() if name not in dropped}
        again: set[str] = set()
        for each in given.enabled:
            if each.name in again:
                raise bad_value(f"{self._where}.multiPoint.enabled", each.name, "a plugin once")
            again.add(each.name)
            defaults[each.name] = each.weight
        return defaults

    def at(self, point: str) -> list[str]:
        """Return the plugins that run at an extension point, as far as it is known what they extend."""
        given = self._sets[point]
        own, off = [each.name for each in given.enabled], {each.name for each in given.disabled}
        expanded = () if "*" in off else (name for name in self._multi if name not in off and name not in own)
        return [*own, *(name for name in expanded if name in DEFAULTS and point in DEFAULTS[name][0])]

    def weights(self, *, every: bool = False) -> dict[str, int]:
        """Return the weights of the score plugins that AAML knows, or of all that run."""
        own = {each.name: each.weight for each in self._sets["score"].enabled}
        found = {name: own.get(name, self._multi.get(name, 0)) or 1 for name in self.at("score")}
        return {name: weight for name, weight in found.items() if every or name in DEFAULT_WEIGHTS}

    def unmodelled(self) -> Iterator[str]:
        """Name plugins that AAML does not know, and defaults that are off although AAML always has them."""
        if others := sorted(self._named - set(DEFAULTS)):
            yield f"plugins that are not kube-scheduler's own ({', '.join(others)})"
        for point in _POINTS:
            if point == "score":
                continue
            runs = set(self.at(point))
            scores = set(self.at("score"))
            off = [
                name
                for name, (points, _) in DEFAULTS.items()
                if point in points and name not in runs and (point != "preScore" or name in scores)
            ]
            if off:
                yield f"{point} without {', '.join(off)}"
        if extra := [
            each.name for each in self._sets["score"].enabled if each.name in DEFAULTS.keys() - DEFAULT_WEIGHTS
        ]:
            yield f"scores of {', '.join(extra)}"
