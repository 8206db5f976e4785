"""How far a search looks ahead."""

from dataclasses import dataclass

from aaml.settings import Count, Settings


@dataclass(frozen=True)
class SearchConfig(Settings):
    """The size of a look-ahead search: candidates x samples futures are played for each pod."""

    candidates: Count = 4
    """expert: nodes tried for each pod, the best of the agent"""
    samples: Count = 8
    """expert: imagined futures for each of these nodes"""
    horizon: Count = 48
    """expert: arriving pods in an imagined future"""
