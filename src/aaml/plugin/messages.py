"""What the plugin inside kube-scheduler tells its learner: JSON objects, a line each, over a Unix socket.

The learner listens, and the plugin connects and tells. Each object has a "type". Fields that are empty, 0 or false may
be left out; those that are not known are ignored.

========  ==============  ======================================================================================
type      field           meaning
========  ==============  ======================================================================================
hello                     the first line of a connection: everything is told anew from here on
          version         the version of this format: 1
changes                   what changed since the message before; all of the cluster before the first choice
          nodes           objects {"number", "node"}: a node that is new or different, as the API has it. Numbers are
                          small, and a node keeps its number while it is there
          goneNodes       numbers of nodes that are gone
          pods            pods that have a node (`spec.nodeName`) now, as the API has them
          gonePods        uids of pods that hold no room any more
choice                    a pod got a node, which counts from here on without a word in `changes`
          pod             the pod, as the API has it
          node            the number of its node
          mask            the nodes that passed all filters and were scored: base64 of a bit a node, the lowest bit of
                          the first byte is the node with number 0
          by              who chose in the network's place; empty where the network did
          explored        whether the network took another node than its best in order to learn
          weights         the SHA-256 of the weights file that scored
          pending         how many pods wait
          lost            how many choices were not told since the one before
bind                      what became of a choice
          uid             of the pod
          failed          why it was not bound; empty where it was
========  ==============  ======================================================================================

The learner says one thing in return, now and then. What it said last holds for as long as the connection does; without
one the plugin takes its best choice, as nobody would learn from another.

========  ==============  ======================================================================================
explore   by              how another node is taken: "softmax", a sample by the scores; "any" of those in the mask;
                          "least-requested", that of CPU and memory after the pod
          chance          of a choice to be made so
========  ==============  ======================================================================================
"""

from collections.abc import Sequence
from typing import Literal

import msgspec

from aaml.kube.objects import wire

VERSION = 1


class Message(wire.Wire, tag_field="type", tag=str.lower):
    """One line."""


class Hello(Message):
    """The first line of a connection."""

    version: int = 0


class NumberedNode(wire.Wire):
    """A node and its number."""

    number: int
    node: wire.NodeObject


class ClusterChanges(Message, tag="changes"):
    """What changed in the cluster."""

    nodes: Sequence[NumberedNode] = ()
    gone_nodes: Sequence[int] = ()
    pods: Sequence[wire.PodObject] = ()
    gone_pods: Sequence[str] = ()


class TakenChoice(Message, tag="choice"):
    """A pod got a node."""

    pod: wire.PodObject
    node: int
    mask: bytes = b""
    by: str = ""
    explored: bool = False
    weights: str = ""
    pending: int = 0
    lost: int = 0


class Bind(Message):
    """What became of a choice."""

    uid: str
    failed: str = ""


class Explore(Message):
    """How much to explore."""

    by: Literal["softmax", "any", "least-requested"]
    chance: float


DECODER = msgspec.json.Decoder(Hello | ClusterChanges | TakenChoice | Bind)
"""Reads a line; raises `msgspec.DecodeError` or `msgspec.ValidationError`."""
