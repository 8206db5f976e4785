"""Our nodes that are out of order: since when, and after what time they are terminated.

The times are Karpenter's where it has them: a node that does not register is given up after 15 minutes
(nodeclaim/lifecycle/liveness.go), one that is not ready after 30 (node/health, the providers' repair policies).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from aaml.kube.objects import wire

Kind = Literal["launch", "start", "unready", "closed", "type", "drain"]
UNREADY_TAINTS = frozenset({"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"})
LATE_S = 900.0
AFTER_S: Mapping[Kind, float] = {
    "launch": 0.0,  # Karpenter has tried and failed: there is no node
    "start": LATE_S,
    "unready": 1800.0,
    "closed": LATE_S,
    "type": LATE_S,
    "drain": LATE_S,
}
"""Seconds after which a node is terminated, or its drain counts as stuck."""


@dataclass(frozen=True)
class Trouble:
    """A claim that is out of order: how, and since when. `due`: it is time to terminate it."""

    claim: wire.NodeClaimObject
    kind: Kind
    what: str
    since_s: float
    due: bool

    @property
    def works(self) -> bool:
        """Whether the node works."""
        return self.kind in {"closed", "type"}

    @property
    def only_when_empty(self) -> bool:
        """Whether the node works but is cordoned or tainted: it is terminated only once it has no pods."""
        return self.kind == "closed"

    def words(self, now_s: float, kept: str) -> str:
        """Return it as a line; `kept` is what keeps its node."""
        minutes = int((now_s - self.since_s) / 60.0)
        long = f" for {minutes} min" if minutes else ""
        keeps = f"; {kept}" if kept and self.due else ""
        paid = "" if self.kind == "launch" else ", and is paid for"
        return f"{self.claim.metadata.name} {self.what}{long}{keeps}; it counts{paid}"


@dataclass
class Troubles:
    """The claims that are out of order, kept from one observation to the next."""

    found: list[Trouble] = field(default_factory=list)
    _since_s: dict[tuple[str, Kind], float] = field(default_factory=dict)  # by uid
    _now_s: float = 0.0
    _noted: set[tuple[str, Kind]] = field(default_factory=set)

    def begin(self, now_s: float) -> None:
        """Begin an observation."""
        self._now_s, self.found, self._noted = now_s, [], set()

    def note(self, claim: wire.NodeClaimObject, kind: Kind, what: str, since_s: float | None = None) -> bool:
        """Note what is wrong with a claim's node since `since_s`, or since the first note; returns whether it is due.

        Starts and drains, which may take their time, are no trouble before they are due.
        """
        key = claim.metadata.uid or claim.metadata.name, kind
        self._noted.add(key)
        begun_s = self._since_s.setdefault(key, self._now_s if since_s is None else since_s)
        due = self._now_s - begun_s >= AFTER_S[kind]
        if due or kind not in {"start", "drain"}:
            self.found.append(Trouble(claim, kind, what, begun_s, due))
        return due

    def end(self) -> None:
        """End an observation: what was not noted in it is over."""
        self._since_s = {key: at_s for key, at_s in self._since_s.items() if key in self._noted}
        self.found.sort(key=lambda each: (each.since_s, each.claim.metadata.name))
