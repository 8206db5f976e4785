"""What has a network learned? The smallest formulas that choose as it does.

Ross, Gordon and Bagnell: A Reduction of Imitation Learning and Structured Prediction to No-Regret Online Learning
(DAgger, 2011). In the first round the network decides, and states that it visits are kept with its choices. In later
rounds half of the states are those that the best formula so far visits, with what the network would choose there. After
each round formulas are bred for two things: to choose otherwise in few states, and to be short.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from aaml.errors import StoppedError
from aaml.evaluation.held_out import check_held_out
from aaml.evaluation.identity import inputs
from aaml.evaluation.page import written
from aaml.evaluation.policies import load
from aaml.evaluation.zoo import model_file
from aaml.evolve.copies import Copy, Distilled
from aaml.evolve.distil_settings import DistilConfig
from aaml.evolve.front import Evaluated
from aaml.evolve.island import Candidate, Islands, evaluate
from aaml.evolve.races import EpisodeRaces, Probes, Races, Scores, training_seed
from aaml.evolve.search import formula_of
from aaml.extras import lazily
from aaml.files import write_json
from aaml.outputs import output_folder, refuse_overwriting
from aaml.policies.formula_file import save_formula
from aaml.policies.formulas.expression import parts
from aaml.policies.formulas.policy import Formula, FormulaPolicy
from aaml.policies.formulas.program import Program, assemble
from aaml.policies.formulas.text import parse
from aaml.scheduling.cycle import spec_of
from aaml.scheduling.observation import Context, Observation, ObservationSpec
from aaml.scheduling.play import play
from aaml.scheduling.ports import Decision, Policy
from aaml.settings import plain
from aaml.sim.tasks import find_task
from aaml.study.study import Study, exists
from aaml.study.trial import Trial
from aaml.training.rollouts import EnvConfig, EnvFactory
from aaml.training.validation import VALIDATION_SEEDS

if TYPE_CHECKING:
    from aaml.evolve import page
else:  # Bokeh, which is an extra
    page = lazily("aaml.evolve.page")

_HELD_OUT = 1_000_000  # states to report agreement on come from validation seeds so far beyond those of the metric
States = list[tuple[Observation, int]]


class VisitedStates:
    """A policy that drives, while what the network would choose is written down now and then."""

    def __init__(self, driver: Policy, network: Policy, spec: ObservationSpec, every: int, into: States) -> None:
        self.name, self.observation_spec = driver.name, spec_of(network)
        self._driver, self._network, self._spec, self._every, self._into = driver, network, spec, every, into
        self._count = 0

    def act(self, context: Context) -> Decision:
        """Let the driver decide."""
        self._count += 1
        if self._count % self._every:
            return self._driver.act(context)
        decision = self._network.act(context)
        if decision.node_index is not None:
            self._into.append((context.observation_by(self._spec), decision.node_index))
        return decision if self._driver is self._network else self._driver.act(context)


class Copying(Races):
    """States with the network's choices as cases: a formula loses where it chooses otherwise."""

    def __init__(self, states: States) -> None:
        self.count = self.tuning = len(states)
        self.probes = Probes.of([observation for observation, _ in states])
        self._chosen = np.array([node_index for _, node_index in states])

    def play(self, program: Program, numbers: Sequence[int]) -> npt.NDArray[np.float64]:
        """Return 1 where the formula chooses otherwise, 0 elsewhere."""
        return np.asarray(self.probes.choices(program) != self._chosen, dtype=np.float64)[list(numbers)]

    def race(self, program: Program, against: Scores | None = None) -> Scores:
        """Return the share of states where it chooses otherwise: all are asked at once."""
        del against
        return Scores(float(self.play(program, range(self.count)).mean()), ())


def distil(
    model: Path,
    config: DistilConfig,
    out: Path,
    *,
    resume: bool = False,
    stop: Callable[[], bool] = lambda: False,
    progress: bool = True,
) -> Distilled:
    """Distil a model into formulas, and leave them with a page in a folder.

    Once `stop()` is true, the best so far are left. With `resume` a search that was cut off goes on. Raises
    `StoppedError` where there was nothing yet.
    """
    validated = range(VALIDATION_SEEDS, VALIDATION_SEEDS + config.validation_episodes)
    first, agreed = training_seed(config.search), VALIDATION_SEEDS + _HELD_OUT
    visited = {"training": range(first, first + 1000 * config.rounds)}
    check_held_out(validated, visited, find_task(config.task), field="validation seeds")
    check_held_out(
        validated, {"agreement": range(agreed, agreed + max(4, len(config.nodes)))}, field="validation seeds"
    )
    network = load(model)  # what is no model is told before there is a folder
    told = {name: value for name, value in plain(config).items() if name != "generations" or config.rounds > 1}
    played = inputs([find_task(config.task)], files={"model": [model_file(model)]})
    with output_folder(out):
        refuse_overwriting([out / "front.json"], [], going_on=exists(out))
        with Study(out, told, played, resume=resume, objectives=2, length=config.generations) as study:
            return _distil(model, network, config, out, study, stop, progress=progress)


