"""Synthetic workloads: rates, loads and lifetimes as asked for; bad specifications are named."""

from collections import Counter

import numpy as np
import pytest

from aaml.cluster.objects import CONTROL_PLANE_LABEL, Node, Pod
from aaml.errors import UserError
from aaml.workload.model import Workload
from aaml.workload.synthetic import DeploymentSpec, PodShape, WorkloadSpec

SHAPES = (PodShape("a", {"cpu": 100, "memory": 100}, weight=3.0), PodShape("b", {"cpu": 500, "memory": 100}))


def test_same_seed_same_workload():
    spec = WorkloadSpec(SHAPES)
    draws = [spec.generate(50, np.random.default_rng(seed)) for seed in (1, 1, 2)]
    assert draws[0] == draws[1]
    assert draws[0] != draws[2]


def test_rates_weights_and_lifetimes_are_as_asked_for():
    pods = WorkloadSpec(SHAPES, rate_per_s=4.0, lifetime_s=50.0).generate(20_000, np.random.default_rng(3)).pods
    assert len(pods) / pods[-1].created_s == pytest.approx(4.0, rel=0.03)
    assert Counter(pod.owner for pod in pods)["ReplicaSet/a"] / 20_000 == pytest.approx(0.75, abs=0.015)
    assert np.mean([pod.lifetime_s for pod in pods]) == pytest.approx(50.0, rel=0.03)


@pytest.mark.parametrize(("lifetime", "tolerance"), [("lognormal", 0.06), ("fixed", 1e-9)])
def test_other_lifetimes_have_the_same_mean(lifetime, tolerance):
    pods = WorkloadSpec(SHAPES, lifetime=lifetime, lifetime_s=50.0).generate(20_000, np.random.default_rng(3)).pods
    assert np.mean([pod.lifetime_s for pod in pods]) == pytest.approx(50.0, rel=tolerance)


def test_how_far_lognormal_lifetimes_lie_apart_is_said():
    spec = WorkloadSpec(SHAPES, lifetime="lognormal", lifetime_s=50.0, lifetime_sigma=0.3)
    logs = np.log([pod.lifetime_s for pod in spec.generate(20_000, np.random.default_rng(3)).pods])
    assert logs.std() == pytest.approx(0.3, rel=0.02)
    assert np.exp(logs).mean() == pytest.approx(50.0, rel=0.02)


def test_bursts_keep_the_rate_and_come_together():
    spec = WorkloadSpec(SHAPES, rate_per_s=4.0, burst=8.0, uniform_bursts=True)
    pods = spec.generate(20_000, np.random.default_rng(3)).pods
    assert len(pods) / pods[-1].created_s == pytest.approx(4.0, rel=0.08)
    sizes = Counter(pod.created_s for pod in pods)
    assert np.mean(list(sizes.values())) == pytest.approx(8.0, rel=0.06)
    kinds = {}
    for pod in pods:
        kinds.setdefault(pod.created_s, set()).add(pod.owner)
    assert all(len(kind) == 1 for kind in kinds.values())


def test_load_fits_the_scarcest_resource():
    # Mean held per pod: cpu (3*100 + 500)/4 = 200 for 600 s. 10,000 milli-cores at half load: 25 pods at a time.
    spec = WorkloadSpec(SHAPES, lifetime_s=600.0).at_load(0.5, [Node("n", {"cpu": 10_000, "memory": 10**9})])
    assert spec.rate_per_s == pytest.approx(25 / 600)


def test_endless_pods_stay():
    assert WorkloadSpec(SHAPES, lifetime="endless").generate(1, np.random.default_rng(0))[0].lifetime_s is None


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: WorkloadSpec(()), "shapes: .* at least one shape"),
        (lambda: WorkloadSpec(SHAPES, rate_per_s=0), "rate_per_s: 0"),
        (lambda: WorkloadSpec(SHAPES, lifetime="short"), "lifetime: 'short' .* one of endless, exponential, fixed"),
        (lambda: PodShape("x", weight=-1), "shape x: weight: -1"),
    ],
)
def test_bad_specifications_are_named(make, message):
    with pytest.raises(UserError, match=message):
        make()


def test_deployments_stop_at_the_load_they_reach_first():
    nodes = [Node(f"n{i}", {"cpu": 64_000, "memory": 256 << 30, "pods": 110}) for i in range(10)]
    control = Node("c", {"cpu": 10**9, "memory": 1 << 50, "pods": 10**6}, labels={CONTROL_PLANE_LABEL: ""})
    workload = DeploymentSpec(cpu_load=0.9, memory_load=0.9).generate([control, *nodes], np.random.default_rng(1))
    # 0.2 of 1,100 pods is reached first; the last deployment has at most 15 replicas.
    assert 220 <= len(workload) < 235
    sizes = Counter(pod.owner for pod in workload).values()
    assert 5 <= min(sizes) <= max(sizes) <= 15
    assert all(0 < pod.request("cpu") <= 1000 and 0 < pod.request("memory") <= 2 << 30 for pod in workload)
    with pytest.raises(UserError, match="cpu_load: 2"):
        DeploymentSpec(cpu_load=2)


def test_workload_keeps_its_order():
    late, early = Pod("late", created_s=2.0), Pod("early", created_s=1.0)
    assert [pod.name for pod in Workload.of([late, early])] == ["early", "late"]
    with pytest.raises(ValueError, match="before its predecessor"):
        Workload((late, early))
    with pytest.raises(ValueError, match="comes twice"):
        Workload((late, late))
