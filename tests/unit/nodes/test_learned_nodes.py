"""The autoscaler `learned`: what it buys, what it drains, what it waits for. Counted by hand."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from aaml.cli import run
from aaml.cluster.objects import CAPACITY_TYPE_LABEL, ZONE_LABEL, GpuRequest
from aaml.errors import UserError
from aaml.nodes.catalogue import Catalogue, Offering
from aaml.nodes.catalogue_file import shipped_catalogue
from aaml.nodes.file import read_autoscaler
from aaml.nodes.learned import LearnedNodes
from aaml.nodes.node_policy import NodePolicy, write_node_policy
from aaml.nodes.ports import Delete, Provision
from aaml.policies.heuristics import PolicyOptions
from aaml.policies.kube_scores.profile import read_profile
from aaml.policies.registry import make_policy
from aaml.scheduling.play import play
from aaml.sim.cluster import SimCluster
from aaml.sim.recorded_bill import under
from aaml.sim.supply import NodeSupply
from aaml.sim.tasks import find_task
from aaml.workload.model import Workload
from support.bills import hastened
from support.nodes_to_buy import CATALOGUE, LARGE, MEDIUM, SMALL, Moment, kind, pod

# a pod that moves counts a dollar, a node's price counts for an hour; nothing is kept free
PLAIN = NodePolicy(
    idle_s=2.0, patience_s=8.0, spare_value=0.0, spare_swing=0.0, size_power=0.0, look_s=5.0, horizon_s=3600.0,
    eviction_dollars=1.0, margin=0.0, most_at_once=1.0, largest_share=1.0,
)  # fmt: skip


def learned(catalogue=CATALOGUE, first_look_s=10_000.0, **numbers):
    return LearnedNodes(replace(PLAIN, **numbers), catalogue, first_look_s)


def bought(commands):
    return [kind.name for command in commands if isinstance(command, Provision) for kind in command.types]


def test_it_buys_once_no_further_pod_has_come_for_a_while_or_one_has_waited_for_long():
    buyer, moment = learned(), Moment(100.0).waits(pod("a"))
    assert list(buyer.act(moment.at(100.0))) == []
    assert buyer.next_s == 102.0
    moment.waits(pod("b"))
    assert list(buyer.act(moment.at(101.5))) == []
    assert buyer.next_s == 103.5
    for tenth in range(1030, 1080, 15):
        assert list(buyer.act(moment.waits(pod(f"c{tenth}", 0.1, 0.1)).at(tenth / 10))) == []
    assert buyer.next_s == 108.0, "the first has waited for 8 s then"
    assert bought(buyer.act(moment.at(108.0))) == ["small", "small"], "a full one has more value for its price"
    assert list(buyer.act(moment.node("n", MEDIUM, ready=False).at(112.0))) == [], "they have room in the making"


@pytest.mark.parametrize(
    ("cores", "types"),
    [
        ([2.0], ["small"]),
        ([2.0, 2.0], ["medium"]),  # 1.9 dollars for 4 cores are fewer than twice 1.0
        ([4.0, 4.0, 2.0], ["large", "small"]),
        ([7.0], ["large"]),
        ([9.0], []),  # fits nothing
    ],
)
def test_it_buys_the_types_with_the_most_value_for_their_price(cores, types):
    moment = Moment(100.0).waits(*(pod(f"p{at}", each, 0.1) for at, each in enumerate(cores)))
    buyer = learned()
    buyer.act(moment.at(100.0))
    assert bought(buyer.act(moment.at(102.0))) == types


def test_room_that_is_left_over_counts_as_much_as_the_policy_says():
    def first(spare, **numbers):
        moment = Moment(100.0).node("n", LARGE, [pod("n1", 8.0, 0.1)]).waits(pod("a", 2.0, 0.1))
        buyer = learned(spare_value=spare, **numbers)
        buyer.act(moment.at(100.0))
        return bought(buyer.act(moment.at(102.0)))

    # a small node is full: 2 cores for 1.0 dollars. Of a large one at 3.6, 6 more cores count as half of what they are
    # worth: (2 + 3) / 3.6 < 2 / 1; as all of it: (2 + 6) / 3.6 > 2 / 1
    assert first(0.5) == ["small"]
    assert first(1.0) == ["large"]
    assert first(1.0, largest_share=0.5) == ["medium"], "8 cores are more than half of the 10 that are asked for"


def test_room_counts_as_far_as_the_load_changes():
    def first(swing, change):
        moment = Moment(100.0).node("n", LARGE, [pod("n1", 8.0, 0.1)])
        buyer = learned(spare_value=1.0, spare_swing=swing)
        buyer.act(moment.waits(pod("a", 1.0, 0.1)).at(100.0))
        assert bought(buyer.act(moment.at(102.0))) == ["small"], "the load is not known to change yet"
        moment.seen.waiting.clear()
        moment.node("m", SMALL, [pod("a", 1.0, 0.1), pod("m1", 1.0, 0.1)]).waits(pod("b", change, 0.1))
        buyer.act(moment.at(103.0))
        return bought(buyer.act(moment.at(105.0)))

    assert first(0.1, 2.0) == ["small"], "2 dollars in 3 s are 2 * sqrt(60 / 180) in a minute; a tenth is worth little"
    assert first(100.0, 2.0) == ["large"]


def test_a_node_goes_when_others_have_room_for_its_pods_and_its_price_is_worth_the_move():
    def gone(**numbers):
        moment = Moment(1000.0)
        moment.node("a", SMALL, [pod("a1", 0.5), pod("a2", 0.5)]).node("b", LARGE, [pod(f"b{at}") for at in range(5)])
        return list(learned(first_look_s=1000.0, **numbers).act(moment.at(1000.0)))

    assert gone(eviction_dollars=0.4) == [Delete(("a",))]  # 1.0 dollars against 0.8
    assert gone(eviction_dollars=0.6) == []  # against 1.2; of b, 3.6 against 3.0, but a has no room


def test_a_pod_that_may_not_be_disrupted_keeps_its_node_and_the_others_on_it():
    moment = Moment(1000.0)
    moment.node("a", MEDIUM, [pod("job", 0.5, do_not_disrupt=True), pod("a1", 0.5)])
    moment.node("b", MEDIUM, [pod("b1", 2.0, do_not_disrupt=True)])
    assert list(learned(first_look_s=1000.0, eviction_dollars=0.1).act(moment.at(1000.0))) == []


def test_a_node_is_looked_at_again_once_its_pod_may_be_moved_though_nothing_else_has_changed():
    moment = Moment(1000.0).node("a", SMALL, [pod("a1", do_not_disrupt=True)]).node("b", LARGE, [pod("b1", 5.0)])
    moment.seen.released_s, seller = {"a1": 1015.0}, learned(first_look_s=1000.0, eviction_dollars=0.1)
    assert [list(seller.act(moment.at(at_s))) for at_s in (1000.0, 1010.0)] == [[], []]
    assert list(seller.act(moment.at(1020.0))) == [Delete(("a",))]


def test_a_job_counts_more_than_other_pods_for_it_begins_anew():
    def gone(owner):
        moment = Moment(1000.0).node("a", SMALL, [pod("a1", owner=owner)]).node("b", SMALL, [pod("b1", 1.0)])
        moment.seen.pods["b"]["b1"] = pod("b1", do_not_disrupt=True)
        return list(learned(first_look_s=1000.0, eviction_dollars=0.7, job_times=2.0).act(moment.at(1000.0)))

    assert gone("ReplicaSet/a") == [Delete(("a",))]
    assert gone("Job/a") == []  # 1.4 dollars against 1.0


def test_a_cheaper_node_is_bought_first_and_the_other_goes_when_its_pods_still_fit():
    moment = Moment(1000.0).node("a", LARGE, [pod("a1", 1.5)])
    seller = learned(first_look_s=1000.0, eviction_dollars=0.1)
    assert bought(seller.act(moment.at(1000.0))) == ["small"]
    moment.node("new", SMALL, ready=False, launched_s=1000.0, last_pod_event_s=None)
    assert list(seller.act(moment.at(1005.0))) == []
    moment.seen.nodes["new"].initialized_s = 1021.0
    twin = seller.copy()
    assert list(seller.act(moment.at(1021.0))) == [Delete(("a",))]
    moment.seen.pods["new"]["x"] = pod("x", 1.0)  # somebody else has taken the room
    assert Delete(("a",)) not in list(twin.act(moment.at(1021.0)))


def test_nothing_is_bought_where_a_scheduler_that_packs_would_take_the_room_for_another_pod():
    # of `dear`, `any` has room on `full`, and `picky` wants a small node; but packing may put `any` on the small one
    def orders(cores, gib):
        others = pod("others", 8.0 - cores, 32.0 - gib, do_not_disrupt=True)
        picky = pod("picky", 1.0, 0.1, node_selector={"node.kubernetes.io/instance-type": "small"})
        moment = Moment(1000.0).node("full", LARGE, [others]).node("dear", LARGE, [pod("any", 2.0, 7.0), picky])
        return bought(learned(first_look_s=1000.0, eviction_dollars=0.1).act(moment.at(1000.0)))

    assert orders(4.0, 20.0) == [], "the small node is fuller with it"
    assert orders(2.0, 7.0) == ["small"], "nothing would be left of `full`"


def test_a_node_that_is_bought_for_others_to_go_stays_while_a_second_one_is_in_the_making():
    cheap = kind("cheap", 2, 0.9)
    moment = Moment(100.0).node("n", LARGE, [pod("a", 2.0, 0.1), pod("b", 2.0, 0.1)])
    buyer = learned(Catalogue((cheap, LARGE)), 0.0, eviction_dollars=0.1)
    assert bought(buyer.act(moment.at(100.0))) == ["cheap", "cheap"], "1.8 dollars in place of 3.6"
    moment.node("first", cheap, launched_s=100.0, initialized_s=121.0, last_pod_event_s=None)
    moment.node("second", cheap, ready=False, launched_s=100.0, last_pod_event_s=None)
    assert list(buyer.act(moment.at(121.0))) == []
    moment.seen.nodes["second"].initialized_s = 122.0
    assert list(buyer.act(moment.at(122.0))) == [Delete(("n",))]


def test_empty_nodes_go_after_the_time_that_the_policy_gives_them():
    moment = Moment(1000.0).node("a", SMALL, last_pod_event_s=990.0)
    seller = learned(first_look_s=1000.0, empty_s=15.0)
    assert list(seller.act(moment.at(1000.0))) == []
    assert list(seller.act(moment.at(1005.0))) == [Delete(("a",))]


def test_node_selectors_decide_what_is_bought():
    arm = kind("arm", 2, 0.5, arch="arm64")
    moment = Moment(100.0).waits(pod("a", 1.0, node_selector={"kubernetes.io/arch": "amd64"}))
    buyer = learned(Catalogue((arm, SMALL)))
    buyer.act(moment.at(100.0))
    assert bought(buyer.act(moment.at(102.0))) == ["small"]


PLAIN_TYPE = kind("plain", 4, 1.0)
ONE, TWO = kind("one", 4, 2.0, gpu_count=1, gpu_model="T4"), kind("two", 4, 3.6, gpu_count=2, gpu_model="V100")


@pytest.mark.parametrize(
    ("asked", "types"),
    [
        ([(1, 400), (1, 600)], ["one"]),  # together one device
        ([(1, 600), (1, 600)], ["one", "one"]),  # 1.2 devices fit on no single one
        ([(1, 1000), (1, 400), (1, 500)], ["one", "one"]),  # a whole one is nobody else's
        ([(2, 1000)], ["two"]),  # whole devices of one node
        ([(3, 1000)], []),  # no type has three
        ([(0, 0)], ["plain"]),  # a node with GPUs is dear for a pod without
    ],
)
def test_it_buys_types_whose_devices_the_pods_share(asked, types):
    pods = [pod(f"p{at}", 0.1, 0.1, gpu=GpuRequest(*each)) for at, each in enumerate(asked)]
    buyer, moment = learned(Catalogue((PLAIN_TYPE, ONE, TWO))), Moment(100.0).waits(*pods)
    buyer.act(moment.at(100.0))
    assert bought(buyer.act(moment.at(102.0))) == types


def test_a_pod_gets_a_node_though_what_it_asks_for_comes_free_with_the_gpus_that_others_need():
    # four devices come with eight cores, so that cores have no price; but four are never left on one node
    pods = [
        pod("a", 0.1, 0.1, gpu=GpuRequest(2, 1000)),
        pod("b", 0.1, 0.1, gpu=GpuRequest(2, 1000)),
        pod("c", 4.0, 0.1),
    ]
    buyer, moment = learned(Catalogue((PLAIN_TYPE, ONE, TWO))), Moment(100.0).waits(*pods)
    buyer.act(moment.at(100.0))
    assert sorted(bought(buyer.act(moment.at(102.0)))) == ["plain", "two", "two"]


def test_a_pod_that_names_a_gpu_model_gets_the_first_node_of_all():
    moment = Moment(100.0).waits(pod("a", 0.1, 0.1, gpu=GpuRequest(1, 500, frozenset({"V100"}))))
    buyer = learned(Catalogue((PLAIN_TYPE, ONE, TWO)))
    buyer.act(moment.at(100.0))
    assert bought(buyer.act(moment.at(102.0))) == ["two"]


def test_a_pod_gets_a_node_with_a_model_that_it_takes_and_none_where_a_device_has_room():
    catalogue = Catalogue((PLAIN_TYPE, ONE, TWO))
    picky = pod("a", 0.1, 0.1, gpu=GpuRequest(1, 500, frozenset({"V100"})))
    moment = Moment(100.0).node("n", ONE).waits(picky)
    buyer = learned(catalogue)
    buyer.act(moment.at(100.0))
    assert bought(buyer.act(moment.at(102.0))) == ["two"]
    for left, types in (([400, 600], []), ([400, 400], ["two"])):
        moment = Moment(100.0).node("n", TWO, [pod("b", 0.1, 0.1, gpu=GpuRequest(1, 600))]).waits(picky)
        moment.seen.gpu_free = {"n": np.array(left)}
        buyer = learned(catalogue)
        buyer.act(moment.at(100.0))
        assert bought(buyer.act(moment.at(102.0))) == types


def test_a_node_with_gpus_goes_when_single_devices_of_others_have_room_for_its_pods():
    shared = [pod("a", 0.1, 0.1, gpu=GpuRequest(1, 600))]
    for left, gone in (([600, 400], [("n1",)]), ([500, 500], [])):
        moment = Moment(100.0).node("n1", ONE, shared).node("n2", TWO, [pod("b", 0.1, 0.1, gpu=GpuRequest(1, 500))])
        moment.seen.gpu_free = {"n1": np.array([400]), "n2": np.array(left)}
        orders = learned(Catalogue((PLAIN_TYPE, ONE, TWO)), 0.0).act(moment.at(100.0))
        assert [each.names for each in orders if isinstance(each, Delete)] == gone


@pytest.mark.slow
@pytest.mark.parametrize("task", ["bill", "bill-openb"])
def test_an_episode_is_the_same_again_and_pays_for_what_it_asks_for(task):
    task = under(find_task(task), NodePolicy())
    if task.name.startswith("bill-openb"):
        task = replace(task, rhythm=hastened(task.rhythm, 12.0))

    def metrics():
        cluster = task.build(7, 4, pods=60)
        play(cluster, make_policy("first-come-packing", PolicyOptions()))
        return dict(cluster.metrics())

    first = metrics()
    assert metrics() == pytest.approx(first, nan_ok=True)
    assert first["fluid_ratio"] > 1.0
    assert first["nodes_bought"] > 0


def test_a_policy_of_nodes_is_a_file_that_evaluate_takes(tmp_path, capsys):
    path = tmp_path / "nodes.yaml"
    write_node_policy(path, PLAIN, ["by hand"])
    assert read_autoscaler(path) == PLAIN
    words = f"--task bill --nodes 3 --seeds 1..2 --policies kube-scheduler first-come-packing+{path}"
    assert run("evaluate", f"{words} --workers 1 --out {tmp_path}/out".split()) == 0
    assert "first-come-packing+nodes" in capsys.readouterr().out


def test_a_word_that_names_nobody_is_a_line_with_the_one_that_was_meant(capsys):
    assert run("evaluate", ["--task", "bill", "--policies", "kube-scheduler+learnd"]) == 2
    said = capsys.readouterr().err.strip()
    assert "nodes: 'learnd' is not accepted; did you mean learned? Expected one of learned, high-" in said


def test_the_files_of_examples_are_read_as_they_are_meant():
    examples = Path(__file__).parents[3] / "examples"
    openb = {"idle_s": 2.0, "patience_s": 5.0, "eviction_dollars": 0.15, "spare_value": 0.25, "spare_swing": 0.0}
    gpus = read_autoscaler(examples / "nodes_openb.yaml")
    assert gpus == replace(NodePolicy(), **openb), "all else is as it ships"
    large = read_autoscaler(examples / "nodes_large.yaml")
    assert (large.patience_s, large.size_power, large.eviction_dollars) == (50.0, -0.02, 0.0095)
    pool = read_autoscaler(examples / "packing" / "nodepool.yaml")
    assert (pool.batch_idle_duration_s, pool.batch_max_duration_s, pool.budgets) == (10.0, 30.0, ("30%",))
    tuned = read_autoscaler(examples / "packing" / "nodepool-tuned.yaml")
    assert (tuned.consolidation_policy, tuned.consolidate_after_s, tuned.budgets) == ("Balanced", 0.0, ("20%",))
    left_out = {
        kind.name.partition("-")[0] for kind in shipped_catalogue().types if kind.name not in tuned.instance_types
    }
    assert "memory" in left_out
    assert not any(name.startswith("memory") for name in tuned.instance_types)
    profile = read_profile(f"kube-scheduler:{examples / 'packing' / 'kube-scheduler.yaml'}")
    assert (profile.config.backoff_s, profile.config.strategy, profile.unmodelled) == ((1, 1), "MostAllocated", ())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("kind: NodePolicy\napiVersion: aaml.dev/v1\nspec: {patience_s: -1}", "patience_s"),
        ("kind: NodePolicy\napiVersion: aaml.dev/v1\nspec: {patience: 1}", "patience"),
        ("kind: NodePolicy\nspec: {}", "aaml.dev/v1"),
        ("kind: Pod", "NodePolicy"),
        ("!!python/object/apply:os.getcwd []", "NodePolicy"),
    ],
)
def test_what_is_no_policy_of_nodes_is_a_line(tmp_path, text, said):
    path = tmp_path / "nodes.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=said) as error:
        read_autoscaler(path)
    assert "\n" not in str(error.value)


# ---- ways to buy a type ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dearer", [1.0, 1.5])
@pytest.mark.parametrize("key", [ZONE_LABEL, "failure-domain.beta.kubernetes.io/zone"])
def test_pods_run_in_the_zone_that_they_select(dearer, key):
    """Whichever it is, also where all zones cost the same and any of them is launched where nobody says which."""
    ways = (Offering(1.0, zone="a"), Offering(dearer, zone="b"), Offering(1.0, zone="c"))
    catalogue = Catalogue((replace(SMALL, offerings=ways), LARGE))
    pods = [pod(f"p{number}", 2.0, node_selector={key: "abc"[number % 3]}) for number in range(6)]
    for seed in range(3):
        supply = NodeSupply(learned(catalogue), catalogue, np.random.default_rng(seed))
        cluster = SimCluster((), Workload(tuple(pods)), until_s=300.0, supply=supply, invariants=True)
        play(cluster, make_policy("first-fit"))
        zones = {uid: each.node_name for uid, each in cluster.state.placements.items()}
        told = {uid: cluster.state.nodes[cluster.state.index[name]].labels[ZONE_LABEL] for uid, name in zones.items()}
        assert told == {each.uid: each.node_selector[key] for each in pods}
        assert cluster.metrics()["nodes_bought"] == 6


def test_a_type_stands_once_for_each_zone_that_pods_select_beside_the_usual_one():
    ways = (Offering(1.0, zone="a"), Offering(1.5, zone="b"), Offering(1.5, zone="c"), Offering(0.5, "spot", "b"))
    catalogue = Catalogue((replace(SMALL, offerings=ways), LARGE))
    assert catalogue.apart([frozenset({(CAPACITY_TYPE_LABEL, "spot")})]) is catalogue, "that is how it is launched"
    assert catalogue.apart([frozenset({(ZONE_LABEL, "none")})]) is catalogue
    on_demand = frozenset({(ZONE_LABEL, "b"), (CAPACITY_TYPE_LABEL, "on-demand")})
    parts = catalogue.apart([on_demand, frozenset({(ZONE_LABEL, "c")}), frozenset({(ZONE_LABEL, "b")})])
    assert [(each.name, each.cheapest) for each in parts.types] == [
        ("small", ways[3]), ("small", ways[1]), ("small", ways[2]), ("large", LARGE.cheapest),
    ]  # fmt: skip
    assert parts["small"] is parts.types[0]
