"""Heuristic policies: scores over rows, a way to pick the best row, and the table of names."""

from aaml.scheduling.heuristics.policies import FirstFit, RandomPolicy, RoundRobin
from aaml.scheduling.heuristics.scored import PolicyOptions, Score, ScorePolicy, TieBreak

__all__ = ["FirstFit", "PolicyOptions", "RandomPolicy", "RoundRobin", "Score", "ScorePolicy", "TieBreak"]
