"""LifetimeModel: how long pods run and, of one that has run for a while, for how long it will; learned from runs.

The model is a life table: Kaplan and Meier's estimate (JASA 1958) in bands of age, half an octave wide. Of the runs
that were watched in a band it counts those that ended there, and of those that did not the part of the band that they
were watched for. So a run that still goes on (censored), or was found running already (truncated), says what it says
and no more. Within a band runs end evenly.

Classes are nested: all pods; the kind of owner with the quality-of-service class; what a pod asks for; its owner. Each
is shrunk towards the one around it, band by band, as if `PRIOR_RUNS` more runs had been watched there that ended as
often as those of the class around: the mean of the Beta distribution that is left after what was seen. All pods are
shrunk towards the Lomax law of median `UNKNOWN_S`, in which one that has run for long runs for about as long again.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from aaml.cluster.kernels import with_refcount, without_refcount
from aaml.cluster.objects import Pod
from aaml.cluster.quantity import CPU, MEMORY
from aaml.settings import RemainingLifetimes

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

EDGES_S: FloatArray = np.concatenate([[0.0], 2.0 ** (np.arange(51) / 2.0)])  # of the bands of age, up to 388 days
LONGEST_S = float(EDGES_S[-1])  # no rest is said to be longer
PRIOR_RUNS = 1.0
UNKNOWN_S = 600.0
_BANDS = len(EDGES_S) - 1
_CLASSES = 4096  # beyond so many, pods of an owner that is new count as what they ask for
_NO_PARENT = -1
_GENERATED = {
    "ReplicaSet": re.compile(r"-[bcdfghjklmnpqrstvwxz2456789]{8,10}$"),  # the hash of the pod template
    "Job": re.compile(r"-\d{8,10}$"),  # the minute for which a CronJob made it
}


class LifetimeTable(NamedTuple):
    """What compiled code reads of C classes and K bands of age.

    =======  ====================  ==================================================================
    ending   float64 [C, K]        of the runs that reach a band, the share that ends in it
    alive    float64 [C, K + 1]    logarithm of the share of all runs that reach an edge
    remaining_s   float64 [C, K + 1]    mean rest of those that reach it
    =======  ====================  ==================================================================
    """

    ending: FloatArray
    alive: FloatArray
    remaining_s: FloatArray


class LifetimeModel:
    """What was learned of how long pods run, by class of pod; `learn` goes on at any time."""

    def __init__(self) -> None:
        self._rows: dict[str, int] = {}
        self._parents = np.full(1, _NO_PARENT, dtype=np.int64)
        self._ends = np.zeros((1, _BANDS))
        self._passed = np.zeros((1, _BANDS))
        self._table: LifetimeTable | None = None
        self._row("", _NO_PARENT)

    @classmethod
    def of_history(cls, pods: Iterable[Pod]) -> Self:
        """Learn from pods as somebody who watched them from time 0 until the last of them came.

        Each runs from its `created_s` on. Those that came before time 0 were found running, those that would still run
        at the end were left so.
        """
        model, seen = cls(), list(pods)
        end_s = max((pod.created_s for pod in seen), default=0.0)
        for pod in seen:
            watched_s = end_s - pod.created_s
            runs_s = inf if pod.runs_s is None else pod.runs_s
            model.learn(pod, min(runs_s, watched_s), from_s=max(0.0, -pod.created_s), ended=runs_s <= watched_s)
        return model

    def learn(self, pod: Pod, to_s: float, *, from_s: float = 0.0, ended: bool = True) -> None:
        """Take one run, watched from the pod's age `from_s` to its age `to_s`; `ended`: it was over then.

        A pod that was ended by its own deadline would have run on: that is no end of its own.
        """
        if pod.deadline_s is not None and to_s >= pod.deadline_s:
            to_s, ended = pod.deadline_s, False
        if to_s < from_s:
            return
        row = _NO_PARENT
        for key in _classes(pod):
            row = self._row(key, row)
            _count(self._ends[row], self._passed[row], from_s, to_s, ended)
        self._table = None

    def __len__(self) -> int:
        """Return C, the number of classes."""
        return len(self._rows)

    def row(self, pod: Pod) -> int:
        """Return the row of the narrowest class of a pod that something is known of."""
        return next(self._rows[key] for key in reversed(_classes(pod)) if key in self._rows)

    def limit_s(self, pod: Pod) -> float:
        """Return the age beyond which a pod is known not to run; inf where nothing says so."""
        return inf if pod.deadline_s is None else pod.deadline_s

    @property
    def table(self) -> LifetimeTable:
        """The life table as learned so far."""
        if self._table is None:
            count = len(self._rows)
            table = LifetimeTable(np.zeros((count, _BANDS)), *np.zeros((2, count, _BANDS + 1)))
            _solve(self._ends, self._passed, self._parents, table)
            self._table = table
        return self._table

    # ---- what is to be expected of one pod ---------------------------------------------------------------------------

    def remaining_s(self, pod: Pod, age_s: float = 0.0) -> float:
        """Return for how many seconds a pod of that age is expected to run on, at most `LONGEST_S`."""
        return float(mean_remaining(self.table, self.row(pod), age_s, self.limit_s(pod)))

    def survival(self, pod: Pod, age_s: float, after_s: float) -> float:
        """Return the probability that a pod of that age still runs after so many seconds."""
        return float(survival(self.table, self.row(pod), age_s, after_s, self.limit_s(pod)))

    def remaining_at_s(self, pod: Pod, age_s: float, share: float) -> float:
        """Return after how many seconds only this share of the pods of that age and class still run, up to `LONGEST_S`.

        With a share drawn between 0 and 1 it is a drawn rest.
        """
        limit_s = self.limit_s(pod) - age_s
        return max(0.0, min(float(remaining_at(self.table, self.row(pod), age_s, share)), limit_s, LONGEST_S))

    def certainty(self, pod: Pod, age_s: float = 0.0) -> float:
        """Return how sure the rest is: its lower quartile over its upper one.

        It is 1 for a rest known to the second, 0.21 for one without memory (exponential), near 0 for a heavy tail.
        """
        return float(certainty(self.table, self.row(pod), age_s, self.limit_s(pod)))

    # ---- files -------------------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Return plain values: of each class its key, the row around it, and the bands in which it was watched."""
        classes = []
        for key, row in self._rows.items():
            ends, passed = self._ends[row], self._passed[row]
            bands = [[k, float(ends[k]), float(passed[k])] for k in np.flatnonzero(ends + passed).tolist()]
            classes.append({"key": key, "around": int(self._parents[row]), "bands": bands})
        return {"classes": classes}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """Read what `to_dict` wrote. Raises KeyError, TypeError, ValueError or IndexError for anything else."""
        model = cls()
        for position, each in enumerate(fields["classes"]):
            around = int(each["around"])
            if not _NO_PARENT <= around < max(position, 0) or (around == _NO_PARENT) != (position == 0):
                raise ValueError(f"classes: {each['key']!r} lies in class {around}, which does not stand before it")
            row = model._row(str(each["key"]), around)
            for band, ends, passed in each["bands"]:
                model._ends[row, int(band)], model._passed[row, int(band)] = float(ends), float(passed)
        return model

    def __eq__(self, other: object) -> bool:
        """Models that know the same are equal, so that what they show is worked out once."""
        return self is other or (isinstance(other, LifetimeModel) and self.to_dict() == other.to_dict())

    __hash__ = None  # type: ignore[assignment]  # it changes as it learns

    def _row(self, key: str, parent: int) -> int:
        """Return the row of a class, a new one where there is room; else the row around it."""
        row = self._rows.get(key)
        if row is not None:
            return row
        row = len(self._rows)
        if row >= _CLASSES:
            return parent
        if row == len(self._parents):
            self._parents = np.concatenate([self._parents, np.full(row, _NO_PARENT)])
            self._ends = np.concatenate([self._ends, np.zeros((row, _BANDS))])
            self._passed = np.concatenate([self._passed, np.zeros((row, _BANDS))])
        self._rows[key], self._parents[row] = row, parent
        return row


