"""The messages from the plugin inside kube-scheduler to its learner: JSON objects, a line each, over a Unix socket.

The learner listens, the plugin connects and sends. Each object has a "type". Fields that are empty, 0 or false may be
left out. Unknown fields are ignored.

========  ==============  ======================================================================================
type      field           meaning
========  ==============  ======================================================================================
hello                     the first line of a connection. What was sent over an earlier connection does not count
          version         the version of this format: 1
changes                   what changed since the last message; before the first choice, the whole cluster
          nodes           objects {"number", "node"}: a new or changed node, as the API has it. Numbers are small, and
                          a node keeps its number while it exists
          goneNodes       numbers of nodes that are gone
          pods            pods that have a node (`spec.nodeName`) now, as the API has them
          gonePods        uids of pods whose requests no longer count on a node
choice                    a pod got a node. Its requests count there from now on, and no `changes` repeats it
          pod             the pod, as the API has it
          node            the number of its node
          mask            the nodes that passed all filters and were scored: base64 of one bit for each node. The
                          lowest bit of the first byte is the node with number 0
          by              the policy that chose in the network's place; empty where the network chose
          explored        whether the plugin took another node than the network's best one, to explore
          weights         the SHA-256 of the weights file that scored
          pending         how many pods wait
          lost            how many choices were dropped since the last one that was sent
bind                      whether a chosen pod was bound
          uid             of the pod
          failed          why it was not bound; empty where it was bound
========  ==============  ======================================================================================

The learner sends one kind of message, `explore`. The last one holds until the connection ends. Without a connection the
plugin does not explore, because nobody would learn from it.

========  ==============  ======================================================================================
explore   by              how the plugin explores: "softmax" samples a node by the scores, "any" takes any node of the
                          mask, "least-requested" the one with the least CPU and memory requested with the pod on it
          chance          the probability that a choice explores
========  ==============  ======================================================================================
"""

from collections.abc import Sequence
from typing import Literal

import msgspec

from aaml.kube.objects import wire

VERSION = 1


class Message(wire.Wire, tag_field="type", tag=str.lower):
    """A message: one line of JSON."""


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
    """Whether a chosen pod was bound."""

    uid: str
    failed: str = ""


class Explore(Message):
    """How much to explore."""

    by: Literal["softmax", "any", "least-requested"]
    chance: float


DECODER = msgspec.json.Decoder(Hello | ClusterChanges | TakenChoice | Bind)
"""Reads a line; raises `msgspec.DecodeError` or `msgspec.ValidationError`."""
