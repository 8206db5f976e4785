"""The running bill of a cluster: what its nodes cost an hour, for which types, and for whose pods.

Nodes and pods are watched with read-only rights. A node costs its price from its creation on, as the API server tells
it, until it is seen to be gone. A cloud bills from the purchase, which is some seconds earlier. A price counts from the
look that sees it until a look sees another; the first one counts from the node's creation.

Commitments are settled by the moment for what is paid now, and by the clock hour for what was spent.
"""

import json
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from aaml.cluster.gpu import DEVICE_MILLI
from aaml.cluster.objects import PRICE_LABEL, Node, Pod
from aaml.cluster.quantity import CPU, MEMORY
from aaml.cluster.state import ClusterState
from aaml.kube.watcher import ClusterWatch
from aaml.nodes.commitments import Commitments, Covered, Pool
from aaml.nodes.prices import NO_TYPE, PriceList, capacity_type, kind, usd
from aaml.nodes.usage import Usage, pool_of
from aaml.telemetry.tables import plain, table

_HOUR_S = 3600.0
_GIB = 1024**3
_CORE, _GIBIBYTE, _DEVICE = 0.031611, 0.004237, 0.95
"""Prices of a core, a GiB and a GPU to each other, by which a node's price is divided: OpenCost's defaults
(https://opencost.io/docs/configuration/on-prem)."""
NO_OWNER = "pods without an owner"


@dataclass(frozen=True, slots=True)
class TypeLine:
    """Nodes of one type and capacity type: what they cost, and the shares of CPU and memory that pods request."""

    type: str
    capacity_type: str
    nodes: int
    per_hour: float
    cpu_share: float
    memory_share: float


@dataclass(frozen=True, slots=True)
class OwnerLine:
    """The pods of one controller on nodes with a price, what they request, and their part of these nodes' prices."""

    namespace: str
    owner: str
    pods: int
    cores: float
    gib: float
    gpus: float
    per_hour: float


@dataclass(frozen=True, slots=True)
class CommitmentLine:
    """What is paid for a commitment, and how much of that nodes use; dollars an hour."""

    name: str
    per_hour: float
    used_per_hour: float


@dataclass(frozen=True, slots=True)
class CommitmentsNow:
    """What commitments pay for `now`, dollars an hour, and have paid for `since` the bill begins, dollars."""

    now: Covered
    since: Covered
    lines: tuple[CommitmentLine, ...]

    def text(self) -> list[str]:
        """Return it as lines of text."""

        def used(of: Covered) -> str:
            return f", {1.0 - of.unused / of.committed:.0%} used" if of.committed else ""

        now, since = self.now, self.since
        return [
            (
                f"commitments: ${usd(now.committed)} an hour{used(now)}, for nodes of ${usd(now.covered)}; "
                f"unused ${usd(now.unused)}; nodes on demand ${usd(now.on_demand)}"
            ),
            (
                f"commitments since then: ${usd(since.committed)}{used(since)}, for nodes of ${usd(since.covered)}; "
                f"unused, as far as nodes are known, ${usd(since.unused)}; nodes on demand ${usd(since.on_demand)}"
            ),
        ]


