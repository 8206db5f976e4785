"""What Kubernetes has and leaves off: the feature gates that belong together, by the name of what they give."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from aaml.errors import bad_value
from aaml.kube.provision.binaries import release
from aaml.kube.provision.records import ClusterOptions

_ALL_PARTS = ("kube-apiserver", "kube-scheduler", "kube-controller-manager")


@dataclass(frozen=True)
class Gates:
    """Feature gates of every part, versions of the API that are served with them, and the first release with both."""

    features: tuple[str, ...]
    serves: tuple[str, ...]
    since: tuple[int, int]


GATES: Mapping[str, Gates] = {
    "gangs": Gates(
        ("GenericWorkload", "TopologyAwareWorkloadScheduling", "PodGroupPreemptionPolicy", "WorkloadWithJob"),
        ("scheduling.k8s.io/v1beta1",),
        (1, 37),
    ),
}
"""gangs: PodGroups and Workloads, their topology and preemption policy, and Jobs with `spec.scheduling`."""


def checked(names: str, kubernetes: str) -> list[Gates]:
    """Return the gates of these names, with commas between, "gangs" for instance.

    Raises `UserError` for a name that is none, and where that version of Kubernetes has not got the gates yet.
    """
    found, version = [], release(kubernetes)
    for name in filter(None, names.split(",")):
        if name not in GATES:
            raise bad_value("gates", name, f"one of {', '.join(GATES)}")
        gates = GATES[name]
        if tuple(map(int, version.split(".")[:2])) < gates.since:
            since = ".".join(map(str, gates.since))
            raise bad_value("kubernetes", version, f"{since} or newer with --gates {name}")
        found.append(gates)
    return found


def with_gates(options: ClusterOptions, names: str) -> ClusterOptions:
    """Return the options of a cluster with these gates open (`checked`)."""
    for gates in checked(names, options.kubernetes):
        flags = {part: {"feature-gates": ",".join(f"{each}=true" for each in gates.features)} for part in _ALL_PARTS}
        flags["kube-apiserver"]["runtime-config"] = ",".join(f"{each}=true" for each in gates.serves)
        options = replace(options, arguments=_merged(options.arguments, flags))
    return options


def _merged(
    arguments: Mapping[str, Mapping[str, str]], more: Mapping[str, Mapping[str, str]]
) -> dict[str, dict[str, str]]:
    """Return both; a flag that stands in both gets both values, with a comma between."""
    merged = {part: dict(flags) for part, flags in arguments.items()}
    for part, flags in more.items():
        known = merged.setdefault(part, {})
        for flag, value in flags.items():
            known[flag] = f"{known[flag]},{value}" if flag in known else value
    return merged
