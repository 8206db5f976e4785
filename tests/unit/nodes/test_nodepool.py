"""NodePools: requirements choose types and offerings by Karpenter's rules; what is not played is refused or named."""

import textwrap

import pytest
import yaml

from aaml.cluster.objects import CAPACITY_TYPE_LABEL, TYPE_LABEL
from aaml.errors import UserError
from aaml.nodes.catalogue import Catalogue, InstanceType, Offering
from aaml.nodes.catalogue_file import shipped_catalogue
from aaml.nodes.file import read_autoscaler
from aaml.nodes.nodepool import read_nodepool
from aaml.nodes.requirements import plain_labels
from aaml.nodes.settings import KarpenterSettings
from aaml.sim.bill import BILL_TASKS, BillTask
from aaml.sim.recorded_bill import under

HEAD = "apiVersion: karpenter.sh/v1\nkind: NodePool\n"
GIB = 1 << 30


def sold(name, cores, *offerings, arch="amd64", os="linux"):
    """A type as the file of the KWOK provider has it: 100m and 10Mi are kept from pods."""
    allocatable = ("cpu", 1000 * cores - 100), ("memory", 2 * cores * GIB - (10 << 20)), ("pods", 110)
    return InstanceType(name, allocatable, offerings, arch, os)


A, B, SPOT = Offering(1.0, "on-demand", "a"), Offering(1.5, "on-demand", "b"), Offering(0.3, "spot", "b")
TYPES = Catalogue((
    sold("m5.large", 2, A, B, SPOT), sold("c-8", 8, A, SPOT), sold("arm-4", 4, A, B, arch="arm64"),
    sold("win-4", 4, A, os="windows"),
))  # fmt: skip
KWOK = "karpenter.kwok.sh/instance-"


@pytest.fixture
def read(tmp_path):
    def read(spec, metadata=""):
        path = tmp_path / "nodepool.yaml"
        path.write_text(f"{HEAD}{metadata}spec:\n{textwrap.indent(textwrap.dedent(spec), '  ')}\n", encoding="utf-8")
        return read_nodepool(path)

    return read


@pytest.fixture
def bought(read):
    """Return what may be bought under requirements: names with prices."""

    def bought(*requirements):
        settings = read(f"template: {{spec: {{requirements: [{', '.join(requirements)}]}}}}")
        return {
            each.name: [offering.price for offering in each.offerings] for each in TYPES.meeting(settings.labels).types
        }

    return bought


def asked(key, operator, *values):
    return f"{{key: {key}, operator: {operator}, values: [{', '.join(repr(value) for value in values)}]}}"


ZONE, TYPE = "topology.kubernetes.io/zone", "node.kubernetes.io/instance-type"
CAPACITY, ARCH, OS = "karpenter.sh/capacity-type", "kubernetes.io/arch", "kubernetes.io/os"
EVERYTHING = {"m5.large": [1.0, 1.5, 0.3], "c-8": [1.0, 0.3], "arm-4": [1.0, 1.5], "win-4": [1.0]}


@pytest.mark.parametrize(
    ("requirements", "left"),
    [
        ((), EVERYTHING),
        ((asked(CAPACITY, "In", "spot"),), {"m5.large": [0.3], "c-8": [0.3]}),
        ((asked(CAPACITY, "NotIn", "spot", "reserved"),),
         {"m5.large": [1.0, 1.5], "c-8": [1.0], "arm-4": [1.0, 1.5], "win-4": [1.0]}),
        ((asked(ZONE, "In", "b", "c"),), {"m5.large": [1.5, 0.3], "c-8": [0.3], "arm-4": [1.5]}),
        ((asked(ZONE, "NotIn", "b"),), {"m5.large": [1.0], "c-8": [1.0], "arm-4": [1.0], "win-4": [1.0]}),
        ((asked(ZONE, "Exists"),), EVERYTHING),
        ((asked(ZONE, "In", "b"), asked(CAPACITY, "In", "on-demand")), {"m5.large": [1.5], "arm-4": [1.5]}),
        ((asked("failure-domain.beta.kubernetes.io/zone", "In", "b"), asked(CAPACITY, "In", "spot")),
         {"m5.large": [0.3], "c-8": [0.3]}),
        ((asked(ARCH, "In", "arm64", "s390x"),), {"arm-4": [1.0, 1.5]}),
        ((asked(OS, "NotIn", "linux"),), {"win-4": [1.0]}),
        ((asked(TYPE, "In", "c-8", "arm-4"), asked(TYPE, "NotIn", "arm-4")), {"c-8": [1.0, 0.3]}),
        ((asked(f"{KWOK}cpu", "Gt", "2"), asked(f"{KWOK}cpu", "Lt", "8")), {"arm-4": [1.0, 1.5], "win-4": [1.0]}),
        ((asked(f"{KWOK}cpu", "Gte", "8"),), {"c-8": [1.0, 0.3]}),
        ((asked(f"{KWOK}cpu", "Lte", "2"),), {"m5.large": [1.0, 1.5, 0.3]}),
        ((asked(f"{KWOK}family", "In", "m5", "win"), asked(f"{KWOK}size", "In", "large")),
         {"m5.large": [1.0, 1.5, 0.3]}),
        ((asked(f"{KWOK}memory", "In", "16Gi"),), {"c-8": [1.0, 0.3]}),
    ],
)  # fmt: skip
def test_requirements_choose_types_and_offerings(requirements, left, bought):
    """By hand from Karpenter 1.15: scheduling/requirement.go, and `filterInstanceTypesByRequirements`."""
    assert bought(*requirements) == left


