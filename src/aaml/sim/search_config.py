"""How far a search looks ahead."""

from dataclasses import dataclass

from aaml.settings import Count, Settings


@dataclass(frozen=True)
class SearchConfig(Settings):
    """The size of a look-ahead search: candidates x samples futures are played for each pod."""

    candidates: Count = 4
    """expert: nodes tried for each pod, the agent's best"""
    samples: Count = 8
    """expert: imagined futures that each is tried in"""
    horizon: Count = 48
    """expert: arrivals of an imagined future"""
