"""What the page shows, as JSON-able values: the replays, curves, comparisons and shadow logs of given paths."""

import json
import math
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aaml.cluster.filters import feasible
from aaml.errors import UserError, bad_value
from aaml.evaluation.policies import load_policy
from aaml.evaluation.results import RESULTS
from aaml.evaluation.run_spec import RunSpec
from aaml.insight.replay import RESOURCES, AttemptRecord, Replay
from aaml.lab.runs import Playable, playable
from aaml.lab.tiles import Groups, group, tile
from aaml.lab.watched import CLUSTER, ClusterReplay
from aaml.live.shadow import read_records, read_report
from aaml.nodes.prices import PriceList
from aaml.scheduling.curves import OF_VALIDATION
from aaml.sim.tasks import find_task
from aaml.threads import ThreadPool
from aaml.training.records import CONFIG, METRICS

PAGE = 50  # decisions that are sent at once
_REPLAYS_KEPT = 8
_PLAYED_AT_ONCE = 4
_NODES_EXPLAINED = 40
_POINTS = 400  # of a curve
_NAMED, _EXPLAINED = 20, 5  # pods that wait: that are named, and of which it is said why
_BLOCKS, _LEAST_BLOCK = 100, 20  # of a shadow log's pods, whose agreement is one point: of a few pods it is noise


@dataclass
class Playback:
    """A replay that runs or has run; `error` says why it could not."""

    episode: int
    nodes: int
    seed: int
    policy: str
    replay: Replay | None = None
    error: str = ""
    grouped: tuple[Replay, int] | None = None
    """The replay that `groups` belong to, and how many nodes it had."""
    groups: dict[int, Groups] = field(default_factory=dict)
    whys: dict[AttemptRecord, str] = field(default_factory=dict)
    stop: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)

    def begin(self, replay: Replay) -> None:
        """Show the replay while it is made."""
        self.replay = replay


