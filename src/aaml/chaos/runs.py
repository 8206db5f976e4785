"""Runs of faults, and a row of results for each fault, from the worst of its runs."""

import csv
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, astuple, dataclass
from pathlib import Path

from aaml.chaos.faults import FAULTS, Fault
from aaml.chaos.settings import ChaosSettings
from aaml.chaos.site import Site
from aaml.chaos.workload import check_cluster
from aaml.errors import UserError, bad_value
from aaml.evaluation.identity import inputs
from aaml.evaluation.policies import load
from aaml.files import append_row, whole_lines
from aaml.kube.provision import KwokCluster
from aaml.plugin.module import PREFIX, is_module, is_plugin, module_at
from aaml.threads import Background

_READY_S = 600.0  # the first start compiles for half a minute, on a busy machine for minutes


@dataclass(frozen=True)
class ChaosRun:
    """The result of one run. `wrong` describes what must not happen; empty where all is well."""

    fault: str
    pods: int
    lost: int
    doubled: int
    recovery_s: float
    restarts: int
    wrong: tuple[str, ...] = ()


@dataclass(frozen=True)
class FaultRow:
    """All runs of one fault; `lost`, `doubled` and `wrong_runs` are sums, seconds are of the recovery."""

    fault: str
    runs: int
    pods: int
    lost: int
    doubled: int
    wrong_runs: int
    median_s: float
    longest_s: float


HEADER = ("fault", "runs", "pods", "lost", "doubled", "wrong_runs", "recovery_median_s", "recovery_longest_s")


def chosen(settings: ChaosSettings) -> list[Fault]:
    """Return the faults; raises `UserError` for a name that is none's, or of what this scheduler does not have."""
    known = {name: fault for name, fault in FAULTS.items() if not (fault.own and is_plugin(settings.scheduler))}
    for name in settings.faults:
        if name not in known:
            raise bad_value("faults", name, f"one of {', '.join(known)}")
    return [known[name] for name in settings.faults] or list(known.values())


def run_fault(cluster: KwokCluster, fault: Fault, settings: ChaosSettings) -> ChaosRun:
    """Create pods, let the fault strike once a quarter of them is bound, wait until all are, and check the cluster.

    Raises `UserError` when the scheduler does not come up before the fault has struck.
    """
    with Site(cluster, settings.scheduler, replicas=fault.replicas) as site:
        workload = site.workload

        for number in range(fault.replicas):
            site.wait(lambda number=number: site.ready(number), "a scheduler that is ready", _READY_S)  # type: ignore[misc]
        coming = Background(lambda: workload.create(range(settings.pods - 1)), "create")
        site.wait(lambda: 4 * workload.bound() >= settings.pods - 1, "the first binds", _READY_S)
        wrong: list[str] = []
        try:
            fault.strike(site)
        except UserError as error:
            wrong.append(str(error))
        over_s = time.monotonic()
        workload.create([settings.pods - 1])  # so that there is always one to be bound after the fault
        deadline_s = over_s + settings.wait_s
        while time.monotonic() < deadline_s:
            coming.check()
            if not coming.running and all(pod["spec"].get("nodeName") for pod in workload.pods()):
                break
            time.sleep(0.2)
        site.wait(lambda: workload.first_bind_after(over_s) or time.monotonic() > deadline_s, "a bind", settings.wait_s)
        first_s = workload.first_bind_after(over_s)
        verdict = check_cluster(cluster.api(), workload)
        wrong += _wrong_with(site)
        if verdict.overfull:
            wrong.append(f"{', '.join(verdict.overfull)}: pods request more than is allocatable")
        return ChaosRun(
            fault.name, verdict.pods, verdict.lost, verdict.doubled,
            settings.wait_s if first_s is None else first_s - over_s,
            sum(scheduler.restarts for scheduler in site.schedulers), tuple(wrong),
        )  # fmt: skip