@dataclass(frozen=True)
class Bill:
    """What a cluster costs at one moment, dearest lines first; dollars an hour.

    `per_hour` is `idle_per_hour`, what no pod requests, all that `by_owner` has, and what of `commitments` pays for no
    node. `per_core_hour`: dollars for an hour of a requested core, None where none is requested. `unpriced` counts
    nodes without a price by their type; of all else here only `spent` has one of these, if it had a price before.
    `spent` is what nodes have cost from `since_s` (seconds since 1970), with all commitments. `gone` of these nodes
    were seen to go. `silent`: the API server is not heard, and nodes are those of before. `commitments`: None where
    there are none.
    """

    server: str
    at_s: float
    nodes: int
    per_hour: float
    idle_per_hour: float
    per_core_hour: float | None
    by_type: tuple[TypeLine, ...]
    by_owner: tuple[OwnerLine, ...]
    unpriced: Mapping[str, int]
    since_s: float
    spent: float
    gone: int
    silent: bool = False
    commitments: CommitmentsNow | None = None

    def to_json(self) -> str:
        """Return it as a line of JSON."""
        return json.dumps(asdict(self))

    def text(self, rows: int = 15) -> str:
        """Return it as text with at most so many owners; the others are summed up in a line."""
        unused = self.commitments.now.unused if self.commitments else 0.0
        used = self.per_hour - self.idle_per_hour - unused
        core = "" if self.per_core_hour is None else f", ${usd(self.per_core_hour)} for an hour of a requested core"
        lines = [f"{self.server}: {_nodes(self.nodes)}, ${usd(self.per_hour)} an hour{core}"]
        if self.per_hour:
            lines.append(
                f"pods request {used / self.per_hour:.0%} of it (${usd(used)}), idle ${usd(self.idle_per_hour)} an hour"
            )
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since_s))
        went = f", {self.gone} that went included" if self.gone else "; nodes that went before are not in it"
        lines.append(f"since {since}: ${usd(self.spent)}{went}")
        lines += self.commitments.text() if self.commitments else ()
        if self.silent:
            lines.append("the API server does not answer: nodes and pods are as last seen")
        if self.unpriced:
            missing = sum(self.unpriced.values())
            types = ", ".join(f"{name} ({count})" for name, count in sorted(self.unpriced.items()))
            have = "has no price and is" if missing == 1 else "have no price and are"
            lines.append(f"{missing} of {_nodes(self.nodes + missing)} {have} left out: {types}")
            lines.append(f"give prices by type in a file (--instance-types FILE), or by the nodes' label {PRICE_LABEL}")
        drawn = [
            table(
                ("type", "capacity", "nodes", "$ an hour", "CPU requested", "memory requested"),
                (
                    (each.type, each.capacity_type, each.nodes, usd(each.per_hour), f"{each.cpu_share:.0%}",
                     f"{each.memory_share:.0%}")
                    for each in self.by_type
                ),
                right=("nodes", "$ an hour", "CPU requested", "memory requested"),
            ),
            table(
                ("namespace", "owner", "pods", "cores", "GiB", "GPUs", "$ an hour"),
                (
                    *(
                        (each.namespace, each.owner, each.pods, f"{each.cores:g}", f"{each.gib:.1f}",
                         f"{each.gpus:g}", usd(each.per_hour))
                        for each in _shortened(self.by_owner, rows)
                    ),
                    ("", "idle: what no pod requests", "", "", "", "", usd(self.idle_per_hour)),
                    *([("", "unused: commitments without a node", "", "", "", "", usd(unused))]
                      if self.commitments else ()),
                ),
                right=("pods", "cores", "GiB", "GPUs", "$ an hour"),
            ),
        ]  # fmt: skip
        if self.commitments:
            drawn[1:1] = [
                table(
                    ("commitment", "$ an hour", "used"),
                    (
                        (each.name, usd(each.per_hour),
                         f"{each.used_per_hour / each.per_hour:.0%}" if each.per_hour else "")
                        for each in self.commitments.lines
                    ),
                    right=("$ an hour", "used"),
                )
            ]  # fmt: skip
        if not self.nodes:
            lines.append("no node has a price" if self.unpriced else "the cluster has no node to pay for")
            drawn = drawn[1:2] if self.commitments else []
        separated = [part for each in drawn for part in (each, "")][:-1]
        return "\n".join((*lines, *(("", plain(*separated)) if separated else ())))


@dataclass(slots=True)
class _Account:
    """What one node has cost on demand until `until_s`, and the price at which it goes on.

    `pool`: the one of its price, None for a spot node.
    """

    price: float
    until_s: float
    pool: Pool | None
    dollars: float = 0.0
    there: bool = True

    def charge(self, now_s: float) -> None:
        self.dollars += self.price * max(now_s - self.until_s, 0.0) / _HOUR_S
        self.until_s = max(now_s, self.until_s)


