"""Where Kueue's topology-aware scheduling puts pods: the cases of its own tests (tas_cache_test.go), and its words."""

import pytest

from aaml.cluster.objects import HOSTNAME_LABEL, Node, Taint, Toleration
from aaml.scheduling.kueue.objects import Flavor, PodSet, TopologyRequest
from aaml.scheduling.kueue.rooms import NodeRoom
from aaml.scheduling.kueue.topology import NoRoom

LEVELS = ("block", "rack", HOSTNAME_LABEL)
DEFAULT = {"x3": ("b1", "r1", 1), "x5": ("b1", "r2", 1), "x1": ("b1", "r2", 1), "x6": ("b1", "r2", 1),
           "x2": ("b2", "r1", 1), "x4": ("b2", "r2", 2)}  # fmt: skip
SCATTERED = {"x3": ("b1", "r1", 4), "x5": ("b1", "r1", 1), "x1": ("b1", "r1", 1),
             "x6": ("b2", "r1", 2), "x2": ("b2", "r1", 1)}  # fmt: skip
UNEVEN = {"x3": ("b1", "r1", 2), "x5": ("b1", "r2", 2), "x1": ("b1", "r3", 1), "x6": ("b1", "r3", 1),
          "x2": ("b1", "r3", 1), "x4": ("b1", "r3", 1)}  # fmt: skip


def nodes(hosts):
    return [
        Node(name, {"cpu": 1000 * cpu, "pods": 10}, {"block": block, "rack": rack, HOSTNAME_LABEL: name})
        for name, (block, rack, cpu) in hosts.items()
    ]


def place(hosts, count, how, level="", levels=LEVELS, cpu=1000):
    room = NodeRoom(Flavor("f", {}, levels), nodes(hosts))
    pods = PodSet(count, {"cpu": cpu})
    found = room.place(pods, TopologyRequest(how, level), {}, empty=False)
    return found.reason if isinstance(found, NoRoom) else {values[-1]: pods for values, pods in found}


@pytest.mark.parametrize(
    ("hosts", "count", "how", "level", "expected"),
    [
        # fewest racks before fewest nodes
        pytest.param(UNEVEN, 4, "required", "block", {"x1": 1, "x2": 1, "x4": 1, "x6": 1}, id="one rack of four nodes"),
        pytest.param({name: UNEVEN[name] for name in ("x3", "x1", "x2")} | {"x1": ("b1", "r1", 1)}, 2, "required",
                     "block", {"x3": 2}, id="the node that holds all"),
        # LeastFreeCapacity: the nodes with the least room, and of those that hold all the first
        pytest.param(SCATTERED, 6, "unconstrained", "", {"x1": 1, "x3": 1, "x5": 1, "x2": 1, "x6": 2}, id="scattered"),
        pytest.param(DEFAULT, 1, "unconstrained", "", {"x3": 1}, id="of equal nodes the first by block and rack"),
    ],
)  # fmt: skip
def test_pods_go_where_kueues_own_tests_say(hosts, count, how, level, expected):
    assert place(hosts, count, how, level) == expected


def test_pods_that_no_block_holds_are_spread_over_the_fullest_racks():
    room = NodeRoom(Flavor("f", {}, ("block", "rack")), nodes(DEFAULT))
    found = room.place(PodSet(6, {"cpu": 1000}), TopologyRequest("preferred", "rack"), {}, empty=False)
    assert found == ((("b1", "r1"), 1), (("b1", "r2"), 3), (("b2", "r2"), 2))


def test_the_last_block_is_the_one_that_fits_best():
    hosts = {"b1": ("b1", "r", 2), "b2": ("b2", "r", 1), "b3": ("b3", "r", 4)}
    assert place(hosts, 5, "preferred", "block", levels=("block",)) == {"b2": 1, "b3": 4}