def test_a_requirement_that_leaves_nothing_is_named_with_what_there_is(bought):
    with pytest.raises(UserError, match=r"requirement on topology.kubernetes.io/zone: 'c' is not accepted; .* a, b$"):
        bought(asked(ZONE, "In", "c"))
    with pytest.raises(UserError, match=r"requirement on karpenter.sh/capacity-type: 'spot' .* some of on-demand$"):
        bought(asked(ARCH, "In", "arm64"), asked(CAPACITY, "In", "spot"))


NOT_PLAYED = {
    "limits: {cpu: 100}": "limits",
    "weight: 10": "weight",
    "replicas: 0": "replicas",
    "template: {metadata: {labels: {team: a}}}": "labels of nodes",
    "template: {spec: {taints: [{key: a, effect: NoSchedule}]}}": "taints",
    "template: {spec: {startupTaints: [{key: a, effect: NoSchedule}]}}": "startupTaints",
    "template: {spec: {expireAfter: 720h}}": "expireAfter 720h",
    "template: {spec: {terminationGracePeriod: 30s}}": "terminationGracePeriod",
    "template: {spec: {requirements: [{key: team, operator: Exists}]}}": "the requirement Exists on team",
    "template: {spec: {requirements: [{key: kubernetes.io/os, operator: In, values: [a], minValues: 1}]}}": "minValues",
    "disruption: {budgets: [{nodes: '0', schedule: '@daily', duration: 8h}]}": "budgets with a schedule or reasons",
    "disruption: {budgets: [{nodes: '0', reasons: [Empty]}]}": "budgets with a schedule or reasons",
}


@pytest.mark.parametrize("spec", NOT_PLAYED)
def test_what_a_nodepool_says_and_is_not_played_is_named(spec, read, caplog):
    read(spec)
    named = caplog.messages[0].partition("not modelled here: ")[2].split(", ")
    assert NOT_PLAYED[spec] in named
    assert set(named) <= {NOT_PLAYED[spec], "interruptions of spot nodes"}


REFUSED = {
    "limts: {cpu: 1}": "spec: unknown field `limts`; did you mean limits\\? Expected one of template, ",
    "disruption: {consolidateAfter: 15}": "spec.disruption.consolidateAfter: 15 is not accepted",
    "disruption: {consolidateAfter: 500ms}": "spec.disruption.consolidateAfter: '500ms' is not accepted",
    "disruption: {consolidateAfter: 1.5m}": "spec.disruption.consolidateAfter: '1.5m' is not accepted",
    "template: {spec: {expireAfter: 30d}}": "spec.template.spec.expireAfter: ",
    "template: {spec: {terminationGracePeriod: Never}}": "spec.template.spec.terminationGracePeriod: ",
    "disruption: {budgets: [{nodes: '1', schedule: '@daily', duration: 30s}]}": r"budgets\[0\].duration: ",
    "disruption: {budgets: [{nodes: 3}]}": r"spec.disruption.budgets\[0\].nodes: Expected `str`, got `int` \(3\)",
    "disruption: {budgets: 10%}": "spec.disruption.budgets: Expected `array",
    "template: {spec: {requirements: [{key: a, operator: IN}]}}": "value 'IN'; expected one of DoesNotExist, Exists,",
    "template: {spec: {requirements: [{key: kubernetes.io/arch, operator: In}]}}": "at least one value for In",
    "template: {spec: {requirements: [{key: a, operator: Gt, values: [b]}]}}": "one whole number from 0 for Gt",
    "template: {spec: {requirements: [{key: karpenter.sh/capacity-type, operator: In, values: [x]}]}}": "of reserved, ",
    "template: {spec: {requirements: [{key: kubernetes.io/hostname, operator: Exists}]}}": "kubernetes.io/hostname",
    "weight: 101": "weight: Expected `int` <= 100",
    "weight: 1\nweight: 2": "key 'weight' stands twice",
}


