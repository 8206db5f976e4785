"""The container's health: both pages answer, no program has failed for good, and the cluster has nodes.

Says in one line what is wrong, for `docker inspect`. NODE_COUNT=0 leaves the nodes to somebody else.
"""

import json
import os
import sys
from pathlib import Path
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen
from xmlrpc.client import ServerProxy

import yaml
from supervisor.xmlrpc import SupervisorTransport

_WAIT_S = 4


def trouble() -> str:
    """Return what is wrong, "" when nothing is."""
    ports = os.environ.get("JUPYTER_PORT", "8888"), os.environ.get("TENSORBOARD_PORT", "6006")
    for page in (f"http://127.0.0.1:{ports[0]}/api", f"http://127.0.0.1:{ports[1]}/data/environment"):
        try:
            urlopen(page, timeout=_WAIT_S).close()  # noqa: S310  (our own)
        except (URLError, OSError) as error:
            return f"{page}: {error}"
    socket = f"unix://{os.environ['AAML_RUN_DIR']}/supervisor.sock"
    supervisor = ServerProxy("http://127.0.0.1", SupervisorTransport(None, None, socket)).supervisor
    failed = [program["name"] for program in supervisor.getAllProcessInfo() if program["statename"] == "FATAL"]
    if failed:
        return f"{', '.join(failed)}: FATAL; the log says why"
    if not int(os.environ.get("NODE_COUNT", "10")):
        return ""
    kubeconfig = yaml.safe_load(Path(os.environ["KUBECONFIG"]).read_text(encoding="utf-8"))
    query = urlencode({"limit": 1, "labelSelector": "!node-role.kubernetes.io/control-plane"})
    nodes = f"{kubeconfig['clusters'][0]['cluster']['server']}/api/v1/nodes?{query}"
    try:
        with urlopen(nodes, timeout=_WAIT_S) as answer:  # noqa: S310  (the cluster of the stack)
            return "" if json.load(answer)["items"] else "the cluster has no nodes"
    except (URLError, OSError) as error:
        return f"{nodes}: {error}"


if __name__ == "__main__":
    if said := trouble():
        print(said)
        sys.exit(1)