class KnownLifetimes(LifetimeModel):
    """A clairvoyant's model: no run ends by chance, each at its own `Pod.runs_s`, which nobody else may read."""

    def row(self, pod: Pod) -> int:  # noqa: ARG002
        """Return the one class that there is."""
        return 0

    def limit_s(self, pod: Pod) -> float:
        """Return how long the pod will run in all."""
        return inf if pod.runs_s is None else pod.runs_s

    @property
    def table(self) -> LifetimeTable:
        """No ends, the rest at each age as long as can be."""
        nothing = np.zeros((1, _BANDS + 1))
        return LifetimeTable(nothing[:, 1:], nothing, 2.0 * LONGEST_S - EDGES_S[None])

    def to_dict(self) -> dict[str, Any]:
        """Return what tells that the file's policy reads true lifetimes."""
        return {"known": True}


def expected_lifetimes(remaining_lifetimes: RemainingLifetimes, past: Iterable[Pod]) -> LifetimeModel | None:
    """Return what is told of how long pods run on: nothing, what the past teaches, or the truth."""
    if remaining_lifetimes == "nothing":
        return None
    return KnownLifetimes() if remaining_lifetimes == "known" else LifetimeModel.of_history(past)


def model_from_dict(fields: Mapping[str, Any]) -> LifetimeModel:
    """Read what a model's `to_dict` wrote. Raises KeyError, TypeError, ValueError or IndexError for anything else."""
    return KnownLifetimes() if fields.get("known") else LifetimeModel.from_dict(fields)