@pytest.mark.parametrize("spec", REFUSED)
def test_what_the_api_server_or_karpenter_refuses_is_one_line(spec, read):
    with pytest.raises(UserError, match=REFUSED[spec]) as error:
        read(spec)
    assert "\n" not in str(error.value)


def test_keys_without_a_value_are_as_if_they_were_not_there(read):
    """`annotations:` and `budgets:` with nothing behind them are null in YAML."""
    found = read("template:\ndisruption:\n  budgets:\n  consolidateAfter:", "metadata:\n  name: a\n  annotations:\n")
    assert found == read("disruption: {}") == KarpenterSettings(requirements=())


def test_a_bill_is_played_with_what_the_nodepool_asks_for(read):
    """Spot in zone b alone: every node of the episode is one, at its price."""
    requirements = f"[{asked(CAPACITY, 'In', 'spot')}, {asked(ZONE, 'In', 'b')}]"
    settings = read(f"template: {{spec: {{requirements: {requirements}}}}}")
    task = under(BillTask(**{**vars(BILL_TASKS["bill"]), "catalogue": TYPES, "fixed_prices": True}), settings)
    assert {
        offering for each in task.drawn_catalogue(1).types for offering in each.offerings if each.name != "arm-4"
    } >= {SPOT}
    autoscaler = task.build(1, 4, pods=10).supply.autoscaler
    assert {offering for each in autoscaler.catalogue.types for offering in each.offerings} == {SPOT}


def test_types_and_prices_of_an_episode_are_the_same_on_demand_and_on_spot():
    bill = BILL_TASKS["bill"]
    spot = under(bill, KarpenterSettings(requirements=()))
    for seed in range(5):
        both, plain = spot.drawn_catalogue(seed), bill.drawn_catalogue(seed)
        assert both.meeting(plain_labels()) == plain
        assert all(len(each.offerings) == 2 for each in both.types)


@pytest.mark.parametrize("types", ["general-8", "general-8, general-4", "memory-6"])
def test_an_episodes_catalogue_has_some_of_the_types_that_a_nodepool_names(types, read):
    """An episode has 70% of the types: those of a short list may be among the others."""
    requirement = f"[{{key: {TYPE}, operator: In, values: [{types}]}}]"
    bill = BILL_TASKS["bill"]
    narrow = under(bill, read(f"template: {{spec: {{requirements: {requirement}}}}}"))
    missed = 0
    for seed in range(20):
        sold_there = {each.name for each in narrow.build(seed, 4, pods=1).supply.autoscaler.catalogue.types}
        assert sold_there
        assert sold_there <= set(types.split(", "))
        missed += sold_there.isdisjoint(each.name for each in bill.drawn_catalogue(seed).types)
    assert missed, "without the list the types would not be there in some episodes"


def test_of_two_nodepools_in_a_file_none_is_left_out_in_silence(tmp_path):
    path, pool = tmp_path / "pools.yaml", f"{HEAD}metadata: {{name: %s}}\nspec: {{}}\n"
    policy = "apiVersion: aaml.dev/v1\nkind: NodePolicy\nspec: {}\n"
    for second, names in ((pool % "b", "'a', 'b'"), (policy, "'a', ''")):
        path.write_text(f"{pool % 'a'}---\nkind: EC2NodeClass\n---\n{second}")
        with pytest.raises(UserError, match=rf"pools.yaml: holds 2 of NodePool or .* \({names}\); expected one$"):
            read_autoscaler(path)
    path.write_text(f"{pool % 'a'}---\n{pool % 'b'}")
    with pytest.raises(UserError, match=r"pools.yaml: holds 2 of NodePool \('a', 'b'\); expected one$"):
        read_nodepool(path)


def test_a_label_of_the_template_that_every_type_has_is_a_requirement(tmp_path, caplog):
    pool = {
        "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": "p"},
        "spec": {"template": {
            "metadata": {"labels": {CAPACITY_TYPE_LABEL: "spot", TYPE_LABEL: "compute-2"}},
            "spec": {"nodeClassRef": {"group": "g", "kind": "k", "name": "own"}},
        }},
    }  # fmt: skip
    (tmp_path / "pool.yaml").write_text(yaml.safe_dump(pool))
    found = read_nodepool(tmp_path / "pool.yaml")
    sold = shipped_catalogue(found.labels)
    ways = {(kind.name, way.capacity_type) for kind in sold.types for way in kind.offerings}
    assert ways == {("compute-2", "spot")}
    assert "labels of nodes" not in caplog.text
