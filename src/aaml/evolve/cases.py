"""What a search judges formulas by: episodes of tasks, or runs of the GPU-sharing benchmark."""

from aaml.evolve.judge import Judge, Races, training_seed
from aaml.evolve.settings import EvolveConfig
from aaml.evolve.traces import TraceJudge
from aaml.sim.openb import TRAINING_TRACES
from aaml.training.validation import VALIDATION_SEEDS
from aaml.workload.traces import PUBLISHED_TRACES, trace_names

_TRACE_TRAINING, _TRACE_VALIDATION = 200_000, 900_000  # seeds, far above those that results are reported on


def training(config: EvolveConfig) -> Races:
    """Return the cases that a search sees."""
    if config.is_openb:
        return TraceJudge(config.traces or TRAINING_TRACES, _TRACE_TRAINING + 1000 * config.seed, config.episodes)
    return Judge(config, training_seed(config), config.episodes)


def validation(config: EvolveConfig) -> Races:
    """Return the cases that judge what a search has found; of the benchmark all published traces at hand."""
    if config.is_openb:
        there = [name for name in PUBLISHED_TRACES if name in trace_names()]
        return TraceJudge(there, _TRACE_VALIDATION, config.validation_episodes)
    return Judge(config, VALIDATION_SEEDS, config.validation_episodes)