def _classes(pod: Pod) -> Sequence[str]:
    """Return the keys of a pod's classes, the widest first."""
    kind, _, name = pod.owner.partition("/")
    group = f"{kind}:{pod.qos}"
    shape = f"{group}|{pod.request(CPU)}|{pod.request(MEMORY)}|{pod.gpu.count}x{pod.gpu.milli}"
    if not name:
        return "", group, shape
    return "", group, shape, f"{pod.namespace}/{kind}/{owner_name(pod)}"


def owner_name(pod: Pod) -> str:
    """Return the name of a pod's owner without what is made up anew: that of the Deployment, or of the CronJob."""
    kind, _, name = pod.owner.partition("/")
    return _GENERATED[kind].sub("", name) if kind in _GENERATED else name


# ---- compiled --------------------------------------------------------------------------------------------------------


@without_refcount
def _band(age_s: float) -> int:
    """Return the band that an age lies in; the last one for what is older than all."""
    if age_s < 1.0:
        return 0
    return min(1 + int(2.0 * np.log2(age_s)), _BANDS - 1)


@without_refcount
def _count(ends: FloatArray, passed: FloatArray, from_s: float, to_s: float, ended: bool) -> None:
    """Add one run to a class: its end to the band of its end, to the others the part that it was watched for."""
    last = _band(to_s)
    for k in range(_band(from_s), last + 1):
        if ended and k == last:
            ends[k] += 1.0
        else:
            upper = min(to_s, EDGES_S[k + 1])
            passed[k] += max(upper - max(from_s, EDGES_S[k]), 0.0) / (EDGES_S[k + 1] - EDGES_S[k])


@without_refcount
def _solve(ends: FloatArray, passed: FloatArray, parents: IntArray, table: LifetimeTable) -> None:
    """Fill the life table; the class around one stands before it."""
    for c in range(table.ending.shape[0]):
        for k in range(_BANDS):
            if parents[c] < 0:
                around = (EDGES_S[k + 1] - EDGES_S[k]) / (UNKNOWN_S + EDGES_S[k + 1])
            else:
                around = table.ending[parents[c], k]
            ending = (ends[c, k] + PRIOR_RUNS * around) / (ends[c, k] + passed[c, k] + PRIOR_RUNS)
            table.ending[c, k] = ending
            table.alive[c, k + 1] = table.alive[c, k] + np.log1p(-ending)
        table.remaining_s[c, _BANDS] = LONGEST_S
        for k in range(_BANDS - 1, -1, -1):
            ending, width = table.ending[c, k], EDGES_S[k + 1] - EDGES_S[k]
            table.remaining_s[c, k] = width * (1.0 - 0.5 * ending) + (1.0 - ending) * table.remaining_s[c, k + 1]


