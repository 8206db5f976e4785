"""Islands: populations of formulas that breed by themselves, and give their best away now and then; a sampler."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from aaml.evolve.cases import training
from aaml.evolve.grammar import Grammar, rounded
from aaml.evolve.races import Races, Scores
from aaml.evolve.settings import EvolveConfig
from aaml.policies.formula_file import load_formula
from aaml.policies.formulas.expression import Expression, constants, parts, shortened, simplify, with_constants
from aaml.policies.formulas.program import assemble
from aaml.policies.formulas.text import parse, to_text
from aaml.study.pareto import fronts, survivors
from aaml.study.samplers import CmaEs, FloatArray
from aaml.study.trial import Sampler, Trial

_TUNING_GENERATIONS, _TUNING_POPULATION = 4, 6
_DEVIATION = 0.3  # of a constant, relative to it
_MIGRANTS = 5
Front = list[tuple[str, float, int]]
"""(text, loss, size) of formulas."""


@dataclass(frozen=True)
class Candidate:
    """A formula that is to be played, against what a `rival` of at most its size has lost.

    `tune` seeds the tuning of its constants on some of the episodes, which comes first; none without it.
    """

    text: str
    rival: Scores | None = None
    tune: tuple[int, ...] = ()


@dataclass(frozen=True)
class Member:
    """A formula of a population."""

    expression: Expression
    signature: str
    loss: float

    @property
    def objectives(self) -> tuple[float, float]:
        """What is to be low: its loss and its size."""
        return self.loss, float(parts(self.expression))


class Island:
    """One population. Its episodes, and so its losses, are those of all islands of the search.

    Formulas that choose alike in all probe states have the same losses, for they are played once; the shortest stays,
    and in the front it loses the terms without which it chooses alike.
    """

    def __init__(self, config: EvolveConfig, number: int, cases: Races) -> None:
        self._config, self._number, self._cases = config, number, cases
        self._grammar = Grammar(cases.probes.informative(), config.size)
        self._rng = np.random.default_rng([config.seed, number])
        self._members: list[Member] = []
        self._known: dict[str, Scores] = {}
        self._alive: set[str] = set()  # formulas of which every term counts
        self._born: list[tuple[Expression, str]] = []
        self._generation = self.asked = 0

    @property
    def front(self) -> Front:
        """The formulas that no other dominates, by size."""
        return [(to_text(each.expression), each.loss, parts(each.expression)) for each in self._front()]

    @property
    def played(self) -> int:
        """How many formulas were played; `asked` is how many were looked at, known ones among them."""
        return len(self._known)

    def ask(self, migrants: Sequence[str] = ()) -> list[Candidate]:
        """Breed a generation, with formulas of other islands; return those that are to be played."""
        tuned: list[Expression] = []
        if self._members:
            born = [parse(text) for text in migrants] + self._bred()
            tuned = self._to_tune()
        else:
            start = [simplify(load_formula(path).expression) for path in self._config.start]
            born = start + [self._grammar.first(self._rng) for _ in range(2 * self._config.population)]
        self._born, new = [], dict[str, Candidate]()
        for expression in born:
            signature = self._cases.probes.signature(assemble(expression))
            self._born.append((expression, signature))
            if signature not in self._known and signature not in new:
                new[signature] = Candidate(to_text(expression), self._rival(expression))
        self._new, self._generation = list(new), self._generation + 1
        self.asked += len(born) + len(tuned)
        seeds = [(self._config.seed, self._number, self._generation, place) for place in range(len(tuned))]
        return [
            *new.values(),
            *(Candidate(to_text(each), self._rival(each), seed) for each, seed in zip(tuned, seeds, strict=True)),
        ]

    def tell(self, trials: Sequence[Trial[Candidate]]) -> None:
        """Keep the best of old and new."""
        for place, trial in enumerate(trials):
            scores = Scores(trial.values[0], tuple(trial.attrs["losses"]))
            if place < len(self._new):
                self._known[self._new[place]] = scores
                continue
            expression = parse(trial.attrs["text"])
            signature = self._cases.probes.signature(assemble(expression))
            self._known.setdefault(signature, scores)
            self._born.append((expression, signature))
        shortest = {each.signature: each for each in self._members}
        for expression, signature in self._born:
            old = shortest.get(signature)
            if old is None or parts(expression) < parts(old.expression):
                shortest[signature] = Member(expression, signature, self._known[signature].loss)
        everyone = list(shortest.values())
        kept, _, _ = survivors(np.array([each.objectives for each in everyone]), self._config.population)
        self._members = [everyone[k] for k in kept]
        shown = {each.signature: self._without_dead_terms(each) for each in self._front()}
        self._members = [shown.get(each.signature, each) for each in self._members]

    def _without_dead_terms(self, member: Member) -> Member:
        """Return a formula without terms that change no choice."""
        found: Expression | None = member.expression
        while found is not None and to_text(found) not in self._alive:
            member = replace(member, expression=found)
            alike = (
                each
                for each in shortened(member.expression)
                if self._cases.probes.signature(assemble(each)) == member.signature
            )
            if (found := next(alike, None)) is None:
                self._alive.add(to_text(member.expression))
        return member if found is None else replace(member, expression=found)

    def _rival(self, expression: Expression) -> Scores | None:
        """Return what the best member of at most that size has lost on all episodes."""
        scores = [self._known[each.signature] for each in self._members if parts(each.expression) <= parts(expression)]
        whole = [each for each in scores if len(each.losses) == self._cases.count]
        return min(whole, key=lambda each: each.loss, default=None)

    def _front(self) -> list[Member]:
        objectives = np.array([each.objectives for each in self._members])
        return sorted((self._members[k] for k in fronts(objectives)[0]), key=lambda each: parts(each.expression))

    def _bred(self) -> list[Expression]:
        def parent() -> Expression:  # members are in the order of rank and crowding
            return self._members[int(self._rng.integers(len(self._members), size=2).min())].expression

        return [self._grammar.child(parent(), parent(), self._rng) for _ in range(self._config.population)]

    def _to_tune(self) -> list[Expression]:
        """Return formulas of the front whose constants are to be tuned."""
        able = [each.expression for each in self._front() if constants(each.expression)]
        return [able[k] for k in self._rng.permutation(len(able))[: self._config.tuned]]


class Islands(Sampler[Candidate]):
    """All populations of a search, as one sampler of formulas.

    Now and then each gets the best of the one before it. `migrants` come to all of them after the first generation.
    """

    def __init__(self, config: EvolveConfig, cases: Races, *, first: int = 0, migrants: Sequence[str] = ()) -> None:
        self.islands = [Island(config, first + number, cases) for number in range(config.islands)]
        self._config, self._migrants, self._generation = config, list(migrants), 0

    @property
    def fronts(self) -> list[Front]:
        """The front of each island."""
        return [each.front for each in self.islands]

    def ask(self) -> list[Candidate]:
        """Return the formulas of all islands that are to be played."""
        asked = [each.ask(come) for each, come in zip(self.islands, self._migrating(), strict=True)]
        self._counts = [len(each) for each in asked]
        return [candidate for each in asked for candidate in each]

    def tell(self, trials: Sequence[Trial[Candidate]]) -> None:
        """Let each island keep its best."""
        begin = 0
        for island, count in zip(self.islands, self._counts, strict=True):
            island.tell(trials[begin : begin + count])
            begin += count
        self._generation += 1

    def plain(self, params: Candidate) -> dict[str, Any]:
        """Return a formula, and how its constants are tuned."""
        return {"formula": params.text, "tune": list(params.tune)}

    def _migrating(self) -> list[list[str]]:
        """Return the formulas that come to each island."""
        if self._generation == 1 and self._migrants:
            return [self._migrants] * len(self.islands)
        if not self._generation or self._generation % self._config.migrate_every or len(self.islands) == 1:
            return [[] for _ in self.islands]
        best = [[text for text, _, _ in sorted(each, key=lambda one: one[1])[:_MIGRANTS]] for each in self.fronts]
        return [best[number - 1] for number in range(len(best))]


def evaluate(cases: Races, candidate: Candidate) -> Trial[Candidate]:
    """Tune a formula's constants where that is asked for, and race it against its rival; values are loss and size."""
    expression = parse(candidate.text)
    if candidate.tune:
        expression = _with_better_constants(cases, expression, np.random.default_rng(candidate.tune))
    scores = cases.race(assemble(expression), candidate.rival)
    return Trial(
        candidate,
        (scores.loss, float(parts(expression))),
        pruned=0 < len(scores.losses) < cases.count,
        attrs={"text": to_text(expression), "losses": list(scores.losses)},
    )


