"""KWOK nodes on a cluster: many created at once."""

from collections.abc import Sequence

from aaml.cluster.objects import Node
from aaml.errors import UserError
from aaml.kube.objects.manifest import node_to_json
from aaml.kube.transport import CONFLICT, ApiError, Transport
from aaml.progress import progress_bar
from aaml.threads import ThreadPool

_AT_ONCE = 16


def create_nodes(api: Transport, nodes: Sequence[Node], *, progress: bool = True) -> int:
    """Create the nodes, several at once, and return how many are new; those that are there already stay as they are.

    Raises `UserError` with the API server's reason at the first node that it refuses, or when it does not answer.
    """

    def create(node: Node) -> bool:
        try:
            api.request("POST", "/api/v1/nodes", node_to_json(node))
        except ApiError as error:
            if error.status == CONFLICT:
                return False
            raise UserError(f"node {node.name}: {error.message}") from error
        return True

    with api.explained(), ThreadPool(_AT_ONCE, "nodes") as pool:
        answers = pool.map(create, nodes)
        bar = progress_bar("create nodes", len(nodes), "node", over=answers, enabled=progress)
        try:
            return sum(bar)
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