class Library:
    """The runs that the page can show. A replay is made in a thread when somebody first asks for it, a few at once.

    `instance_types`: the file with prices of nodes. Raises `UserError` for what cannot be read.
    """

    def __init__(self, paths: Iterable[Path] = (), instance_types: Path | None = None) -> None:
        self._prices = PriceList.read(instance_types)
        self.episodes: list[Playable] = []
        self.results: list[Path] = []
        self.trainings: list[Path] = []
        self.shadows: list[Path] = []
        self.watched: ClusterReplay | None = None
        self.opinions: tuple[str, ...] = ()
        self._playbacks: OrderedDict[str, Playback] = OrderedDict()
        self._lock = threading.Lock()
        self._players = ThreadPool(_PLAYED_AT_ONCE, "replay")
        for path in paths:
            self._add(path)

    def watch(self, kubeconfig: Path | None, policies: Sequence[str] = ("kube-scheduler",)) -> None:
        """Record a live cluster from now on; the first of the policies explains its decisions.

        The others say what they would have done. Raises `UserError` when there is no cluster or no such policy.
        """
        for policy in policies:
            load_policy(policy)
        self.watched = ClusterReplay(kubeconfig)
        players = {CLUSTER: policies[0], **{policy: policy for policy in policies[1:]}}
        self.opinions = tuple(policies[1:])
        size = int(self.watched.replay.workers)
        self.episodes = [Playable(RunSpec(find_task("balance"), players), (size,), (0,), (CLUSTER,))]

    @property
    def programs(self) -> list[str]:
        """The policies of Python files that the runs name: code that is run when such a run is played."""
        specs = {spec for each in self.episodes for spec in each.spec.policies.values() if isinstance(spec, str)}
        return sorted(spec for spec in specs if ".py:" in spec)

    def check(self) -> None:
        """Raise the error that ended the watch of a live cluster or a thread of replays, if there is one."""
        self._players.check()
        if self.watched is not None:
            self.watched.check()

    def close(self) -> None:
        """Stop the replays that run, and the watch of a live cluster."""
        for playback in self._playbacks.values():
            playback.stop.set()
        self._players.shutdown()
        if self.watched is not None:
            self.watched.close()

    def _add(self, path: Path) -> None:
        if path.suffix == ".jsonl" and path.is_file():
            self.shadows.append(path)
        elif (path / RESULTS).is_file() or (path / CONFIG).is_file():
            self.episodes += playable(path)
            if (path / RESULTS).is_file():
                self.results.append(path)
                self.trainings += sorted(config.parent for config in path.glob(f"*/{CONFIG}"))  # evaluated there
            else:
                self.trainings.append(path)
        else:
            accepted = "a folder of `aaml evaluate` or `aaml train`, or a shadow log (FILE.jsonl)"
            raise bad_value("runs", str(path), accepted)

    # ---- replays -----------------------------------------------------------------------------------------------------

    def index(self) -> list[dict[str, Any]]:
        """Return the episodes that can be looked at; the runs of several folders are called by these too."""
        several = len({each.run for each in self.episodes}) > 1
        named = "{0.run}: {0.spec.task.name}" if several else "{0.spec.task.name}"
        return [
            {
                "name": named.format(each) if self.watched is None else "live",
                "live": self.watched is not None,
                "nodes": each.nodes,
                "seeds": each.seeds,
                "policies": each.policies,
            }
            for each in self.episodes
        ]

    def playback(self, episode: int, nodes: int, seed: int, policy: str) -> tuple[str, Playback]:
        """Return a replay with its key; it is started where nobody asked for it before.

        Raises `UserError` for what `index` does not list: a request may name none of its own files or sizes.
        """
        if not 0 <= episode < len(self.episodes):
            raise bad_value("episode", episode, f"0 to {len(self.episodes) - 1}")
        listed = self.episodes[episode]
        for name, value, offered in (
            ("nodes", nodes, listed.nodes), ("seed", seed, listed.seeds), ("policy", policy, listed.policies),
        ):  # fmt: skip
            if value not in offered:
                raise bad_value(name, value, f"one of {', '.join(map(str, offered))}")
        key = f"{episode}-{nodes}-{seed}-{policy}"
        with self._lock:
            if self.watched is not None and key not in self._playbacks:
                self._playbacks[key] = Playback(episode, nodes, seed, policy, self.watched.replay)
            if key not in self._playbacks:
                playback = self._playbacks[key] = Playback(episode, nodes, seed, policy)
                self._players.submit(self._play, playback)
                if len(self._playbacks) > _REPLAYS_KEPT:
                    self._playbacks.popitem(last=False)[1].stop.set()
            self._playbacks.move_to_end(key)
            return key, self._playbacks[key]

    def known(self, key: str) -> Playback:
        """Return a replay by its key. Raises `UserError` where it was dropped meanwhile."""
        with self._lock:
            if key not in self._playbacks:
                raise bad_value("playback", key, "a replay that was opened lately: load the page again")
            return self._playbacks[key]

    def status(self, playback: Playback) -> dict[str, Any]:
        """Return how far a replay is, and what there is to choose from it.

        `began_unix_s` is when a live cluster's second 0 was; 0 for a run that is replayed, which has no date.
        """
        replay, live = self._replay_of(playback), self.watched
        if replay is None:
            return {"done": playback.ended.is_set(), "error": playback.error, "decisions": 0, "span_s": [0, 0]}
        return {
            "done": playback.ended.is_set(), "error": playback.error,
            "decisions": replay.forgotten + len(replay.decisions),
            "resources": RESOURCES, "nodes": replay.workers, "policy": replay.policy,
            "span_s": replay.span_s if live is None else (live.from_s, live.now_s()),
            "began_unix_s": 0.0 if live is None else live.began_unix_s,
        }  # fmt: skip

    def window(self, playback: Playback, start_s: float, end_s: float, row: int = -1) -> dict[str, Any]:
        """Return a window of a replay; with `row` the nodes of one row of its heat map, with -1 all of them."""
        replay = self._begun(playback)
        if not (math.isfinite(start_s) and math.isfinite(end_s) and start_s <= end_s):
            raise bad_value("start, end", f"{start_s:g}, {end_s:g}", "two times in seconds, the first one first")
        if playback.grouped != (replay, len(replay.nodes)):
            playback.grouped, playback.groups = (replay, len(replay.nodes)), {}
        groups = playback.groups.get(row)
        if groups is None:
            whole = group(replay)
            if not -1 <= row < len(whole.names):
                raise bad_value("row", row, f"-1 to {len(whole.names) - 1}")
            playback.groups = {-1: whole} | ({row: group(replay, whole, row)} if row >= 0 else {})
            groups = playback.groups[row]
        return tile(replay, groups, start_s, end_s, self._prices)

    def decisions(self, playback: Playback, page: int) -> list[list[Any]]:
        """Return `PAGE` decisions as rows of number, time, pod, node, feasible nodes, outcome and who decided.

        The last is "" where the replay's own policy did. Those that are forgotten are left out.
        """
        replay = self._begun(playback)
        if page < 0:
            raise bad_value("page", page, "0 or more")
        first, begin = page * PAGE, max(page * PAGE - replay.forgotten, 0)
        return [
            [replay.forgotten + begin + place, record.time_s, replay.pods[record.pod].key, _name(replay, record.node),
             record.feasible, record.kind, record.by]
            for place, record in enumerate(replay.decisions[begin : max(first + PAGE - replay.forgotten, 0)])
        ]  # fmt: skip

    def waiting(self, playback: Playback, at_s: float) -> dict[str, Any]:
        """Name the pods that wait: on a live cluster now, in a run that is played at a time, the longest first.

        Rows are the pod, since when in seconds, how often it was tried (0: not known), who is to place it, and why it
        has no node. In a run these are the pods that were tried already, and the first few have their reasons.
        `promise` is a line about what a live cluster's learned nodes promise, "" where they promise nothing.
        """
        if (live := self.watched) is not None:
            rows = [[each.pod, each.since_unix_s - live.began_unix_s, 0, *each[2:]] for each in live.waiting]
            return {"pending": live.pending, "pods": rows[:_NAMED], "promise": live.promise}
        if not math.isfinite(at_s):
            raise bad_value("at", at_s, "a time in seconds")
        replay = self._begun(playback)
        left: dict[int, tuple[float, int, AttemptRecord]] = {}
        for record in replay.attempts[:]:
            if record.time_s > at_s:
                break
            if record.kind in ("unschedulable", "declined"):
                since_s, tries, _ = left.get(record.pod, (record.time_s, 0, record))
                left[record.pod] = (since_s, tries + 1, record)
            else:
                left.pop(record.pod, None)
        rows = [
            [
                replay.pods[pod].key,
                since_s,
                tries,
                replay.policy,
                self._why(playback, record) if place < _EXPLAINED else "",
            ]
            for place, (pod, (since_s, tries, record)) in enumerate([*left.items()][:_NAMED])
        ]
        return {"pending": len(left), "pods": rows, "promise": ""}

    def _why(self, playback: Playback, record: AttemptRecord) -> str:
        """Return why a pod was left without a node, in kube-scheduler's words."""
        replay = self._begun(playback)
        if record.kind == "declined":
            return f"{record.by or replay.policy} left it pending"
        if record not in playback.whys:
            if len(playback.whys) >= PAGE:
                playback.whys.clear()
            playback.whys[record] = feasible(replay.state_before(record), replay.pods[record.pod]).message()
        return playback.whys[record]

    def _begun(self, playback: Playback) -> Replay:
        replay = self._replay_of(playback)
        if replay is None:
            raise bad_value("replay", playback.policy, "one that has begun")
        return replay

    def _replay_of(self, playback: Playback) -> Replay | None:
        """Return the replay to show; a live cluster has a new one whenever old events were dropped."""
        if self.watched is not None:
            playback.replay = self.watched.replay
        return playback.replay

    def explain(self, playback: Playback, number: int, beside: Playback | None = None) -> dict[str, Any]:
        """Explain a decision, and what the policy of another replay does with that pod, here and in its own run."""
        replay, spec = self._begun(playback), self.episodes[playback.episode].spec
        last = replay.forgotten + len(replay.decisions) - 1
        if not replay.forgotten <= number <= last:
            raise bad_value("decision", number, f"{replay.forgotten} to {last}")
        record = replay.decisions[number - replay.forgotten]
        answer: dict[str, Any] = {"own": spec.explain(replay, record, seed=playback.seed).to_dict(_NODES_EXPLAINED)}
        answer["by"] = record.by
        answer["scores_of"] = replay.policy if self.watched is None else spec.policies[CLUSTER]
        answer["others"] = [
            {"policy": each, "here": spec.explain(replay, record, each, seed=playback.seed).node, "in_its_run": ""}
            for each in self.opinions
        ]
        if beside is not None and beside.policy != playback.policy:
            there = self._begun(beside)
            again = there.latest(replay.pods[record.pod].uid)
            answer["others"].append(
                {
                    "policy": beside.policy,
                    "here": spec.explain(replay, record, beside.policy, seed=playback.seed).node,
                    "in_its_run": "" if again is None else _name(there, again.node),
                }
            )
        return answer

    def _play(self, playback: Playback) -> None:
        spec = self.episodes[playback.episode].spec
        try:
            if not playback.stop.is_set():
                spec.replay(
                    playback.policy, playback.seed, playback.nodes, stop=playback.stop.is_set, begun=playback.begin
                )
        except UserError as error:
            playback.error = str(error)
        except Exception as error:  # noqa: BLE001  (a policy may raise anything: the page says so)
            playback.error = f"{playback.policy} cannot be played: {type(error).__name__}: {error}"
        finally:
            playback.ended.set()

    # ---- curves and logs ---------------------------------------------------------------------------------------------

    def curves(self) -> dict[str, dict[str, list[list[float]]]]:
        """Return curve -> run -> [steps, values], thinned to a few hundred points; validation comes first."""
        found: dict[str, dict[str, list[list[float]]]] = {}
        for run, path in zip(self.runs, self.trainings, strict=True):
            for name, (steps, values) in _scalars(path / METRICS).items():
                every = -(-len(steps) // _POINTS)
                found.setdefault(name, {})[run] = [steps[::every], values[::every]]
        return dict(sorted(found.items(), key=lambda each: (not each[0].startswith(OF_VALIDATION), each[0])))

    @property
    def runs(self) -> list[str]:
        """The names of the trainings: their folders, with what is above them where two have the same."""
        names = [path.resolve().name for path in self.trainings]
        return [name if names.count(name) == 1 else str(path) for name, path in zip(names, self.trainings, strict=True)]

    def shadow(self) -> list[dict[str, Any]]:
        """Return for each shadow log its report, and how often both agreed, over blocks of pods."""
        return [
            {"name": path.name, "report": str(read_report(path)), **_agreement(read_records(path))}
            for path in self.shadows
        ]


def _name(replay: Replay, node: int) -> str:
    return replay.nodes[node].name if node >= 0 else ""


def _scalars(path: Path) -> dict[str, tuple[list[float], list[float]]]:
    """Return the curves in a training's metrics; a line that is being written is left for the next time."""
    found: dict[str, tuple[list[float], list[float]]] = {}
    if path.is_file():
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                point = json.loads(line)
            except ValueError:
                continue
            if point.get("kind") == "scalar" and point["value"] is not None:
                steps, values = found.setdefault(point["name"], ([], []))
                steps.append(float(point["step"]))
                values.append(float(point["value"]))
    return found


def _agreement(records: Iterable[dict[str, Any]]) -> dict[str, Any]:
    agreed = [bool(record["agree"]) for record in records]
    size = max(_LEAST_BLOCK, -(-len(agreed) // _BLOCKS))
    blocks = [agreed[start : start + size] for start in range(0, len(agreed), size)]
    return {
        "pods": [min((number + 1) * size, len(agreed)) for number in range(len(blocks))],
        "agreement": [sum(block) / len(block) for block in blocks],
    }
