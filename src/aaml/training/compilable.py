"""Whether compiled episodes can play what a training is told, and if not, why."""

from functools import lru_cache

from aaml.episodes.own_rewards import compiled_reward
from aaml.episodes.plan import Plan
from aaml.errors import UserError
from aaml.sim.bill import BillTask
from aaml.sim.recorded_bill import RecordedBillTask
from aaml.sim.tasks import TASKS, find_task
from aaml.training.rollouts import TRAINING_SEEDS
from aaml.training.validation import VALIDATION_SEEDS

_TRIED = 40  # episodes of training and of validation: of a trace of the usual length, every window


@lru_cache(maxsize=8)
def why_no_reward(reward: str) -> str:
    """Return why a reward is not compiled, "" where it is."""
    try:
        compiled_reward(reward)
    except UserError as error:
        return f"the reward {reward} is not compiled ({error})"
    return ""


def provisions_nodes(task: str) -> bool:
    """Whether nodes are provisioned and terminated in a task's episodes."""
    return isinstance(find_task(task), (BillTask, RecordedBillTask))


@lru_cache(maxsize=8)
def why_no_task(task: str) -> str:
    """Return why compiled episodes refuse a trace's task or a person's own, "" where they do not."""
    if task in TASKS:
        return ""
    found = find_task(task)
    seeds = [*range(VALIDATION_SEEDS, VALIDATION_SEEDS + _TRIED), *range(TRAINING_SEEDS, TRAINING_SEEDS + _TRIED)]
    try:
        for seed in seeds if found.episodes else seeds[:1]:
            Plan.of_cluster(found.build(seed))
    except UserError as error:
        return str(error)
    return ""
