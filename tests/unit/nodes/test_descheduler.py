"""The descheduler's HighNodeUtilization: which nodes it empties, in which order pods go, and which never do."""

from dataclasses import replace

import numpy as np
import pytest

import aaml
from aaml.cli import run
from aaml.cluster.quantity import CPU, MEMORY, PODS
from aaml.errors import UserError
from aaml.evaluation.entries import policy_entries
from aaml.evaluation.episode import run_episode
from aaml.nodes.budgets import PodBudget
from aaml.nodes.catalogue import Catalogue, InstanceType, Offering
from aaml.nodes.descheduler import HighNodeUtilization
from aaml.nodes.file import find_autoscaler, read_autoscaler
from aaml.nodes.node_policy import NodePolicy
from aaml.nodes.ports import Evict, Observed, OwnedNode, Provision
from aaml.nodes.settings import HighNodeUtilizationSettings, NodeTimes
from aaml.policies.registry import make_policy
from aaml.scheduling.play import play
from aaml.sim.bill import Descheduled
from aaml.sim.cluster import SimCluster
from aaml.sim.recorded_bill import under
from aaml.sim.supply import NodeSupply
from aaml.workload.model import Workload
from support.nodes_to_buy import CATALOGUE, MEDIUM, pod

EXACT = NodeTimes(registration_delay_s=20.0, initialization_s=0.0, initialization_spread_s=0.0, recreate_s=1.0)
USUAL = HighNodeUtilizationSettings()


class Nobody:
    """An autoscaler that buys what it is told at the beginning, and gives nothing back."""

    def __init__(self, *orders):
        self.left, self.next_s = list(orders), 0.0

    def act(self, seen):
        self.next_s = float("inf")
        orders, self.left = self.left, []
        return orders

    def copy(self):
        return Nobody(*self.left)


def evicted(pods, settings=USUAL, blocked=(), stopping=(), going=()):
    """Return the uids in order, of pods by the name of their node, which has 4 cores and 16 GiB."""
    nodes = {}
    for name in pods:
        nodes[name] = OwnedNode(name, MEDIUM, MEDIUM.cheapest, 0.0, 0.0, deleting=name in going)
    on = {name: {each.uid: each for each in found} for name, found in pods.items()}
    seen = Observed(10.0, nodes, on, blocked=frozenset(blocked), stopping=set(stopping))
    rule, found = HighNodeUtilization(settings, Nobody(), CATALOGUE), []
    while orders := rule.act(seen):
        (order,) = orders
        assert isinstance(order, Evict)
        found.append(order.uid)
    return found


def full(name="full"):
    return [pod(name, 3)]


def limits(**said):
    return HighNodeUtilizationSettings(thresholds=("cpu=50", "memory=50"), **said)


def test_pods_of_nodes_below_the_thresholds_go_the_least_used_node_first():
    pods = {"a": [pod("a1", 0.5), pod("a2", 0.3)], "b": [pod("b1", 0.2)], "c": full()}
    assert evicted(pods, limits()) == ["b1", "a1", "a2"]
    assert evicted(pods) == ["b1", "a1", "a2"], "0.8 of 4 cores is 20%, which is not above"
    assert evicted(pods, HighNodeUtilizationSettings(thresholds=("cpu=19",))) == ["b1"]


def test_every_resource_with_a_threshold_has_to_be_below_it():
    heavy = {"a": [pod("a1", 0.1, gib=10)], "b": full()}
    assert evicted(heavy) == []
    assert evicted(heavy, HighNodeUtilizationSettings(thresholds=("cpu=20",))) == ["a1"]


def test_it_stops_once_the_other_nodes_have_no_room_left_and_does_not_ask_whether_a_pod_fits():
    pods = {"a": [pod("a1", 0.6), pod("a2", 0.7), pod("a3", 0.1)], "b": [pod("b1", 3)]}
    assert evicted(pods, limits()) == ["a1", "a2"], "1 core is left: 0.4 after the first, less than none after both"