_Identity = tuple[str, float]  # name and creation: a new node may take an old one's name


class RunningBill:
    """Adds up what a cluster's nodes cost from `since_s` on, from one `look` to the next."""

    def __init__(
        self, server: str, prices: PriceList, since_s: float, commitments: Commitments | None = None
    ) -> None:  # fmt: skip
        self._server, self._prices, self._since_s = server, prices, since_s
        self._accounts: dict[_Identity, _Account] = {}  # of those that went too: one that comes back was never gone
        self._commitments, self._usage, self._observed_s = commitments, Usage(), since_s

    def look(self, state: ClusterState, now_s: float, *, silent: bool = False) -> Bill:
        """Return the bill as it is now. Nodes that have gone since the last look count until now."""
        priced = {node.name: price for node in state.nodes if (price := self._prices.price(node)) is not None}
        there = {_identity(node) for node in state.nodes}
        for identity, account in self._accounts.items():
            if account.there or identity in there:
                self._charge(account, now_s)
            account.there = identity in there
        for node in state.nodes:
            if node.name in priced:
                self._see(node, priced[node.name], now_s)
        missing = (node for node in state.nodes if node.name not in priced)
        unpriced = Counter(kind(node) for node in missing if not (node.is_control_plane and kind(node) == NO_TYPE))
        accounts, covered, unused = self._accounts.values(), None, 0.0
        spent = sum(each.dollars for each in accounts)
        if self._commitments is not None:
            self._usage.observe(self._observed_s, now_s)
            self._observed_s = max(now_s, self._observed_s)
            priced, covered = _with_commitments(self._commitments, state, priced, self._usage)
            unused = covered.now.unused
            spot = sum(each.dollars for each in accounts if each.pool is None)
            spent = covered.since.committed + covered.since.on_demand + spot
        owners = _by_owner(state, priced)
        of_nodes = sum(priced.values())
        per_hour = of_nodes + unused
        cores = sum(each.cores for each in owners)
        return Bill(
            self._server, now_s, len(priced), per_hour,
            max(of_nodes - sum(each.per_hour for each in owners), 0.0), per_hour / cores if cores else None,
            _by_type(state, priced), owners, dict(unpriced), self._since_s,
            spent, sum(not each.there for each in accounts),
            silent, covered,
        )  # fmt: skip

    def _see(self, node: Node, price: float, now_s: float) -> None:
        account, pool = self._accounts.get(_identity(node)), pool_of(node, price)
        if account is None:
            since_s = max(node.created_s or now_s, self._since_s)
            account = self._accounts[_identity(node)] = _Account(price, since_s, pool)
            self._charge(account, now_s)
        account.price, account.pool = price, pool

    def _charge(self, account: _Account, now_s: float) -> None:
        if self._commitments is not None and account.pool is not None:
            self._usage.add(account.pool, account.until_s, now_s)
        account.charge(now_s)


def _with_commitments(
    commitments: Commitments, state: ClusterState, priced: Mapping[str, float], usage: Usage
) -> tuple[dict[str, float], CommitmentsNow]:
    """Return what each node costs with commitments, and what these pay for.

    What a pool's nodes cost is divided evenly among them: a cloud does not say which of them a commitment pays for.
    """
    of_nodes = {
        node.name: pool
        for node in state.nodes
        if node.name in priced and (pool := pool_of(node, priced[node.name])) is not None
    }
    counts = Counter(of_nodes.values())
    pools = sorted(counts)
    now = commitments.over(pools).settled([counts[pool] for pool in pools])
    costs = {pool: float(cost) / counts[pool] for pool, cost in zip(pools, now.costs, strict=True)}
    lines = zip(commitments.names, now.committed.tolist(), now.used.tolist(), strict=True)
    return {name: costs[of_nodes[name]] if name in of_nodes else price for name, price in priced.items()}, (
        CommitmentsNow(
            now.total, usage.by_hour(commitments).total, tuple(CommitmentLine(*each) for each in lines)
        )
    )  # fmt: skip


def _identity(node: Node) -> _Identity:
    return node.name, node.created_s


