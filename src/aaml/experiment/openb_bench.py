"""`aaml bench openb`: which runs are asked for, running them, and keeping what has finished."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from aaml.errors import UserError, bad_value
from aaml.experiment.openb import OpenbResult, TieBreak, prepare, run_openb, run_openb_policy
from aaml.experiment.openb_models import ScorerModel, load_scorer
from aaml.experiment.openb_tables import PUBLISHED_POLICIES
from aaml.scheduling.heuristics import PolicyOptions
from aaml.scheduling.kernels.policies import POLICIES
from aaml.scheduling.registry import POLICIES as ALL_POLICIES
from aaml.scheduling.registry import make_policy
from aaml.workload.traces import load_pods, trace_names

PUBLISHED_TRACES = (
    "default", "cpu050", "cpu100", "cpu200", "cpu250", "gpushare40", "gpushare60", "gpushare80", "gpushare100",
    "gpuspec10", "gpuspec20", "gpuspec25", "gpuspec33", "multigpu20", "multigpu30", "multigpu40", "multigpu50",
)  # fmt: skip
COMPILED = tuple(name.replace("_", "-") for name in POLICIES if name not in {"linear", "network"})
_MOST_SEEDS = 10_000


@dataclass(frozen=True, slots=True)
class Settings:
    """How scores become choices; the defaults are the published setting."""

    tune: float
    tie_break: TieBreak
    raw_scores: bool


@dataclass(frozen=True, slots=True)
class Run:
    """One run that is asked for; `model` scores where there is one, else `policy`."""

    trace: str
    seed: int
    policy: str
    model: ScorerModel | None = None

    def __call__(self, settings: Settings) -> OpenbResult:
        """Do it."""
        truncate = False if settings.raw_scores else None
        if self.model is not None:
            prepared = prepare(self.trace, self.seed, settings.tune)
            scorer = self.model.scorer(prepared.tables, len(prepared.gpu_models))
            return run_openb(
                self.trace, self.seed, self.model.policy, scorer, tune=settings.tune, tie_break=settings.tie_break,
                truncate=truncate, name=self.policy,
            )  # fmt: skip
        if self.policy in COMPILED:
            return run_openb(
                self.trace, self.seed, self.policy, tune=settings.tune, tie_break=settings.tie_break, truncate=truncate
            )
        options = PolicyOptions(
            tie_break="first" if settings.tie_break == "fixed" else settings.tie_break,
            truncate=not settings.raw_scores, seed=self.seed, expected=load_pods(self.trace),
        )  # fmt: skip
        return run_openb_policy(self.trace, self.seed, make_policy(self.policy, options), tune=settings.tune)


def parse_seeds(text: str) -> list[int]:
    """Read "42..51", "42,45" or a mix of both."""
    seeds: list[int] = []
    for part in text.split(","):
        low, dots, high = part.strip().partition("..")
        try:
            first, last = int(low), int(high) if dots else int(low)
        except ValueError as error:
            raise bad_value("--seeds", text, 'whole numbers and ranges such as "42..51" or "42,45"') from error
        if not 0 <= last - first < _MOST_SEEDS:
            raise bad_value("--seeds", text, f"ranges that rise, of at most {_MOST_SEEDS} seeds")
        seeds += range(first, last + 1)
    return list(dict.fromkeys(seeds))


def parse_traces(text: str) -> list[str]:
    """Read trace names; "published" is the 17 of the published tables, "all" what is in the folder."""
    there = trace_names()
    wanted = {"all": there, "published": list(PUBLISHED_TRACES)}.get(text) or [each.strip() for each in text.split(",")]
    for name in wanted:
        if name not in there:
            raise bad_value("--traces", name, f"all, published, or of {', '.join(there)}")
    return list(dict.fromkeys(wanted))


def parse_policies(text: str) -> list[str]:
    """Read policy names; "published" is the six of the paper. Names are tried at once, so that mistakes show first."""
    if text == "published":
        return list(PUBLISHED_POLICIES.values())
    names = [each.strip() for each in text.split(",") if each.strip()]
    for name in names:
        if name not in COMPILED and ".py:" not in name and name not in ALL_POLICIES.names():
            known = sorted({*COMPILED, *ALL_POLICIES.names()})
            raise bad_value("--policy", name, f"published, FILE.py:NAME, or of {', '.join(known)}")
        if name not in COMPILED:
            make_policy(name)
    return names


def plan(traces: Sequence[str], seeds: Sequence[int], policies: Sequence[str], model: Path | None) -> list[Run]:
    """List the runs, those of one trace and seed together because they share their preparation."""
    loaded = load_scorer(model) if model else None
    if not policies and loaded is None:
        raise UserError("--policy or --model: at least one of them is needed")
    runs = []
    for trace in traces:
        for seed in seeds:
            runs += [Run(trace, seed, policy) for policy in policies]
            if loaded is not None and model is not None:
                runs.append(Run(trace, seed, model.stem, loaded))
    return runs


def carry_out(runs: Sequence[Run], settings: Settings, jobs: int) -> Iterator[OpenbResult]:
    """Yield the results in order, `jobs` at a time in threads (compiled runs do not hold the interpreter's lock)."""
    if jobs == 1:
        for run in runs:
            yield run(settings)
        return
    with ThreadPoolExecutor(jobs) as pool:
        waiting = [pool.submit(run, settings) for run in runs]
        try:
            for future in waiting:
                yield future.result()
        finally:
            for future in waiting:
                future.cancel()