def test_nothing_goes_where_all_nodes_or_too_few_are_below_the_thresholds():
    assert evicted({"a": [pod("a1", 0.1)], "b": [pod("b1", 0.1)]}) == []
    pods = {"a": [pod("a1", 0.1)], "b": full()}
    assert evicted(pods, replace(limits(), number_of_nodes=1)) == []
    assert evicted(pods, going=("b",)) == [], "no pod tolerates the taint of a node that goes"


def test_the_lowest_priority_goes_first_then_the_lowest_class_of_service():
    best = replace(pod("best", 0), requests={})
    found = [pod("high", 0.1, priority=5), pod("sure", 0.1, qos="Guaranteed"), pod("usual", 0.1), best]
    assert evicted({"a": found, "b": full()}) == ["best", "usual", "sure", "high"]


@pytest.mark.parametrize(
    "never",
    [
        pod("p", 0.1, owner=""),
        pod("p", 0.1, owner="DaemonSet/agent"),
        pod("p", 0.1, owner="Node/a"),
        pod("p", 0.1, priority=2_000_000_000),
    ],
)
def test_some_pods_are_never_evicted(never):
    assert evicted({"a": [never, pod("other", 0.1)], "b": full()}) == ["other"]


def test_protected_and_stopping_pods_are_passed_over():
    pods = {"a": [pod("a1", 0.1), pod("a2", 0.1)], "b": full()}
    assert evicted(pods, blocked=["a1"]) == ["a2"]
    assert evicted(pods, stopping=["a2"]) == ["a1"]


def test_karpenters_annotation_does_not_keep_a_pod_but_its_own_does():
    pods = {"a": [pod("a1", 0.1, do_not_disrupt=True)], "b": full()}
    assert evicted(pods) == ["a1"]
    assert evicted(pods, limits(no_eviction_policy="Mandatory")) == []


def test_limits_count_for_each_node_and_for_a_round():
    pods = {"a": [pod("a1", 0.1), pod("a2", 0.1)], "b": [pod("b1", 0.2), pod("b2", 0.2)], "c": full()}
    assert evicted(pods, limits(max_no_of_pods_to_evict_per_node=1)) == ["a1", "b1"]
    assert evicted(pods, limits(max_no_of_pods_to_evict_total=3)) == ["a1", "a2", "b1"]


def test_with_the_strict_mode_only_pods_go_that_ask_for_what_has_a_threshold():
    found = [replace(pod("none", 0), requests={}), pod("some", 0.1)]
    strict = limits(eviction_modes=("OnlyThresholdingResources",))
    assert evicted({"a": found, "b": full()}, strict) == ["some"]


def of_size(name, cores, most_pods, *pods):
    """Return a node of the plugin's own tests, with 3000 bytes and so many places, and pods as (name, cores, other)."""
    kind = InstanceType(name, ((CPU, int(1000 * cores)), (MEMORY, 3000), (PODS, most_pods)), (Offering(1.0),))
    found = [replace(pod(each, 0, **other), requests={CPU: int(1000 * size)}) for each, size, other in pods]
    return kind, OwnedNode(name, kind, kind.cheapest, 0.0, 0.0), found


def some(*names, **other):
    """Return pods of 0.4 cores."""
    return [(name, 0.4, other) for name in names]


BOTH = ("cpu=30", "pods=30")
CRITICAL, DAEMON = {"priority": 2_000_000_000}, {"owner": "DaemonSet/agent"}


