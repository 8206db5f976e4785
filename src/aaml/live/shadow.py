"""What a shadow log says: how often each policy agrees with the scheduler that it looked at, and which does better."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta

from aaml.errors import UserError, bad_value
from aaml.evaluation.statistics import Paired, paired
from aaml.files import whole_lines
from aaml.live.observers.shadow import OBJECTIVES, Player
from aaml.schema import convert, of_json
from aaml.sim.metrics import Metric, find_metric

Record = Mapping[str, Any]
EVERYWHERE = ""
"""Stands for all nodes, whatever pool they are of."""


@dataclass(frozen=True)
class ObjectiveComparison:
    """An objective after both choices for the pods that the scheduler put on one pool of nodes, or on any.

    `policy` and `chosen` are the means after the policy's choice and after the scheduler's, `paired` the comparison pod
    by pod, policy - chosen.
    """

    objective: str
    pool: str
    policy: float
    chosen: float
    paired: Paired

    @property
    def metric(self) -> Metric:
        """The objective's unit, direction and meaning."""
        return find_metric(f"final_{self.objective}")

    def __str__(self) -> str:
        mean = self.paired.difference.mean
        where = f"pool {self.pool}" if self.pool else "all nodes"
        more = f"{'more' if mean > 0 else 'less'}, {self.paired.verdict}" if mean else self.paired.verdict
        pods = self.paired.difference.count
        return f"{where}, {pods} pods: {self.policy:.5g} against {self.chosen:.5g}: {self.paired.difference:+} {more}"


@dataclass(frozen=True)
class PlayerReport:
    """What a log says of one policy.

    `agreement`: share of pods on the same node. `expected_agreement`: what choosing at random among the feasible nodes
    would give. `infeasible`: pods whose actual node fails our filters.
    """

    player: Player
    schedulers: tuple[str, ...]
    pods: int
    agreement: float
    expected_agreement: float
    infeasible: int
    comparisons: tuple[ObjectiveComparison, ...]

    def __str__(self) -> str:
        source, sha256 = self.player.source, self.player.sha256
        origin = f" from {source}" + (f" ({sha256[:8]})" if sha256 else "") if source else ""
        lines = [
            f"{self.player.policy}{origin} beside {', '.join(self.schedulers)}: {self.pods} pods",
            f"  agreement {self.agreement:.1%} (by chance {self.expected_agreement:.1%})",
            f"  {self.infeasible} pods are on nodes that our filters refuse",
        ]
        objective = ""
        for each in self.comparisons:
            if each.objective != objective:
                metric, objective = each.metric, each.objective
                lines.append(
                    f"  {objective}, {metric.better} is better, in {metric.unit}: {metric.meaning.partition(', at')[0]}"
                )
            lines.append(f"    {each}")
        return "\n".join(lines)


@dataclass(frozen=True)
class ShadowReport:
    """What a log says, policy by policy; two files of one name are two policies."""

    players: tuple[PlayerReport, ...]

    def __str__(self) -> str:
        summary = (
            "Each pod is evaluated alone, from the state just before it: policy against scheduler [95% interval]."
            "\nPods that had a node when the shadow began are not in the log."
        )
        return "\n\n".join([*map(str, self.players), summary])

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers as JSON has them."""
        return asdict(self)


def read_report(path: Path) -> ShadowReport:
    """Read a log of `aaml schedule ... --dry-run`; raises `UserError` for what is none, naming the line."""
    return report(read_records(path))


def read_records(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a log. Raises `UserError` for what is none, naming the line."""
    try:
        return list(_records(path, whole_lines(path).splitlines()))
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise bad_value("report", str(path), f"a readable shadow log ({why})") from error


def report(records: Iterable[Record]) -> ShadowReport:
    """Sum up the records of a log; a policy's last one of a pod counts. Raises `UserError` when there is none."""
    by_player: dict[Player, dict[str, Record]] = {}
    for record in records:
        player = Player(record["policy"], record.get("source", ""), record.get("sha256", ""))
        by_player.setdefault(player, {})[record["uid"]] = record
    if not by_player:
        raise UserError("report: no pod in it; expected at least one line of `aaml schedule ... --dry-run`")
    return ShadowReport(tuple(_sum_up(player, list(kept.values())) for player, kept in by_player.items()))


def _sum_up(player: Player, kept: Sequence[Record]) -> PlayerReport:
    return PlayerReport(
        player,
        tuple(sorted({str(record.get("scheduler", "another scheduler")) for record in kept})),
        len(kept),
        float(np.mean([record["agree"] for record in kept])),
        float(np.mean([1.0 / max(record["feasible_nodes"], 1) for record in kept])),
        sum(not record["chosen_feasible"] for record in kept),
        tuple(_comparisons(kept)),
    )


def _comparisons(kept: Sequence[Record]) -> Iterator[ObjectiveComparison]:
    """Yield each objective over all nodes and, where there are several, over each pool."""
    pools = sorted({record.get("chosen_pool", "") for record in kept} - {EVERYWHERE})
    for name in OBJECTIVES:
        better = find_metric(f"final_{name}").better
        for pool in (EVERYWHERE, *(pools if len(pools) > 1 else ())):
            sides = np.array(
                [
                    [record["objectives"][name][side] for side in ("policy", "chosen")]
                    for record in kept
                    if pool in (EVERYWHERE, record.get("chosen_pool", ""))
                ]
            )
            ours, theirs = sides.T
            yield ObjectiveComparison(
                name, pool, float(ours.mean()), float(theirs.mean()), paired(ours, theirs, better)
            )


def _records(path: Path, lines: Iterable[str]) -> Iterable[dict[str, Any]]:
    for number, text in enumerate(lines, start=1):
        if not text.strip():
            continue
        where = f"report: {path}, line {number}"
        try:
            record = convert(of_json(text.encode(), where), _Line, where)
        except UserError as error:
            raise UserError(f"{error}: it is no line of a shadow log") from error
        plain: dict[str, Any] = msgspec.to_builtins(record)
        if missing := OBJECTIVES.keys() - plain["objectives"].keys():
            raise UserError(f"{where}: objectives: {min(missing)} is missing: it is no line of a shadow log")
        yield plain


class _Sides(msgspec.Struct, forbid_unknown_fields=True):
    policy: float
    chosen: float


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    """What `ShadowLog` writes of a pod."""

    uid: str
    policy: str
    agree: bool
    feasible_nodes: Annotated[int, Meta(ge=0)]
    chosen_feasible: bool
    objectives: dict[str, _Sides]
    source: str = ""
    sha256: str = ""
    scheduler: str = "another scheduler"
    chosen_pool: str = ""
    time: str = ""
    pod: str = ""
    policy_node: str = ""
    chosen_node: str = ""
