"""Whole episodes under a formula in compiled code, against the simulator."""

import pytest

from aaml.episodes.formulas import FormulaEpisodes
from aaml.policies.formulas.policy import Formula, FormulaPolicy
from aaml.policies.formulas.program import assemble
from aaml.policies.formulas.text import parse
from aaml.policies.fragment_meter import FragmentMeter
from aaml.scheduling.lifetimes import expected_lifetimes
from aaml.scheduling.observation import ObservationSpec
from aaml.scheduling.play import play
from aaml.sim.task_episodes import TaskEpisodes
from aaml.sim.tasks import find_task

BALANCE = (
    "-(pair.cpu_gap_scaled * pod.cpu + pair.memory_gap_scaled * pod.memory) - 0.1 * square(pair.imbalance_after) "
    "+ min(pod.queue, pair.variance_rank) if pair.cpu_after < 0.9 else -exp(pair.cpu_after) / log(pair.pods)"
)


@pytest.mark.parametrize(
    ("task", "text"),
    [
        ("balance", BALANCE),
        ("varied", BALANCE),
        ("compress", "pair.cpu_after_rank * (pod.cpu - 0.1) + pair.siblings - node.empty"),
        ("services-and-jobs", "node.empty_in - pair.extends * 2 + abs(pod.lifetime - pair.outlived)"),
        ("fragmentation", "-pair.fragmentation_growth - 0.1 * pair.device_left + node.gpu_free"),
    ],
)
def test_every_metric_is_that_of_the_simulator_to_the_bit(task, text):
    found, expression = find_task(task), parse(text)
    expected = found.expected()
    lifetime_model = expected_lifetimes("learned", expected) if task == "services-and-jobs" else None
    spec = ObservationSpec(fragmentation=FragmentMeter.of(expected), lifetime_model=lifetime_model)
    episodes = TaskEpisodes(found, 150, lifetime_model=lifetime_model)
    sizes = [(11, 5), (12, 8)]
    played = FormulaEpisodes([episodes.plan(seed, nodes) for seed, nodes in sizes], spec)
    for _ in range(2):  # an episode begins anew each time
        ended = played.play(assemble(expression), [1, 0])
    for (seed, nodes), end in zip(sizes, reversed(ended), strict=True):
        cluster = found.build(seed, nodes, pods=150)
        play(cluster, FormulaPolicy(Formula(expression, spec)))
        assert dict(end.metrics) == dict(cluster.metrics())
        assert end.steps > 20