@pytest.mark.parametrize(
    ("thresholds", "nodes", "gone"),
    [
        (("cpu=20", "pods=20"), [(4, 10, some("p1", "p2", "p3")), (4, 10, some("p4", "p5", "p6"))], []),
        (
            ("cpu=40", "pods=40"),
            [
                (4, 9, [*some("p1", owner="Node/n0"), *some("p2", **CRITICAL)]),
                (4, 10, some("p3", "p4", **DAEMON)),
                (4, 10, some("p5", "p6", "p7", "p8")),
            ],
            [],
        ),
        (
            BOTH,
            [
                (4, 10, [*some("p1"), *some("p2", **CRITICAL)]),
                (4, 10, some("p3", "p4", "p5", "p6")),
                (4, 10, some("p7")),
            ],
            ["p7", "p1"],
        ),
        (BOTH, [(2, 10, some("p1")), (2, 10, some("p2", "p3", "p4", "p5")), (2, 10, some("p6"))], ["p1"]),
        (
            ("cpu=30",),
            [
                (4, 10, [*some("p2", priority=1000), *some("p1", priority=10)]),
                (2, 10, some("p5", "p6", "p7", "p8")),
                (2, 10, some("p9", **DAEMON)),
            ],
            ["p1"],
        ),
        (("cpu=30",), [(3, 10, [*some("p2"), ("p1", 0, {})]), (3, 5, some("p3", "p4", "p5", "p6"))], ["p1"]),
    ],
)
def test_it_evicts_what_the_plugins_own_tests_expect(thresholds, nodes, gone):
    """Numbers of nodeutilization/highnodeutilization_test.go of 0.36, without `nodeFit` and cordoned nodes."""
    made = [of_size(f"n{number}", cores, most, *pods) for number, (cores, most, pods) in enumerate(nodes)]
    on = {node.name: {each.uid: each for each in pods} for _, node, pods in made}
    seen = Observed(10.0, {node.name: node for _, node, _ in made}, on)
    catalogue = Catalogue(tuple(kind for kind, _, _ in made))
    rule = HighNodeUtilization(HighNodeUtilizationSettings(thresholds=thresholds), Nobody(), catalogue)
    found = []
    while orders := rule.act(seen):
        found += [order.uid for order in orders]
    assert found == gone


def simulated(pods, interval_s=50.0, **options):
    settings = HighNodeUtilizationSettings(descheduling_interval_s=interval_s, thresholds=("cpu=50",))
    rule = HighNodeUtilization(settings, Nobody(Provision((MEDIUM,)), Provision((MEDIUM,))), CATALOGUE, interval_s)
    supply = NodeSupply(rule, CATALOGUE, np.random.default_rng(1), times=EXACT, **options)
    cluster = SimCluster((), Workload(tuple(pods)), until_s=90.0, supply=supply, invariants=True)
    play(cluster, make_policy("most-allocated"))
    return cluster, cluster.metrics()


CROWD = [pod("a", 3), pod("d", 1, lifetime_s=10.0), pod("b", 2, lifetime_s=10.0)]
"""Two nodes' pods, on which nothing is left after 30 s but `a`."""


def test_evicted_pods_are_made_again_and_go_where_the_scheduler_puts_them():
    cluster, told = simulated([*CROWD, pod("c", 0.5)])
    assert (told["evicted"], told["pending"], told["lost"]) == (1, 0, 0)
    assert sorted(len(each) for each in cluster.state.node_pods) == [0, 2], "c has left the node that b had used"
    cluster, told = simulated([*CROWD, pod("c", 1.5)])
    assert (told["evicted"], told["pending"]) == (1, 0)
    assert sorted(len(each) for each in cluster.state.node_pods) == [1, 1], "there is no room for it but where it was"


def test_a_disruption_budget_holds_for_each_eviction_of_a_round():
    web = [pod(f"w{k}", 0.4, labels={"app": "web"}) for k in range(2)]
    assert simulated([*CROWD, *web])[1]["evicted"] == 2
    assert simulated([*CROWD, *web], budgets=[PodBudget({"app": "web"}, max_unavailable=1)])[1]["evicted"] == 1
    assert simulated([*CROWD, *web], budgets=[PodBudget({"app": "web"}, max_unavailable=0)])[1]["evicted"] == 0


def test_a_copy_does_what_the_other_would():
    rule = HighNodeUtilization(HighNodeUtilizationSettings(), Nobody(Provision((MEDIUM,))), CATALOGUE, 5.0)
    twin = rule.copy()
    assert rule.act(Observed(0.0)) == twin.act(Observed(0.0)) == [Provision((MEDIUM,))]
    assert rule.act(Observed(5.0)) == []
    assert (rule.next_s, twin.next_s) == (125.0, 5.0)


