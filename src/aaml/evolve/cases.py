"""What a search evaluates formulas by: episodes of tasks, or runs of the GPU-sharing benchmark."""

from collections.abc import Mapping

from aaml.evaluation.held_out import check_held_out
from aaml.evolve.races import EpisodeRaces, Races, training_seed
from aaml.evolve.settings import EvolveConfig
from aaml.evolve.traces import TraceJudge
from aaml.sim.openb import TRAINING_TRACES
from aaml.training.validation import VALIDATION_SEEDS
from aaml.workload.traces import PUBLISHED_TRACES, trace_names

_TRACE_TRAINING, _TRACE_VALIDATION = 200_000, 900_000  # seeds, far above those that results are reported on


def check(config: EvolveConfig, others: Mapping[str, range] | None = None) -> None:
    """Raise `UserError` where validation episodes, or `others` that are to be held out, are among those in training.

    `others` may be no validation episodes either.
    """
    first = _TRACE_TRAINING + 1000 * config.seed if config.is_openb else training_seed(config)
    start = _TRACE_VALIDATION if config.is_openb else VALIDATION_SEEDS
    played = {"training": range(first, first + config.episodes)}
    validated = range(start, start + config.validation_episodes)
    for task in (None,) if config.is_openb else config.tasks:
        check_held_out(validated, played, task, field="validation seeds")
        for field, seeds in (others or {}).items():
            check_held_out(seeds, {**played, "validation": validated}, task, field=f"{field}: seeds")


def training(config: EvolveConfig) -> Races:
    """Return the cases that a search sees."""
    if config.is_openb:
        return TraceJudge(config.traces or TRAINING_TRACES, _TRACE_TRAINING + 1000 * config.seed, config.episodes)
    return EpisodeRaces(config, training_seed(config), config.episodes)


def validation(config: EvolveConfig) -> Races:
    """Return the cases that evaluate what a search has found; of the benchmark all published traces at hand."""
    if config.is_openb:
        there = [name for name in PUBLISHED_TRACES if name in trace_names()]
        return TraceJudge(there, _TRACE_VALIDATION, config.validation_episodes)
    return EpisodeRaces(config, VALIDATION_SEEDS, config.validation_episodes)
