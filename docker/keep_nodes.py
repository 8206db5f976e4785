"""Makes the nodes again when a new cluster has taken the old one's place: a program of supervisord.conf."""

import os
import subprocess
import sys
import time

from aaml.errors import UserError
from aaml.kube.provision import count_nodes
from aaml.kube.transport import Transport

_LOOK_S = 5.0


def main() -> None:
    """Look every few seconds whether the cluster has workers; where it has none, make as many as at the start."""
    script, count = f"{os.environ['AAML_HOME']}/scripts/create_nodes.py", os.environ["NODE_COUNT"]
    api = Transport()
    while True:
        time.sleep(_LOOK_S)
        try:
            workers = count_nodes(api).workers
        except UserError:
            continue  # the cluster is away, perhaps to come back as a new one
        if not workers:
            print("the cluster has no nodes; making them again", flush=True)
            subprocess.run([sys.executable, script, f"--node_count={count}"], check=False)  # noqa: S603  (our own)


if __name__ == "__main__":
    main()
