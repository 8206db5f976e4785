"""Show a cluster: its server, nodes, processes and files. Exit status 1 when a part of it is down."""

import json
from dataclasses import dataclass
from typing import Any

from aaml.commands.cluster import OfCluster
from aaml.errors import UserError
from aaml.kube.provision import KwokCluster, cluster_of, count_nodes, records


@dataclass(frozen=True)
class Args(OfCluster):
    """`aaml cluster status`."""

    json: bool = False
    """print JSON"""


def run(args: Args) -> int:
    """Print what is known of it."""
    record = records.load(args.name)
    facts: dict[str, Any] = {
        "name": record.name,
        "runtime": record.runtime,
        "kubernetes": record.kubernetes,
        "server": record.server,
        "kubeconfig": str(records.kubeconfig_path(args.name)),
    }
    if record.runtime == "binary":
        kwok = KwokCluster(args.name)
        facts["kubectl"] = str(kwok.kubectl)
        components = kwok.components()
        facts["processes"] = {name: component.pid() for name, component in components.items()}
        if (scheduler := components.get("kube-scheduler")) and (port := scheduler.flag("secure-port")):
            facts["metrics"] = f"https://127.0.0.1:{port}/metrics"
    cluster = cluster_of(args.name, record.runtime)
    up = cluster.running()
    try:
        count = count_nodes(cluster.api())
        facts["nodes"] = {"workers": count.workers, "schedulable": count.schedulable}
    except UserError as error:
        facts["nodes"], up = str(error), False
    if args.json:
        print(json.dumps(facts | {"up": up}, indent=2))
        return 0 if up else 1
    for key, value in facts.items():
        print(f"{key:<11} {_listed(value) if isinstance(value, dict) else value}")
    return 0 if up else 1


def _listed(amounts: dict[str, int | None]) -> str:
    return ", ".join(f"{name} {'stopped' if amount is None else amount}" for name, amount in amounts.items())
