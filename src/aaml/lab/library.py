"""What the page shows: the films, curves, comparisons and shadow logs that a person pointed at, as JSON-able values."""

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
from aaml.evaluation.run_spec import RunSpec
from aaml.evaluation.results import RESULTS
from aaml.insight.film import RESOURCES, Film, Scene
from aaml.lab.runs import Playable, playable
from aaml.lab.tiles import Groups, group, tile
from aaml.lab.watched import CLUSTER, WatchedFilm
from aaml.live.shadow import read_records, read_report
from aaml.nodes.prices import PriceList
from aaml.scheduling.curves import JUDGED
from aaml.sim.tasks import find_task
from aaml.threads import ThreadPool
from aaml.training.records import CONFIG, METRICS

PAGE = 50  # decisions that are sent at once
_FILMS_KEPT = 8
_PLAYED_AT_ONCE = 4
_NODES_EXPLAINED = 40
_POINTS = 400  # of a curve
_NAMED, _EXPLAINED = 20, 5  # pods that wait: that are named, and of which it is said why
_BLOCKS, _LEAST_BLOCK = 100, 20  # of a shadow log's pods, whose agreement is one point: of a few pods it is noise


@dataclass
class Take:
    """A film that is played, or was; `error` says why it could not be."""

    episode: int
    nodes: int
    seed: int
    policy: str
    film: Film | None = None
    error: str = ""
    grouped: tuple[Film, int] | None = None
    """The film, and how many nodes it had, that `groups` are of."""
    groups: dict[int, Groups] = field(default_factory=dict)
    whys: dict[Scene, str] = field(default_factory=dict)
    stop: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)

    def begin(self, film: Film) -> None:
        """Let the film be looked at while it is played."""
        self.film = film