@without_refcount
def _alive(table: LifetimeTable, row: int, age_s: float) -> float:
    """Return the logarithm of the share of runs that reach an age."""
    k = _band(age_s)
    part = min((age_s - EDGES_S[k]) / (EDGES_S[k + 1] - EDGES_S[k]), 1.0)
    return table.alive[row, k] + np.log1p(-table.ending[row, k] * part)


@without_refcount
def survival(table: LifetimeTable, row: int, age_s: float, after_s: float, limit_s: float) -> float:
    """Return the probability that a pod of a class still runs after so many seconds."""
    if age_s + after_s >= limit_s:
        return 0.0
    return np.exp(_alive(table, row, age_s + after_s) - _alive(table, row, age_s))


@without_refcount
def _unlimited_remaining(table: LifetimeTable, row: int, age_s: float) -> float:
    k = _band(age_s)
    width, ending = EDGES_S[k + 1] - EDGES_S[k], table.ending[row, k]
    part = min((age_s - EDGES_S[k]) / width, 1.0)
    here, there = 1.0 - ending * part, 1.0 - ending
    return (0.5 * width * (1.0 - part) * (here + there) + there * table.remaining_s[row, k + 1]) / here


@without_refcount
def mean_remaining(table: LifetimeTable, row: int, age_s: float, limit_s: float) -> float:
    """Return the expected rest of a pod of a class and an age, which does not run beyond `limit_s`."""
    if age_s >= limit_s:
        return 0.0
    remaining_s = _unlimited_remaining(table, row, age_s)
    if limit_s < LONGEST_S:
        remaining_s -= survival(table, row, age_s, limit_s - age_s, np.inf) * _unlimited_remaining(table, row, limit_s)
    return min(max(remaining_s, 0.0), LONGEST_S)


@with_refcount
def log_seconds(seconds: Any) -> Any:
    """Return log(1 + seconds) / 10, as a pod's lifetime is shown."""
    return np.log1p(seconds) / 10.0


@without_refcount
def expected_remaining(
    table: LifetimeTable, kinds: IntArray, limits_s: FloatArray, remaining_s: FloatArray, sure: FloatArray,
) -> None:  # fmt: skip
    """Write the expected rest of pods that begin to run, and how sure it is, float64 [T]."""
    for i in range(len(kinds)):
        remaining_s[i] = mean_remaining(table, kinds[i], 0.0, limits_s[i])
        sure[i] = certainty(table, kinds[i], 0.0, limits_s[i])


@without_refcount
def remaining_at(table: LifetimeTable, row: int, age_s: float, share: float) -> float:
    """Return after how long only this share of the runs of an age still goes on."""
    goal = _alive(table, row, age_s) + np.log(share)
    k = _band(age_s)
    while k < _BANDS and table.alive[row, k + 1] > goal:
        k += 1
    if k == _BANDS:
        return LONGEST_S
    part = (1.0 - np.exp(goal - table.alive[row, k])) / table.ending[row, k]
    return EDGES_S[k] + part * (EDGES_S[k + 1] - EDGES_S[k]) - age_s


@without_refcount
def certainty(table: LifetimeTable, row: int, age_s: float, limit_s: float) -> float:
    """Return the lower quartile of the rest over the upper one; 1 for what is over."""
    left_s = limit_s - age_s
    if left_s <= 0.0:
        return 1.0
    return min(remaining_at(table, row, age_s, 0.75), left_s) / min(remaining_at(table, row, age_s, 0.25), left_s)
