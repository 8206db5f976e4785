"""The names of the curves that schedulers and trainings record, and how TensorBoard arranges them on one page."""

from collections.abc import Mapping

Layout = Mapping[str, Mapping[str, list[str] | tuple[str, str, str]]]
"""What a page shows: {category: {chart: regular expressions of the names of its curves}}; three names in a tuple are a
curve, its lower and its upper bound."""

CUMULATIVE_REWARD = "1. CSR"
VALUE_LOSS = "2. Loss/Train"
ADVANTAGE = "2. Advantage"
CLUSTER_VARIANCE = "3. Cluster Variance"
ACTIONS = "4. Actions"
ACTOR_LOSS = "5. Actor Loss"
CRITIC_LOSS = "6. Critic Loss"
EPSILON = "Epsilon"
ENTROPY = "Policy/Entropy"
APPROX_KL = "train/approx_kl"
CLIP_FRACTION = "train/clip_fraction"
EXPLAINED_VARIANCE = "train/explained_variance"
GRAD_NORM = "train/grad_norm"
ACTION_VALUE = "Q/Mean"
TABLE_STATES = "States"
SEARCH_DEVIATION = "Deviation"
AGREED_BEFORE = "Expert/Agreed before"
AGREED_AFTER = "Expert/Agreed after"
VALIDATION_SCORE = "Validation/Score"
VALIDATION_DIFFERENCE = ("Difference/mean", "Difference/low", "Difference/high")
"""Of the task's metric from the reference, paired by episode, and its 95% interval."""

OF_VALIDATION = ("Validation/", "Difference/")
"""What the names of the curves begin with that tell how good a scheduler is, not how it learns."""


def validation_metric(metric: str) -> str:
    """Return the name of the curve of a metric on the validation episodes."""
    return f"Validation/{metric}"


_LEARNING: Layout = {
    "Learning": {
        "loss or advantage": [VALUE_LOSS, ADVANTAGE],
        "actor and critic": [ACTOR_LOSS, CRITIC_LOSS],
        "exploration": [EPSILON, ENTROPY],
        "how far an update goes": [APPROX_KL, CLIP_FRACTION],
        "explained variance of the critic": [EXPLAINED_VARIANCE],
        "norm of the gradient before clipping": [GRAD_NORM],
    },
}
SCHEDULING_LAYOUT: Layout = {
    "Scheduling": {"cumulative reward": [CUMULATIVE_REWARD], "variance of CPU use": [CLUSTER_VARIANCE]},
    **_LEARNING,
}
TRAINING_LAYOUT: Layout = {
    # the score is about 1 and a metric may be thousandths: in one chart they would flatten each other
    "Judged": {
        "validation: score against the reference": [VALIDATION_SCORE],
        "validation: the task's metric": [validation_metric("[a-z].*")],
        "validation: difference from the reference, paired": VALIDATION_DIFFERENCE,
        "cumulative reward": [CUMULATIVE_REWARD],
    },
    **_LEARNING,
}
