"""Puts the same scene before the real Karpenter and before ours, and compares what each would do."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from aaml.nodes.catalogue import InstanceType
from aaml.nodes.karpenter import Karpenter
from aaml.nodes.packing import Claim
from aaml.nodes.ports import Delete, Provision, Replace
from aaml.nodes.rows import RuleWork
from support.karpenter_scenes import Scene
from support.real_karpenter import RealKarpenter

_METHODS = ("empty", "multi", "single")
_NOTHING = "no node goes"
_KINDS = {"empty": "empty nodes {}", "multi": "several nodes {}", "single": "one node {}"}
_ASKED_AGAIN = 40
"""How often a scene that differs is put before the real Karpenter again, which breaks some ties at random."""

Answer = Any


@dataclass
class Tally:
    """How many decisions there were of each kind, in how many both agreed, and each difference with its scene."""

    decisions: dict[str, int] = field(default_factory=dict)
    agreed: dict[str, int] = field(default_factory=dict)
    tied: dict[str, int] = field(default_factory=dict)
    mismatches: list[str] = field(default_factory=list)

    def note(self, kind: str, *, agreed: bool, tied: bool = False, difference: str = "") -> None:
        self.decisions[kind] = self.decisions.get(kind, 0) + 1
        self.agreed[kind] = self.agreed.get(kind, 0) + agreed
        self.tied[kind] = self.tied.get(kind, 0) + tied
        if difference:
            self.mismatches.append(difference)

    @property
    def total(self) -> int:
        return sum(self.decisions.values())


# ---- what ours would do ----------------------------------------------------------------------------------------------


@dataclass
class Counting(Karpenter):
    """Our Karpenter, which takes down how many pods each claim has."""

    pods: list[int] = field(default_factory=list)

    def _types_of(self, claim: Claim | int, work: RuleWork) -> tuple[InstanceType, ...]:
        self.pods.append(claim.pods if isinstance(claim, Claim) else int(work.counts[claim]))
        return super()._types_of(claim, work)


def our_purchase(scene: Scene) -> Answer:
    """Return the nodes to buy as (types, what is launched and how, pods on it), and the nodes that take other pods."""
    seen = scene.moments[0]
    ours = Counting(scene.settings, scene.catalogue, first_look_s=math.inf)
    ours._at["opened_s"] = -math.inf  # the batch has closed
    provisioned = []
    for order, pods in zip(ours.act(seen), ours.pods, strict=True):
        assert isinstance(order, Provision)
        names = sorted(kind.name for kind in order.types)
        launched, offering = order.types[0].name, order.types[0].cheapest
        provisioned.append((names, launched, offering.capacity_type, offering.zone, pods))
    return {"provisioned": sorted(provisioned), "used": sorted(ours.nominated_s)}


def our_look(scene: Scene) -> Answer:
    """Return (method, nodes, types of a replacement, which of them is launched), None for nothing.

    And the nodes that the moved pods are meant for, how often it looked, and how often it waited for a plan.
    """
    ours = Karpenter(scene.settings, scene.catalogue, scene.moments[0].now_s)
    ours.nominated_s = dict(scene.nominated)
    looks, waits = 1, 0
    while True:
        now_s = float(ours._at["due_s"])
        seen = replace(scene.moments[min(waits, len(scene.moments) - 1)], now_s=now_s)
        method = _METHODS[min(ours._at["method"], 2)]
        ours._at["opened_s"] = ours._at["latest_s"] = math.inf  # no batch is open
        match ours.act(seen):
            case [Delete(names=names)]:
                command = method, sorted(names), [], ""
                break
            case [Replace(names=names, types=types)]:
                launched = f"{types[0].name} in {types[0].cheapest.zone}"
                command = method, sorted(names), sorted(kind.name for kind in types), launched
                break
        if ours._at["planned"]:
            waits += 1
        elif looks == scene.looks:
            return {"command": None, "meant": [], "looks": looks, "waits": waits}
        else:
            looks += 1
    meant = sorted(name for name, until_s in ours.nominated_s.items() if until_s == now_s + 20.0)
    return {"command": command, "meant": meant, "looks": looks, "waits": waits}


# ---- what the real one would do --------------------------------------------------------------------------------------


def real_purchase(real: RealKarpenter, scene: Scene) -> Answer:
    """Return the same of the real Karpenter."""
    answer = real.ask(scene.question("provision"))
    provisioned = [
        (sorted(claim["types"]), claim["launched"], claim["capacityType"], claim["zone"], len(claim["pods"]))
        for claim in answer.get("claims", [])
    ]
    return {"provisioned": sorted(provisioned), "used": sorted(answer.get("used", {}))}


def real_look(real: RealKarpenter, scene: Scene) -> Answer:
    """Return the same of the real Karpenter."""
    answer = real.ask(scene.question("disrupt"))
    told = {"command": None, "meant": [], "looks": answer["looks"], "waits": answer.get("waits", 0)}
    for command in answer.get("commands", []):
        types, launched = [], ""
        for claim in command.get("replacements", []):
            types, launched = sorted(claim["types"]), f"{claim['launched']} in {claim['zone']}"
        told["command"] = command["method"], command["nodes"], types, launched
        told["meant"] = command.get("nominated", [])
    return told


# ---- both ------------------------------------------------------------------------------------------------------------


def compare_purchase(real: RealKarpenter, scene: Scene, tally: Tally) -> None:
    """Compare what is provisioned for the pods that wait."""
    ours = our_purchase(scene)
    kind = ("no node provisioned", "one node provisioned", "several nodes provisioned")[
        min(len(ours["provisioned"]), 2)
    ]
    _compare(lambda: real_purchase(real, scene), ours, kind, scene, tally)


def compare_look(real: RealKarpenter, scene: Scene, tally: Tally) -> None:
    """Compare which nodes go, once the plan has been looked at again."""
    ours = our_look(scene)
    theirs = real_look(real, scene)
    command = theirs["command"]
    kind = _NOTHING if command is None else _KINDS[command[0]].format("replaced" if command[2] else "terminated")
    first = [theirs]
    _compare(lambda: first.pop() if first else real_look(real, scene), ours, kind, scene, tally)


def _compare(ask: Callable[[], Answer], ours: Answer, kind: str, scene: Scene, tally: Tally) -> None:
    theirs = ask()
    if theirs == ours:
        tally.note(kind, agreed=True)
    elif any(ask() == ours for _ in range(_ASKED_AGAIN)):
        tally.note(kind, agreed=False, tied=True)
    else:
        tally.note(kind, agreed=False, difference=f"{scene.origin}: {kind}: ours {ours}, Karpenter's {theirs}")
