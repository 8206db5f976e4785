"""Who provisions the nodes of a bill as people name it: by a word, or a file with a NodePool or a policy of nodes.

A descheduler, by a word or its file, stands beside the autoscaler that a bill has anyway.
"""

from collections.abc import Mapping
from pathlib import Path

from aaml.errors import UserError, bad_value
from aaml.nodes import descheduler_policy, node_policy, nodepool
from aaml.nodes.descheduler_policy import read_descheduler_policy
from aaml.nodes.node_policy import NodePolicy, read_node_policy
from aaml.nodes.nodepool import read_nodepool
from aaml.nodes.settings import HighNodeUtilizationSettings, KarpenterSettings
from aaml.schema import of_kind, of_yaml, read_bytes

Found = KarpenterSettings | NodePolicy | HighNodeUtilizationSettings
WORDS: Mapping[str, Found] = {
    "learned": NodePolicy(), "high-node-utilization": HighNodeUtilizationSettings(),
}  # fmt: skip
"""Those that need no file: the policy of nodes that ships, and the descheduler as it comes."""


def find_autoscaler(name: str) -> Found:
    """Return who is meant by one of `WORDS` or a file. Raises `UserError` as `read_autoscaler`."""
    return WORDS[name] if name in WORDS else read_autoscaler(Path(name))


def read_autoscaler(path: Path, field: str = "nodes", accepted: str = "") -> Found:
    """Return who provisions nodes, of a file, which is the value of a `field`.

    Raises `UserError` for one that is missing or says something else.
    """
    accepted = accepted or (
        f"a YAML file with a {nodepool.KIND} of {nodepool.API_VERSION}, a {node_policy.KIND} of "
        f"{node_policy.API_VERSION} or a {descheduler_policy.KIND} of {descheduler_policy.API_VERSION}"
    )
    text = read_bytes(path, field, accepted)
    try:
        documents = of_yaml(text, str(path))
    except UserError as error:
        raise UserError(f"{field}: {error}; expected {accepted}") from error
    kinds = {each.KIND: each.API_VERSION for each in (nodepool, node_policy, descheduler_policy)}
    found = of_kind(documents, kinds, f"{field}: {path}")
    if found is None:
        raise bad_value(field, str(path), accepted)
    if found["kind"] == nodepool.KIND:
        return read_nodepool(path)
    read = read_node_policy if found["kind"] == node_policy.KIND else read_descheduler_policy
    return read(found, str(path))


def named_file(name: str) -> Path | None:
    """Return the file that says who provisions nodes; None for one of `WORDS`, and for nobody."""
    return None if name in ("", *WORDS) else Path(name)