def follow(
    watch: ClusterWatch,
    prices: PriceList,
    show: Callable[[Bill], object],
    *,
    since_s: float,
    commitments: Commitments | None = None,
    every_s: float | None = None,
    stopped: Callable[[], bool] = lambda: False,
    clock: Callable[[], float] = time.time,
) -> None:
    """Show the bill once, or with `every_s` again after so many seconds until `stopped()`."""
    running = RunningBill(watch.transport.server, prices, since_s, commitments)
    while True:
        show(running.look(watch.state, clock(), silent=bool(watch.troubled)))
        if every_s is None or watch.pump_until(stopped, every_s) or stopped():
            return


def owner_of(pod: Pod) -> str:
    """Return whose pod it is: its controller, of a Deployment's ReplicaSet the Deployment."""
    name, slash, suffix = pod.owner.rpartition("-")
    if slash and name.startswith("ReplicaSet/") and suffix == pod.labels.get("pod-template-hash"):
        return name.replace("ReplicaSet/", "Deployment/", 1)
    return pod.owner or NO_OWNER


def _by_type(state: ClusterState, priced: Mapping[str, float]) -> tuple[TypeLine, ...]:
    node_indices: dict[tuple[str, str], list[int]] = defaultdict(list)
    for node_index, node in enumerate(state.nodes):
        if node.name in priced:
            node_indices[kind(node), capacity_type(node)].append(node_index)
    lines = []
    for (name, capacity), group in node_indices.items():
        requested, offered = state.requested[group].sum(axis=0), state.allocatable[group].sum(axis=0)
        shares = [
            float(requested[column] / offered[column]) if offered[column] else 0.0
            for column in (state.resource_index[CPU], state.resource_index[MEMORY])
        ]
        lines.append(
            TypeLine(name, capacity, len(group), sum(priced[state.names[node_index]] for node_index in group), *shares)
        )
    return tuple(sorted(lines, key=lambda each: (-each.per_hour, each.type)))


def _by_owner(state: ClusterState, priced: Mapping[str, float]) -> tuple[OwnerLine, ...]:
    """Divide each node's price by what its pods request, in OpenCost's proportion of cores, GiB and GPUs."""
    owners: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0] * 5)
    for node_index, node in enumerate(state.nodes):
        price = priced.get(node.name)
        if price is None:
            continue
        whole = _worth(node.allocatable.get(CPU, 0), node.allocatable.get(MEMORY, 0), node.gpu_count * DEVICE_MILLI)
        for pod in state.node_pods[node_index].values():
            cpu, memory, gpu = pod.request(CPU), pod.request(MEMORY), pod.gpu.total_milli
            line = owners[pod.namespace, owner_of(pod)]
            part = price * _worth(cpu, memory, gpu) / whole if whole else 0.0
            for place, more in enumerate((1, cpu / 1000, memory / _GIB, gpu / DEVICE_MILLI, part)):
                line[place] += more
    lines = [
        OwnerLine(namespace, owner, int(pods), cores, gib, gpus, dollars)
        for (namespace, owner), (pods, cores, gib, gpus, dollars) in owners.items()
    ]
    return tuple(sorted(lines, key=lambda each: (-each.per_hour, each.namespace, each.owner)))


def _worth(cpu_milli: float, memory_bytes: float, gpu_milli: float) -> float:
    return _CORE * cpu_milli / 1000 + _GIBIBYTE * memory_bytes / _GIB + _DEVICE * gpu_milli / DEVICE_MILLI


def _nodes(count: int) -> str:
    return f"{count} node" if count == 1 else f"{count} nodes"


def _shortened(lines: tuple[OwnerLine, ...], rows: int) -> Iterable[OwnerLine]:
    """Return the first lines, and one that sums up the others."""
    yield from lines[:rows]
    if rest := lines[rows:]:
        sums: list[Any] = [sum(getattr(each, name) for each in rest) for name in OwnerLine.__slots__[2:]]
        yield OwnerLine("", f"{len(rest)} other owners", *sums)
