"""Notices that an API server's address now belongs to another cluster, or to an older backup of the same cluster.

A watch resumes at a resource version. A cluster that has not reached this version yet does not refuse the watch: it
sends nothing until it reaches it, and then sends changes of objects that were never listed.
"""

import logging
import threading

import msgspec

from aaml.kube.objects import wire
from aaml.kube.transport import ApiError, Transport

log = logging.getLogger(__name__)

_FORBIDDEN = 403
_PATH = "/api/v1/namespaces"
_QUERY = {"fieldSelector": "metadata.name=kube-system"}  # as old as its cluster, and never deleted


class History:
    """Numbers the clusters, and restored backups, that answer at one address, from 0. Threads may share it.

    One list request returns both marks: the uid of the namespace kube-system, and the current resource version.
    Resource versions grow with every write (https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-versions),
    so a server with a lower version than it returned before was restored from a backup.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._answers = msgspec.json.Decoder(wire.ListOf[wire.Named])
        self._uid, self._version, self._number, self._forbidden = "", 0, 0, False
        self._lock = threading.Lock()  # held while the server answers: answers that overtake each other look backwards

    def current(self, known: int, version: str) -> int:
        """Ask the server and return the number of its current history. A new history is logged once.

        `version` is the last resource version that the caller has seen of the history `known`. Where the server refuses
        the list, the number stays. Raises `Unreachable` when there is no answer.
        """
        with self._lock:
            if known == self._number and version.isdecimal():
                self._version = max(self._version, int(version))
            try:
                answer = self._answers.decode(self._transport.request("GET", _PATH, query=_QUERY))
            except ApiError as error:
                if error.status == _FORBIDDEN and not self._forbidden:
                    self._forbidden = True
                    log.info("another cluster behind %s would not be noticed: %s", self._transport.server, error)
                return self._number
            uid = answer.items[0].metadata.uid if answer.items else ""
            reached = answer.metadata.resource_version
            if self._uid and uid != self._uid:  # a cluster that has just begun has none yet
                self._begin("another cluster answers there now")
            elif reached.isdecimal() and int(reached) < self._version:
                self._begin(f"its history goes back from version {self._version} to {reached}, as after a restore")
            self._uid, self._version = uid, int(reached) if reached.isdecimal() else 0
            return self._number

    def _begin(self, why: str) -> None:
        log.warning("%s: %s; everything is forgotten and listed again", self._transport.server, why)
        self._number += 1