@pytest.mark.parametrize(
    ("hosts", "count", "expected"),
    [
        pytest.param({"x1": ("b1", "r1", 15), "x2": ("b1", "r2", 15)}, 25, {"x1": 13, "x2": 12}, id="basic"),
        pytest.param({"x1": ("b1", "r1", 15), "x2": ("b1", "r1", 13), "x3": ("b1", "r1", 10)}, 23,
                     {"x1": 12, "x2": 11}, id="optimal set of domains"),
        pytest.param({"x1": ("b1", "r1", 20), "x2": ("b1", "r1", 10), "x3": ("b2", "r2", 15), "x4": ("b2", "r2", 15)},
                     22, {"x3": 11, "x4": 11}, id="correct block"),
        pytest.param({"x1": ("b1", "r1", 14), "x2": ("b1", "r1", 11), "x3": ("b2", "r2", 15), "x4": ("b2", "r2", 10)},
                     25, {"x1": 14, "x2": 11}, id="not of different blocks"),
    ],
)  # fmt: skip
def test_with_balanced_placement_pods_are_spread_as_kueues_own_tests_say(hosts, count, expected):
    """The cases "balanced placement" of tas_cache_test.go that have no slices."""
    every = [
        Node(name, {"gpu": room, "pods": 100}, {"block": block, "rack": rack, HOSTNAME_LABEL: name})
        for name, (block, rack, room) in hosts.items()
    ]
    room = NodeRoom(Flavor("f", {}, LEVELS), every, balanced=True)
    found = room.place(PodSet(count, {"gpu": 1}), TopologyRequest("preferred", "rack"), {}, empty=False)
    assert {values[-1]: pods for values, pods in found} == expected


def test_it_says_how_many_fit():
    assert place(DEFAULT, 4, "required", "rack") == 'topology "default" allows to fit only 3 out of 4 pod(s)'
    assert place(DEFAULT, 1, "required", "rack", cpu=4000) == 'topology "default" doesn\'t allow to fit any of 1 pod(s)'
    assert place(DEFAULT, 8, "unconstrained") == 'topology "default" allows to fit only 7 out of 8 pod(s)'
    assert place(DEFAULT, 1, "required", "zone") == "no requested topology level: zone"
    assert place({}, 1, "required", "rack") == "no topology domains at level: rack"


def test_nodes_without_a_level_tainted_and_cordoned_ones_hold_nothing():
    labels = {"rack": "r", HOSTNAME_LABEL: "a"}
    room = {"cpu": 1000, "pods": 1}
    every = [
        Node("a", room, {**labels}), Node("b", room, {HOSTNAME_LABEL: "b"}),
        Node("c", room, {**labels, HOSTNAME_LABEL: "c"}, unschedulable=True),
        Node("d", room, {**labels, HOSTNAME_LABEL: "d"}, (Taint("apart"),)),
    ]  # fmt: skip
    flavor = Flavor("f", {}, ("rack", HOSTNAME_LABEL))
    ask = TopologyRequest("required", "rack")
    placed = NodeRoom(flavor, every).place(PodSet(1, {"cpu": 500}), ask, {}, empty=False)
    assert placed == ((("r", "a"), 1),)
    tolerant = PodSet(2, {"cpu": 500}, tolerations=(Toleration("apart", "Exists"),))
    assert NodeRoom(flavor, every).place(tolerant, ask, {}, empty=False) == ((("r", "a"), 1), (("r", "d"), 1))
    chosen = PodSet(1, {"cpu": 500}, node_selector={HOSTNAME_LABEL: "d"}, tolerations=tolerant.tolerations)
    assert NodeRoom(flavor, every).place(chosen, ask, {}, empty=False) == ((("r", "d"), 1),)


def test_what_runs_takes_room_and_its_place_among_the_pods_until_it_ends():
    room = NodeRoom(Flavor("f", {}, (HOSTNAME_LABEL,)), nodes({"x1": ("b", "r", 4)}))
    ask, pods = TopologyRequest("required", HOSTNAME_LABEL), PodSet(3, {"cpu": 1000})
    first = room.place(pods, ask, {}, empty=False)
    room.add(first, pods.requests)
    assert isinstance(room.place(pods, ask, {}, empty=False), NoRoom)
    assert room.place(pods, ask, {}, empty=True) == first, "it would fit if the others were gone"
    room.add(first, pods.requests, -1)
    assert room.place(pods, ask, {}, empty=False) == first