def _distil(
    model: Path,
    network: Policy,
    config: DistilConfig,
    out: Path,
    study: Study,
    stop: Callable[[], bool],
    *,
    progress: bool,
) -> Distilled:
    spec, search = replace(spec_of(network), lookahead=0), config.search
    env_config = EnvConfig(config.task, config.nodes, config.pods, lookahead=spec_of(network).lookahead)
    factory = EnvFactory(env_config)
    states: States = []
    texts: list[str] = []
    for number in range(config.rounds):
        drivers = [network]
        if texts:
            drivers.append(FormulaPolicy(Formula(parse(texts[-1]), spec)))
        for driver in drivers:
            first = training_seed(search) + 1000 * number
            states += _visited(factory, config, driver, network, spec, first, config.states // len(drivers))
        copying, seeded = Copying(states), replace(search, seed=config.seed + number)
        islands = Islands(seeded, copying, first=number, migrants=texts)
        done = study.optimize(
            islands, partial(_evaluated, copying), config.generations, name=f"round {number + 1} of {config.rounds}",
            stopped=stop, after=partial(_least, islands), progress=progress,
        )  # fmt: skip
        if done:
            (front,) = islands.fronts
            texts = _improving(front)
        if done < config.generations:
            break
    if not texts:
        raise StoppedError
    races = EpisodeRaces(search, VALIDATION_SEEDS, config.validation_episodes)
    unseen = Copying(_visited(factory, config, network, network, spec, VALIDATION_SEEDS + _HELD_OUT, config.states))
    copies, look = [], study.look(sorted(texts))
    compared = look.comparisons(1 + len(texts))
    for text in texts:
        program = assemble(parse(text))
        losses = races.play(program, range(races.count))
        copies.append(Copy(text, 1.0 - unseen.race(program).loss, tuple(losses.tolist()), compared))
    result = Distilled(tuple(races.play_policy(network, range(races.count)).tolist()), _best_by_size(copies), look)
    _leave(model, config, races, result, spec, out)
    return result


def _evaluated(copying: Copying, asked: Sequence[Candidate], *_: object) -> list[Trial[Candidate]]:
    return [evaluate(copying, each) for each in asked]


def _least(islands: Islands, _number: int) -> str:
    return f"otherwise={min(loss for _, loss, _ in islands.fronts[0]):.3f}"


def _visited(
    factory: EnvFactory,
    config: DistilConfig,
    driver: Policy,
    network: Policy,
    spec: ObservationSpec,
    seed: int,
    count: int,
) -> States:
    """Return states that a policy visits, with the network's choices, in episodes from a seed on."""
    found: States = []
    episodes = max(4, len(config.nodes))
    for number in range(episodes):
        cluster = factory.build(seed + number, config.nodes[number % len(config.nodes)])
        every = max(1, len(cluster.workload) * episodes // max(count, 1))
        play(cluster, VisitedStates(driver, network, spec, every, found))
    return found


def _improving(front: Sequence[tuple[str, float, int]]) -> list[str]:
    """Return the texts of a front by size, the last one the best."""
    return [text for text, _, _ in sorted(front, key=lambda each: each[2])]


def _best_by_size(copies: Sequence[Copy]) -> list[Copy]:
    """Return the formulas that none of at most their size agrees better than."""
    kept: list[Copy] = []
    for each in sorted(copies, key=lambda each: (parts(parse(each.text)), -each.agreement)):
        if not kept or each.agreement > kept[-1].agreement:
            kept.append(each)
    return kept


def _leave(
    model: Path, config: DistilConfig, races: EpisodeRaces, result: Distilled, spec: ObservationSpec, out: Path
) -> None:
    facts = [{"agreement": each.agreement, "losses": each.losses, "text": each.text} for each in result.front]
    write_json(out / "front.json", {"model": str(model), "network": result.network, "front": facts}, indent=1)
    for old in (out / "front").glob("*.formula"):
        old.unlink()
    for each in result.front:
        evaluated = Evaluated(each.text, 1.0 - each.agreement, each.losses)
        formula = replace(formula_of(config.search, races, evaluated), observation_spec=spec)
        provenance = {**formula.provenance, "distilled_from": str(model), "agreement": each.agreement}
        save_formula(replace(formula, provenance=provenance), out / "front" / f"{evaluated.size:02}.formula")
    written(lambda: page.write_distilled(model, config, result, out))