def evaluate_in_training(config: EvolveConfig, candidates: Sequence[Candidate]) -> list[Trial[Candidate]]:
    """Evaluate formulas on the episodes that a search sees: a job of a pool."""
    return [evaluate(training_cases(config), each) for each in candidates]


@lru_cache(maxsize=1)
def training_cases(config: EvolveConfig) -> Races:
    """Return the episodes that a search sees; a process makes them once."""
    return training(config)


def _with_better_constants(cases: Races, expression: Expression, rng: np.random.Generator) -> Expression:
    """Return a formula with constants that an evolution strategy has tuned on some of the episodes."""
    episodes = np.sort(rng.choice(cases.count, min(cases.tuning, cases.count), replace=False)).tolist()
    old = np.array(constants(expression))
    scale = np.where(old == 0.0, 1.0, old)

    def changed(vector: FloatArray) -> Expression:
        return with_constants(expression, iter([rounded(float(value)) for value in old + scale * vector]))

    sampler = CmaEs(
        np.zeros(len(old)), population=_TUNING_POPULATION, deviation=_DEVIATION, seed=int(rng.integers(1 << 31))
    )
    for _ in range(_TUNING_GENERATIONS):
        asked = sampler.ask()
        losses = [float(cases.play(assemble(changed(each)), episodes).mean()) for each in asked[:-1]]
        sampler.tell([Trial(each, (loss,)) for each, loss in zip(asked, [*losses, 0.0], strict=True)])
    return simplify(changed(sampler.means[-1]))
