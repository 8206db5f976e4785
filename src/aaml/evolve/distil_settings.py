"""What the distillation of a network is told."""

from dataclasses import dataclass

from aaml.evolve.settings import EvolveConfig
from aaml.settings import Count, Natural, Settings


@dataclass(frozen=True)
class DistilConfig(Settings):
    """How a network is distilled."""

    task: str = "balance"
    """task whose episodes the network plays"""
    nodes: tuple[Count, ...] = (10,)
    """cluster sizes of the episodes"""
    pods: Count | None = None
    """pods of an episode; the task's own number when not given"""
    states: Count = 1_000
    """states that are kept in a round"""
    rounds: Count = 3
    """rounds: in the first the network decides alone, in the others half of the states are a formula's"""
    generations: Count = 30
    """generations of formulas in a round"""
    population: Count = 100
    """formulas that are kept"""
    size: Count = 31
    """most constants, features and operators of a formula"""
    tuned: Natural = 2
    """formulas whose constants an evolution strategy tunes in a generation"""
    validation_episodes: Count = 32
    """episodes that formulas and the network are evaluated on at the end"""
    seed: Natural = 0
    """seed of the search"""

    @property
    def search(self) -> EvolveConfig:
        """The settings of the search among formulas."""
        return EvolveConfig(
            task=(self.task,), nodes=self.nodes, pods=self.pods, population=self.population, islands=1,
            size=self.size, tuned=self.tuned, validation_episodes=self.validation_episodes, seed=self.seed,
        )  # fmt: skip
