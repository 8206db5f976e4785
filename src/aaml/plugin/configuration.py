"""The KubeSchedulerConfiguration of a plugin: as it is deployed, and as a process of this machine takes it.

https://kubernetes.io/docs/reference/config-api/kube-scheduler-config.v1/
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from aaml.errors import UserError

PLUGIN = "AAML"
"""The plugin's name in a profile."""
DEFAULTS_GIVE = 1_500
"""What the default score plugins give a node at most, all together: each 0 to 100 times its weight, and the weights of
those that score sum up to 15.
"""
DECIDES = 10_000
"""The usual weight of the plugin. It gives its best node 100, the next one 99 and so on, times this: a step counts more
than `DEFAULTS_GIVE`, and leaves room for score plugins of the user's own.
"""
CANDIDATES = 16
"""How many of the policy's best nodes kube-scheduler filters where the policy decides and a pod's filters are simple.
All of them pass; more than one are for a filter that the plugin does not know.
"""
FOLDER = "/etc/aaml"
"""Where a container has the configuration and the weights."""
DEFAULT = "default-scheduler"
"""The scheduler of pods that name none."""


@dataclass(frozen=True)
class ProfileOptions:
    """What a profile is like.

    `weight` is that of the plugin's ranks. With `alone` the plugin carries the default score plugins and asks them only
    where the policy cannot decide. `nodes_percentage` of the feasible nodes are scored (0: as many as kube-scheduler
    takes by itself; None: all, or as many as a policy says that is a profile itself). `learn` is the Unix socket of a
    learner, which is told each decision, "" for none.
    """

    scheduler_name: str = "aaml-kube-scheduler"
    weight: int = DECIDES
    alone: bool = False
    nodes_percentage: int | None = None
    learn: str = ""


def deployed(options: ProfileOptions) -> dict[str, Any]:
    """Return the configuration of a scheduler in a cluster: leader election, weights from the mounted folder.

    In the place of the cluster's own scheduler it shares that one's Lease, so that one of them decides at a time.
    """
    namespace, lease = (
        ("kube-system", "kube-scheduler") if options.scheduler_name == DEFAULT else ("aaml", "aaml-kube-scheduler")
    )
    plugins: dict[str, Any] = {
        "multiPoint": {"enabled": [{"name": PLUGIN, "weight": options.weight}]},
        "postFilter": {"enabled": [{"name": PLUGIN}]},  # named at a point of its own it comes before preemption
        "bind": _only({"name": PLUGIN}, {"name": "DefaultBinder"}),  # in this order
    }
    plugin_args: dict[str, Any] = {"weightsFile": f"{FOLDER}/weights.json"}
    if options.learn:  # the learner writes weights beside its socket; until then those decide that are compiled in
        plugin_args = {"weightsFile": str(Path(options.learn).parent / "weights.json"), "learnSocket": options.learn}
    if options.alone:
        plugin_args["fallback"] = "default"
        plugins["preScore"] = _only({"name": PLUGIN})
        plugins["score"] = _only({"name": PLUGIN, "weight": options.weight})
    if options.alone or options.weight > DEFAULTS_GIVE:
        plugin_args["candidates"] = CANDIDATES
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": True, "resourceNamespace": namespace, "resourceName": lease},
        "percentageOfNodesToScore": 100 if options.nodes_percentage is None else options.nodes_percentage,
        "profiles": [
            {
                "schedulerName": options.scheduler_name,
                "plugins": plugins,
                "pluginConfig": [{"name": PLUGIN, "args": plugin_args}],
            }
        ],
    }


def _only(*plugins: dict[str, Any]) -> dict[str, Any]:
    return {"disabled": [{"name": "*"}], "enabled": list(plugins)}


def read(path: Path) -> dict[str, Any]:
    """Return the configuration in a file. Raises `UserError` where no profile of it has the plugin."""
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
        for profile in found["profiles"]:
            arguments(profile)
    except (OSError, yaml.YAMLError, TypeError, KeyError) as error:
        raise UserError(
            f"{path}: is no KubeSchedulerConfiguration whose profiles set {PLUGIN} up in pluginConfig; "
            "write it again with `aaml export`"
        ) from error
    return dict(found)


def arguments(profile: dict[str, Any]) -> dict[str, Any]:
    """Return the plugin's arguments in a profile, which may be changed; raise `KeyError` where there are none."""
    for each in profile["pluginConfig"]:
        if each["name"] == PLUGIN:
            found: dict[str, Any] = each.setdefault("args", {})
            return found
    raise KeyError(PLUGIN)
