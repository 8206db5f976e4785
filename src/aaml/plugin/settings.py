"""The settings of the learner beside kube-scheduler."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from aaml.live.settings import AgentSettings, LearnerSettings, ProbeSettings, RecordSettings


@dataclass(frozen=True)
class LearnSettings(ProbeSettings, RecordSettings, AgentSettings):
    """The settings of the learner beside kube-scheduler, with those of its agent."""

    socket: Path = Path("aaml-learn.sock")
    """the plugin's argument `learnSocket`: a Unix socket, made here"""
    weights: Path = Path("weights.json")
    """the plugin's argument `weightsFile`: written here at the start and after updates"""

    def as_scheduler(self) -> LearnerSettings:
        """Return the settings of a scheduler that learns, without a fallback, which the plugin has itself."""
        own = {field.name for field in fields(self)} - {"socket", "weights"}
        same: dict[str, Any] = {name: getattr(self, name) for name in own}
        return LearnerSettings(**same, scheduler_name="default-scheduler", fallback="none", failover="never")
