"""Ports for the parts of a cluster, chosen so that no other cluster takes them while a part is stopped for a while."""

import random
import socket
from pathlib import Path

import yaml

from aaml.errors import bad_value

# kwokctl's names of the ports; left to itself it takes the highest free ones, a stopped part's of another cluster too.
PORT_OPTIONS = (
    "kubeApiserverPort",
    "etcdPort",
    "etcdPeerPort",
    "kubeControllerManagerPort",
    "kubeSchedulerPort",
    "kwokControllerPort",
)
_CHOICE = range(20_000, 32_768)  # below the ports that systems give to outgoing connections
_LAST_PORT = 65535


def check_port(port: int) -> None:
    """Raise `UserError` when the port for the API server is out of range or taken; 0 asks for a free one."""
    if not 0 <= port <= _LAST_PORT:
        raise bad_value("port", port, f"0 (a free one) to {_LAST_PORT}")
    if port and not _free(port):
        raise bad_value("port", port, "a port of 127.0.0.1 that is not in use, or 0 to have one chosen")


def free_port() -> int:
    """Return a port of 127.0.0.1 that nobody listens on now, and no cluster of this machine's choice."""
    return next(port for port in random.SystemRandom().sample(_CHOICE, len(_CHOICE)) if _free(port))


def choose_ports(clusters: Path, api_port: int = 0) -> dict[str, int]:
    """Return a port for each of `PORT_OPTIONS`: free now, and of no cluster in the folder `clusters`.

    They are drawn at random, which keeps apart the clusters of users who do not see each other's folders.
    """
    taken = _reserved(clusters) | {api_port}
    drawn = (port for port in random.SystemRandom().sample(_CHOICE, len(_CHOICE)) if port not in taken and _free(port))
    ports = {option: next(drawn) for option in PORT_OPTIONS}
    return ports | {"kubeApiserverPort": api_port} if api_port else ports


def _reserved(clusters: Path) -> set[int]:
    """Return the ports of every cluster that was started here, whether its parts run or not."""
    found: set[int] = set()
    for file in clusters.glob("*/kwokctl.yaml"):
        try:
            options = yaml.safe_load(file.read_text(encoding="utf-8"))["options"]
            found |= {int(options[name]) for name in PORT_OPTIONS if name in options}
        except (OSError, yaml.YAMLError, TypeError, KeyError, ValueError):
            continue  # being removed, or damaged: `aaml cluster status` tells of that one
    return found


def _free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