def test_a_policy_is_paired_with_it_and_the_task_keeps_its_autoscaler(tmp_path, capsys):
    paired = under(aaml.task("bill-when-empty"), find_autoscaler("high-node-utilization"))
    assert isinstance(paired.autoscaler, Descheduled)
    assert paired.autoscaler.autoscaler == aaml.task("bill-when-empty").autoscaler
    with pytest.raises(UserError, match="which has one"):
        under(paired, HighNodeUtilizationSettings())
    other = under(paired, NodePolicy()).autoscaler
    assert other == Descheduled(paired.autoscaler.descheduler, NodePolicy()), "it goes on beside another autoscaler"
    plain, with_it = policy_entries(["kube-scheduler-packing", "kube-scheduler-packing+high-node-utilization"])
    assert with_it.name == "kube-scheduler-packing+high-node-utilization"
    for task in ("bill", "bill-when-empty", "bill-cluster-autoscaler"):
        bills = [run_episode(each, aaml.task(task), 3, 6, None)["bill"] for each in (plain, with_it)]
        assert len(set(bills)) == 2, "it has evicted something"
    assert run("evaluate", f"--task bill --policies kube-scheduler+high-utilization --out {tmp_path}/no".split()) == 2
    assert "did you mean high-node-utilization?" in capsys.readouterr().err


POLICY = """apiVersion: descheduler/v1alpha2
kind: DeschedulerPolicy
maxNoOfPodsToEvictPerNode: 7
profiles:
- name: high
  pluginConfig:
  - name: DefaultEvictor
    args: {noEvictionPolicy: Mandatory, nodeFit: true}
  - name: HighNodeUtilization
    args: {thresholds: {cpu: 50, memory: 40}, numberOfNodes: 2}
  plugins: {balance: {enabled: [HighNodeUtilization]}}
"""


def test_the_file_of_a_descheduler_is_read(tmp_path, caplog):
    path = tmp_path / "descheduler.yaml"
    path.write_text(POLICY, encoding="utf-8")
    assert read_autoscaler(path) == HighNodeUtilizationSettings(
        thresholds=("cpu=50", "memory=40"), number_of_nodes=2, no_eviction_policy="Mandatory",
        max_no_of_pods_to_evict_per_node=7,
    )  # fmt: skip
    assert "DefaultEvictor.nodeFit" in caplog.text


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("cpu: 50", "cpu: 120"), "thresholds.cpu: '?120'? is not accepted; expected a percentage from 0 to 100"),
        (("cpu: 50", "cpu: '50'"), "thresholds.cpu: '50' is not accepted; expected a percentage from 0 to 100"),
        (
            ("cpu: 50", "nvidia.com/gpu: 50"),
            "thresholds: 'nvidia.com/gpu' is not accepted; expected one of cpu, memory, pods",
        ),
        (("numberOfNodes: 2", "numberOfNodes: some"), "number_of_nodes"),
        (("name: HighNodeUtilization", "name: LowNodeUtilization"), "HighNodeUtilization"),
        (("descheduler/v1alpha2", "descheduler/v1alpha1"), "v1alpha2"),
        (("profiles:", "others:"), "HighNodeUtilization"),
        (("thresholds: {cpu: 50, memory: 40}", "thresholds: {}"), "thresholds"),
        (("thresholds: {cpu: 50, memory: 40}", "thresholds: [20]"), "percentages by resource: cpu, memory, pods"),
    ],
)
def test_what_is_no_descheduler_policy_is_a_line(tmp_path, change, said):
    path = tmp_path / "descheduler.yaml"
    path.write_text(POLICY.replace(*change), encoding="utf-8")
    with pytest.raises(UserError, match=said) as error:
        read_autoscaler(path)
    assert "\n" not in str(error.value)