def _wrong_with(site: Site) -> Iterator[str]:
    """Return what is wrong with the schedulers: one that has ended, fails, or leaves a model that cannot be read."""
    for number, scheduler in enumerate(site.schedulers):
        if scheduler.status is None:
            try:
                site.wait(lambda number=number: site.ready(number), f"scheduler {number} ready", _READY_S)  # type: ignore[misc]
            except UserError as error:
                yield str(error)
        if scheduler.stop() not in site.ends_with:
            yield f"scheduler {number} ended with {scheduler.status}: {scheduler.output().strip().splitlines()[-1:]}"
    yield from site.wrong_states()
    for path in site.models():
        try:
            load(path)
        except UserError as error:
            yield str(error)


def summary(runs: Iterable[ChaosRun]) -> list[FaultRow]:
    """Sum up the runs of each fault, in their order."""
    by_fault: dict[str, list[ChaosRun]] = {}
    for run in runs:
        by_fault.setdefault(run.fault, []).append(run)
    return [
        FaultRow(
            name, len(found), max(run.pods for run in found), sum(run.lost for run in found),
            sum(run.doubled for run in found), sum(bool(run.wrong) for run in found),
            statistics.median(run.recovery_s for run in found), max(run.recovery_s for run in found),
        )
        for name, found in by_fault.items()
    ]  # fmt: skip


def cells(row: FaultRow) -> tuple[str, ...]:
    """Return a row of the table as text, below `HEADER`."""
    return tuple(f"{each:.1f}" if isinstance(each, float) else str(each) for each in astuple(row))


def append(path: Path, run: ChaosRun, settings: ChaosSettings) -> None:
    """Add a run to a CSV file. Raises `UserError` when the file holds something else."""
    recovery_s, wrong = round(run.recovery_s, 2), "; ".join(" ".join(each.split()) for each in run.wrong)
    append_row(path, _of(settings) | asdict(run) | {"recovery_s": recovery_s, "wrong": wrong})


def read(path: Path, settings: ChaosSettings | None = None) -> list[ChaosRun]:
    """Return the runs of a CSV file, all of them or those with some settings; none where there is no file.

    Raises `UserError` when it cannot be read, or holds something else.
    """
    if not path.exists():
        return []
    own = {} if settings is None else {name: str(value) for name, value in _of(settings).items()}
    try:
        table = csv.DictReader(whole_lines(path).splitlines())
        rows = [row for row in table if all(row[name] == value for name, value in own.items())]
        return [
            ChaosRun(
                row["fault"], int(row["pods"]), int(row["lost"]), int(row["doubled"]), float(row["recovery_s"]),
                int(row["restarts"]), tuple(filter(None, [row["wrong"]])),
            )
            for row in rows
        ]  # fmt: skip
    except (OSError, KeyError, TypeError, ValueError, csv.Error) as error:
        raise UserError(f"{path}: holds no runs of `aaml bench chaos` ({error}); choose another --out") from error


def _of(settings: ChaosSettings) -> dict[str, object]:
    return {"scheduler": _by_contents(settings.scheduler), "nodes": settings.nodes, "asked": settings.pods}


def _by_contents(scheduler: str) -> str:
    """Return a scheduler's name, with a hash where it stands for a file or folder: a changed one is another."""
    spec = scheduler.removeprefix(PREFIX)
    played = module_at(Path(spec)).digest()[:12] if is_module(Path(spec)) else inputs(specs={"": spec})[""]
    return scheduler if played == spec else f"{scheduler} {played}"


def missing(settings: ChaosSettings, known: Iterable[ChaosRun]) -> list[Fault]:
    """Return the faults that are to be run, in rounds, without those that are known already."""
    counts = Counter(run.fault for run in known)
    return [fault for number in range(settings.runs) for fault in chosen(settings) if counts[fault.name] <= number]


def run_all(
    cluster: KwokCluster, faults: Iterable[Fault], settings: ChaosSettings, tell: Callable[[ChaosRun], None]
) -> None:
    """Run one fault after the other; `tell` is called with each run as it ends."""
    for fault in faults:
        if not cluster.running():
            cluster.start_stopped(wait_s=_READY_S)
        tell(run_fault(cluster, fault, settings))
