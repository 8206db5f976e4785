"""Files that say who buys the nodes of a bill: a NodePool of Karpenter, or a policy of nodes."""

from pathlib import Path

import yaml

from aaml.errors import bad_value
from aaml.sim.autoscaler import node_policy, nodepool
from aaml.sim.autoscaler.node_policy import NodePolicy, read_node_policy
from aaml.sim.autoscaler.nodepool import read_nodepool
from aaml.sim.autoscaler.settings import KarpenterSettings

LEARNED = "learned"


def find_autoscaler(name: str) -> KarpenterSettings | NodePolicy:
    """Return who buys nodes as a file says, or `learned`: the policy of nodes that ships. Raises `UserError`."""
    return NodePolicy() if name == LEARNED else read_autoscaler(Path(name))


def read_autoscaler(path: Path) -> KarpenterSettings | NodePolicy:
    """Return who buys nodes as a file says. Raises `UserError` for a file that is missing or says something else."""
    accepted = f"a YAML file with a {nodepool.KIND} of {nodepool.API_VERSION} or a {node_policy.KIND}"
    try:
        documents = list(yaml.safe_load_all(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise bad_value("nodes", str(path), f"{accepted} ({str(error).splitlines()[0]})") from error
    kinds = [each.get("kind") if isinstance(each, dict) else None for each in documents]
    if node_policy.KIND in kinds:
        return read_node_policy(documents[kinds.index(node_policy.KIND)], str(path))
    if nodepool.KIND in kinds:
        return read_nodepool(path)
    raise bad_value("nodes", str(path), accepted)