class Library:
    """Everything that was pointed at. Films are played in threads, when somebody asks for them, a few at once.

    `instance_types`: the file with prices of nodes. Raises `UserError` for what cannot be read.
    """

    def __init__(self, paths: Iterable[Path] = (), instance_types: Path | None = None) -> None:
        self._prices = PriceList.read(instance_types)
        self.episodes: list[Playable] = []
        self.results: list[Path] = []
        self.trainings: list[Path] = []
        self.shadows: list[Path] = []
        self.watched: WatchedFilm | None = None
        self.opinions: tuple[str, ...] = ()
        self._takes: OrderedDict[str, Take] = OrderedDict()
        self._lock = threading.Lock()
        self._players = ThreadPool(_PLAYED_AT_ONCE, "film")
        for path in paths:
            self._add(path)

    def watch(self, kubeconfig: Path | None, policies: Sequence[str] = ("kube-scheduler",)) -> None:
        """Film a live cluster from now on; its decisions are explained by the first of the policies.

        The others are asked what they would have done. Raises `UserError` when there is no cluster or no such policy.
        """
        for policy in policies:
            load_policy(policy)
        self.watched = WatchedFilm(kubeconfig)
        players = {CLUSTER: policies[0], **{policy: policy for policy in policies[1:]}}
        self.opinions = tuple(policies[1:])
        size = int(self.watched.film.workers)
        self.episodes = [Playable(RunSpec(find_task("balance"), players), (size,), (0,), (CLUSTER,))]

    @property
    def programs(self) -> list[str]:
        """The policies of Python files that the runs name: code that is run when such a run is played."""
        specs = {spec for each in self.episodes for spec in each.spec.policies.values() if isinstance(spec, str)}
        return sorted(spec for spec in specs if ".py:" in spec)

    def check(self) -> None:
        """Raise what has ended the watching of a live cluster or the playing of films, if anything has."""
        self._players.check()
        if self.watched is not None:
            self.watched.check()

    def close(self) -> None:
        """End the films that are played, and the watch of a live cluster."""
        for take in self._takes.values():
            take.stop.set()
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
                self.trainings += sorted(config.parent for config in path.glob(f"*/{CONFIG}"))  # those that it judges
            else:
                self.trainings.append(path)
        else:
            accepted = "a folder of `aaml evaluate` or `aaml train`, or a shadow log (FILE.jsonl)"
            raise bad_value("runs", str(path), accepted)

    # ---- films -------------------------------------------------------------------------------------------------------

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

    def take(self, episode: int, nodes: int, seed: int, policy: str) -> tuple[str, Take]:
        """Return a film with its key; it is begun to be played where nobody asked for it before.

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
            if self.watched is not None and key not in self._takes:
                self._takes[key] = Take(episode, nodes, seed, policy, self.watched.film)
            if key not in self._takes:
                take = self._takes[key] = Take(episode, nodes, seed, policy)
                self._players.submit(self._play, take)
                if len(self._takes) > _FILMS_KEPT:
                    self._takes.popitem(last=False)[1].stop.set()
            self._takes.move_to_end(key)
            return key, self._takes[key]

    def known(self, key: str) -> Take:
        """Return a film that was asked for. Raises `UserError` where it was given up meanwhile."""
        with self._lock:
            if key not in self._takes:
                raise bad_value("take", key, "a film that was asked for lately: load the page again")
            return self._takes[key]

    def status(self, take: Take) -> dict[str, Any]:
        """Return how far a film is, and what there is to choose from it.

        `began_unix_s` is when a live cluster's second 0 was; 0 for a run that is played again, which has no date.
        """
        film, live = self._film_of(take), self.watched
        if film is None:
            return {"done": take.ended.is_set(), "error": take.error, "decisions": 0, "span_s": [0, 0]}
        return {
            "done": take.ended.is_set(), "error": take.error, "decisions": film.forgotten + len(film.decisions),
            "resources": RESOURCES, "nodes": film.workers, "policy": film.policy,
            "span_s": film.span_s if live is None else (live.from_s, live.now_s()),
            "began_unix_s": 0.0 if live is None else live.began_unix_s,
        }  # fmt: skip

    def window(self, take: Take, start_s: float, end_s: float, row: int = -1) -> dict[str, Any]:
        """Return a window of a film; with `row` the nodes of one row of its heat map, with -1 all of them."""
        film = self._filmed(take)
        if not (math.isfinite(start_s) and math.isfinite(end_s) and start_s <= end_s):
            raise bad_value("start, end", f"{start_s:g}, {end_s:g}", "two times in seconds, the first one first")
        if take.grouped != (film, len(film.nodes)):
            take.grouped, take.groups = (film, len(film.nodes)), {}
        groups = take.groups.get(row)
        if groups is None:
            whole = group(film)
            if not -1 <= row < len(whole.names):
                raise bad_value("row", row, f"-1 to {len(whole.names) - 1}")
            take.groups = {-1: whole} | ({row: group(film, whole, row)} if row >= 0 else {})
            groups = take.groups[row]
        return tile(film, groups, start_s, end_s, self._prices)

    def decisions(self, take: Take, page: int) -> list[list[Any]]:
        """Return `PAGE` decisions as rows of number, time, pod, node, feasible nodes, outcome and who decided.

        The last is "" where the film's own policy did. Those that are forgotten are left out.
        """
        film = self._filmed(take)
        if page < 0:
            raise bad_value("page", page, "0 or more")
        first, begin = page * PAGE, max(page * PAGE - film.forgotten, 0)
        return [
            [film.forgotten + begin + place, scene.time_s, film.pods[scene.pod].key, _name(film, scene.node),
             scene.feasible, scene.kind, scene.by]
            for place, scene in enumerate(film.decisions[begin : max(first + PAGE - film.forgotten, 0)])
        ]  # fmt: skip

    def waiting(self, take: Take, at_s: float) -> dict[str, Any]:
        """Name the pods that wait: on a live cluster now, in a run that is played at a time, the longest first.

        Rows are the pod, since when in seconds, how often it was tried (0: not known), who is to place it, and why it
        has no node. In a run these are the pods that were tried already, and the first few have their reasons.
        """
        if (live := self.watched) is not None:
            rows = [[each.pod, each.since_unix_s - live.began_unix_s, 0, *each[2:]] for each in live.waiting]
            return {"pending": live.pending, "pods": rows[:_NAMED]}
        if not math.isfinite(at_s):
            raise bad_value("at", at_s, "a time in seconds")
        film = self._filmed(take)
        left: dict[int, tuple[float, int, Scene]] = {}
        for scene in film.scenes[:]:
            if scene.time_s > at_s:
                break
            if scene.kind in ("unschedulable", "declined"):
                since_s, tries, _ = left.get(scene.pod, (scene.time_s, 0, scene))
                left[scene.pod] = (since_s, tries + 1, scene)
            else:
                left.pop(scene.pod, None)
        rows = [
            [film.pods[pod].key, since_s, tries, film.policy, self._why(take, scene) if place < _EXPLAINED else ""]
            for place, (pod, (since_s, tries, scene)) in enumerate([*left.items()][:_NAMED])
        ]
        return {"pending": len(left), "pods": rows}

    def _why(self, take: Take, scene: Scene) -> str:
        """Return why a pod was left without a node, in kube-scheduler's words."""
        film = self._filmed(take)
        if scene.kind == "declined":
            return f"{scene.by or film.policy} left it pending"
        if scene not in take.whys:
            if len(take.whys) >= PAGE:
                take.whys.clear()
            take.whys[scene] = feasible(film.state_before(scene), film.pods[scene.pod]).message()
        return take.whys[scene]

    def _filmed(self, take: Take) -> Film:
        film = self._film_of(take)
        if film is None:
            raise bad_value("film", take.policy, "one that has begun to be played")
        return film

    def _film_of(self, take: Take) -> Film | None:
        """Return the film of a take; that of a live cluster is another one when its beginning was forgotten."""
        if self.watched is not None:
            take.film = self.watched.film
        return take.film

    def explain(self, take: Take, number: int, beside: Take | None = None) -> dict[str, Any]:
        """Explain a decision of a film; and what the policy of another film makes of it, here and in its own run."""
        film, spec = self._filmed(take), self.episodes[take.episode].spec
        last = film.forgotten + len(film.decisions) - 1
        if not film.forgotten <= number <= last:
            raise bad_value("decision", number, f"{film.forgotten} to {last}")
        scene = film.decisions[number - film.forgotten]
        said: dict[str, Any] = {"own": spec.explain(film, scene, seed=take.seed).to_dict(_NODES_EXPLAINED)}
        said["by"] = scene.by
        said["scores_of"] = film.policy if self.watched is None else spec.policies[CLUSTER]
        said["others"] = [
            {"policy": each, "here": spec.explain(film, scene, each, seed=take.seed).node, "in_its_run": ""}
            for each in self.opinions
        ]
        if beside is not None and beside.policy != take.policy:
            there = self._filmed(beside)
            again = there.latest(film.pods[scene.pod].uid)
            said["others"].append(
                {
                    "policy": beside.policy,
                    "here": spec.explain(film, scene, beside.policy, seed=take.seed).node,
                    "in_its_run": "" if again is None else _name(there, again.node),
                }
            )
        return said

    def _play(self, take: Take) -> None:
        spec = self.episodes[take.episode].spec
        try:
            if not take.stop.is_set():
                spec.film(take.policy, take.seed, take.nodes, stop=take.stop.is_set, begun=take.begin)
        except UserError as error:
            take.error = str(error)
        except Exception as error:  # noqa: BLE001  (a policy may raise anything: the page says so)
            take.error = f"{take.policy} cannot be played: {type(error).__name__}: {error}"
        finally:
            take.ended.set()

    # ---- curves and logs ---------------------------------------------------------------------------------------------

    def curves(self) -> dict[str, dict[str, list[list[float]]]]:
        """Return curve -> run -> [steps, values], thinned to a few hundred points each; judgements come first."""
        found: dict[str, dict[str, list[list[float]]]] = {}
        for run, path in zip(self.runs, self.trainings, strict=True):
            for name, (steps, values) in _scalars(path / METRICS).items():
                every = -(-len(steps) // _POINTS)
                found.setdefault(name, {})[run] = [steps[::every], values[::every]]
        return dict(sorted(found.items(), key=lambda each: (not each[0].startswith(JUDGED), each[0])))

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


def _name(film: Film, node: int) -> str:
    return film.nodes[node].name if node >= 0 else ""


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
