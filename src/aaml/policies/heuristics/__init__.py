"""Heuristic policies: scores over nodes, a way to pick the best one, and the table of names."""

from aaml.policies.heuristics.policies import FirstFit, RandomPolicy, RoundRobin
from aaml.policies.heuristics.scored import PolicyOptions, Score, ScorePolicy

__all__ = ["FirstFit", "PolicyOptions", "RandomPolicy", "RoundRobin", "Score", "ScorePolicy"]
