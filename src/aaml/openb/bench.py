"""`aaml bench openb`: which runs are asked for, running them, and keeping what has finished."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from aaml.errors import UserError, bad_value
from aaml.evaluation.held_out import check_held_out
from aaml.evaluation.policies import is_model, load, load_policy
from aaml.evaluation.zoo import model_file
from aaml.openb.tables import PUBLISHED_POLICIES
from aaml.parallel.pool import open_pool
from aaml.policies.gpu.policies import COMPILED
from aaml.policies.gpu.scorer_file import ScorerModel
from aaml.policies.heuristics import PolicyOptions
from aaml.policies.heuristics.policies import GpuPolicy
from aaml.policies.registry import make_policy
from aaml.policies.ties import TieBreak
from aaml.sim.openb import SEARCH_SEEDS, OpenbResult, prepare, run_openb, run_openb_policy
from aaml.workload.traces import PUBLISHED_TRACES, load_pods, trace_names


@dataclass(frozen=True, slots=True)
class BenchSettings:
    """How scores become choices; the defaults are the published setting."""

    tune: float
    tie_break: TieBreak
    raw_scores: bool


@dataclass(frozen=True, slots=True)
class BenchRun:
    """One run that is asked for; `policy` is a name or a model file, `scorer` what the file of a compiled one holds."""

    trace: str
    seed: int
    policy: str
    scorer: ScorerModel | None = None

    def __call__(self, settings: BenchSettings) -> OpenbResult:
        """Run the policy over the trace and return its curves."""
        truncate = False if settings.raw_scores else None
        if self.scorer is not None:
            prepared = prepare(self.trace, self.seed, settings.tune)
            scorer = self.scorer.scorer(prepared.tables, prepared.devices)
            return run_openb(
                self.trace, self.seed, self.scorer.policy, scorer, tune=settings.tune, tie_break=settings.tie_break,
                truncate=truncate, name=Path(self.policy).stem,
            )  # fmt: skip
        if self.policy in COMPILED:
            return run_openb(
                self.trace, self.seed, self.policy, tune=settings.tune, tie_break=settings.tie_break, truncate=truncate
            )
        expected = load_pods(self.trace)
        if is_model(self.policy):
            policy, name = load(Path(self.policy), seed=self.seed, expected=expected), Path(self.policy).stem
        else:
            options = PolicyOptions(settings.tie_break, not settings.raw_scores, self.seed, expected)
            policy, name = make_policy(self.policy, options), ""
        return run_openb_policy(self.trace, self.seed, policy, tune=settings.tune, name=name)


def parse_traces(text: str) -> list[str]:
    """Read trace names; "published" is the 17 of the published tables, "all" what is in the folder."""
    there = trace_names()
    wanted = {"all": there, "published": list(PUBLISHED_TRACES)}.get(text) or [each.strip() for each in text.split(",")]
    for name in wanted:
        if name not in there:
            raise bad_value("--traces", name, f"all, published, or of {', '.join(there)}")
    return list(dict.fromkeys(wanted))


def parse_policies(text: str) -> list[str]:
    """Read names and model files; "published" is the six of the paper. They are tried at once: mistakes show first."""
    if text == "published":
        return list(PUBLISHED_POLICIES.values())
    names = [each.strip() for each in text.split(",") if each.strip()]
    for name in names:
        if name not in COMPILED:
            load_policy(name)
    return names


def plan(traces: Sequence[str], seeds: Sequence[int], policies: Sequence[str], model: Path | None) -> list[BenchRun]:
    """List the runs, those of one trace and seed together because they share their preparation."""
    if model is not None or any(is_model(name) for name in policies):
        check_held_out(seeds, {"training": SEARCH_SEEDS}, field="--seeds")
    asked = [*policies, *parse_policies("" if model is None else str(model))]
    if not asked:
        raise UserError("--policy or --model: at least one of them is needed")
    names = [_name_of(spec) for spec in asked]
    for name in names:
        if names.count(name) > 1:
            raise bad_value("--policy", name, "each name once, for tables tell policies and model files apart by it")
    files = {spec: model_file(Path(spec)) for spec in asked if is_model(spec)}
    loaded = {spec: load(path) for spec, path in files.items()}
    scorers = {spec: policy.model for spec, policy in loaded.items() if isinstance(policy, GpuPolicy)}
    return [BenchRun(trace, seed, spec, scorers.get(spec)) for trace in traces for seed in seeds for spec in asked]


def _name_of(spec: str) -> str:
    """Return what tables call a policy."""
    if is_model(spec):
        return Path(spec).stem
    return spec if spec in COMPILED else load_policy(spec).name


def carry_out(runs: Sequence[BenchRun], settings: BenchSettings, jobs: int) -> Iterator[OpenbResult]:
    """Yield the results in order, `jobs` processes at a time; runs of one trace and seed share their preparation."""
    groups = [tuple(group) for _, group in groupby(runs, key=lambda run: (run.trace, run.seed))]
    done: dict[int, list[OpenbResult]] = {}
    with open_pool(jobs) as pool:
        following = 0
        for position, results in pool.run(_carry_out, [(group, settings) for group in groups]):
            done[position] = results
            while following in done:
                yield from done.pop(following)
                following += 1


def _carry_out(runs: Sequence[BenchRun], settings: BenchSettings) -> list[OpenbResult]:
    return [run(settings) for run in runs]
