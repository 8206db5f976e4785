"""Kueue's queues and quotas: who is admitted, from which flavor, and what of Kueue is refused."""

import pytest

from aaml.cluster.objects import HOSTNAME_LABEL, Node
from aaml.errors import UserError
from aaml.scheduling.kueue.admission import Admission
from aaml.scheduling.kueue.objects import (
    ClusterQueue,
    Cohort,
    Flavor,
    PodSet,
    Quota,
    ResourceGroup,
    TopologyRequest,
    Workload,
)

CPU = "cpu"
PLAIN, RACKS = Flavor("plain"), Flavor("racks", {}, ("rack", HOSTNAME_LABEL))


def queue(name, nominal, cohort="", flavors=("plain",), borrowing=None, lending=None, **more):
    quotas = {(flavor, CPU): Quota(nominal, borrowing, lending) for flavor in flavors}
    return ClusterQueue(name, (ResourceGroup((CPU,), tuple(flavors)),), quotas, cohort, **more)


def workload(name, of, cpu, count=1, priority=0, created_s=0.0, topology=None):
    return Workload(name, of, (PodSet(count, {CPU: cpu}, topology),), priority, created_s)


def admitted(admission, *workloads):
    for each in workloads:
        admission.submit(each)
    return [each.workload.name for each in admission.settle()]


def racks(count=2, nodes=2, cpu=4):
    return [
        Node(f"n{rack}{number}", {CPU: cpu, "pods": 10}, {"rack": f"r{rack}", HOSTNAME_LABEL: f"n{rack}{number}"})
        for rack in range(count)
        for number in range(nodes)
    ]


def test_best_effort_passes_over_what_does_not_fit_and_strict_does_not():
    waiting = [workload("large", "q", 8, created_s=1), workload("small", "q", 3, created_s=2)]
    assert admitted(Admission([queue("q", 10)], [PLAIN], []), workload("running", "q", 5), *waiting) == [
        "running", "small"
    ]  # fmt: skip
    strict = Admission([queue("q", 10, strategy="StrictFIFO")], [PLAIN], [])
    assert admitted(strict, workload("running", "q", 5), *waiting) == ["running"]
    assert strict.waits("small")
    strict.finish("running")
    assert [each.workload.name for each in strict.settle()] == ["large"], "it needs no retry"


def test_priority_goes_before_age_and_what_did_not_fit_waits_for_a_retry():
    admission = Admission([queue("q", 4)], [PLAIN], [])
    assert admitted(admission, workload("old", "q", 3), workload("important", "q", 2, priority=1, created_s=5)) == [
        "important"
    ]
    assert admission.finish("important") == "q"
    assert admission.settle() == []
    admission.retry("q")
    assert [each.workload.name for each in admission.settle()] == ["old"]


def test_a_queue_borrows_what_its_cohort_lends_up_to_its_limit():
    lender = queue("lender", 10, "c", lending=4)
    borrower = queue("borrower", 2, "c")
    limited = queue("limited", 2, "c", borrowing=1)
    admission = Admission([lender, borrower, limited], [PLAIN], [])
    assert admitted(admission, workload("three", "limited", 4)) == [], "2 of its own and 1 borrowed"
    assert admitted(admission, workload("two", "limited", 3)) == ["two"]
    assert admitted(admission, workload("more", "borrower", 6)) == [], "2 + 2 + 4 lent, of which 3 are taken"
    assert admitted(admission, workload("five", "borrower", 5)) == ["five"]
    assert admitted(admission, workload("kept", "lender", 6)) == ["kept"], "what is never lent"


def test_who_borrows_comes_after_who_does_not_and_sees_what_is_left():
    admission = Admission([queue("a", 4, "c"), queue("b", 4, "c")], [PLAIN], [])
    assert admitted(
        admission, workload("borrows", "a", 5, created_s=1), workload("within", "b", 4, created_s=2)
    ) == ["within"]  # fmt: skip


def test_cohorts_of_cohorts_lend_through_their_parent():
    tree = [Cohort("root", quotas={("plain", CPU): Quota(5)}), Cohort("left", "root"), Cohort("right", "root")]
    admission = Admission([queue("a", 1, "left"), queue("b", 1, "right")], [PLAIN], [], tree)
    assert admitted(admission, workload("all", "a", 7)) == ["all"], "1 + 1 + 5"
    with pytest.raises(UserError, match="parentName: 'x -> y -> x' is not accepted; expected cohorts that are in no"):
        Admission([queue("a", 1, "x")], [PLAIN], [], [Cohort("x", "y"), Cohort("y", "x")])


def test_a_cohort_in_another_one_has_all_its_queues_tried_again_at_any_change():
    """As seen on the real Kueue 0.17.0: it reads Cohorts anew, but for the root, and takes that for other quotas."""
    for cohorts, stirs in (([], False), ([Cohort("c")], False), ([Cohort("c", "root")], True)):
        admission = Admission([queue("a", 4, "c"), queue("b", 4)], [PLAIN], [], cohorts)
        assert admission.stirs("a") is stirs
        assert not admission.stirs("b")


def test_the_next_flavor_is_taken_where_the_first_is_full_or_would_be_borrowed():
    two = [Flavor("spot"), Flavor("usual")]
    admission = Admission([queue("q", 4, flavors=("spot", "usual"))], two, [])
    assert admitted(admission, workload("one", "q", 3), workload("two", "q", 3, created_s=1)) == ["one", "two"]
    assert [admission.admitted[name].pod_sets[0].flavors[CPU] for name in ("one", "two")] == ["spot", "usual"]
    for borrow_first, flavor in ((True, "spot"), (False, "usual")):
        lender = queue("lender", 4, "c", flavors=("spot", "usual"))
        own = queue("q", 4, "c", flavors=("spot", "usual"), borrow_first=borrow_first)
        admission = Admission([own, lender], two, [])
        assert admitted(admission, workload("one", "q", 3), workload("two", "q", 3, created_s=1)) == ["one", "two"]
        assert admission.admitted["two"].pod_sets[0].flavors[CPU] == flavor


def test_a_flavor_without_room_in_its_racks_gives_way_to_the_next_in_the_next_cycle():
    """The quota of the first flavor has room, its racks have not: Kueue goes on with the second at once."""
    near, far = Flavor("near", {"pool": "near"}, RACKS.levels), Flavor("far", {"pool": "far"}, RACKS.levels)
    every = [
        Node(name, {CPU: 4, "pods": 10}, {"pool": pool, "rack": "r", HOSTNAME_LABEL: name})
        for name, pool in (("n", "near"), ("f1", "far"), ("f2", "far"))
    ]
    admission = Admission([queue("q", 100, flavors=("near", "far"))], [near, far], every)
    ask = TopologyRequest("required", "rack")
    assert admitted(admission, workload("gang", "q", 4, 2, topology=ask)) == ["gang"]
    given = admission.admitted["gang"].pod_sets[0]
    assert (given.flavors[CPU], given.domains) == ("far", ((("r", "f1"), 1), (("r", "f2"), 1)))


def test_where_all_flavors_have_topologies_pods_without_a_request_go_to_the_fullest_node_that_has_room():
    admission = Admission([queue("q", 100, flavors=("racks",))], [RACKS], racks())
    ask = TopologyRequest("required", "rack")
    assert admitted(admission, workload("gang", "q", 3, 2, topology=ask), workload("pod", "q", 1, created_s=1)) == [
        "gang", "pod"
    ]  # fmt: skip
    assert admission.admitted["gang"].pod_sets[0].domains == ((("r0", "n00"), 1), (("r0", "n01"), 1))
    assert admission.admitted["pod"].pod_sets[0].domains == ((("r0", "n00"), 1),)


def test_a_gang_that_fits_in_no_rack_now_waits_and_holds_no_room_for_the_next_cycle():
    admission = Admission([queue("q", 100, flavors=("racks",))], [RACKS], racks(1))
    ask = TopologyRequest("required", "rack")
    assert admitted(
        admission, workload("pod", "q", 1), workload("gang", "q", 4, 2, created_s=1, topology=ask),
        workload("later", "q", 4, created_s=2, topology=ask),
    ) == ["pod", "later"]  # fmt: skip
    for name in ("pod", "later"):
        admission.finish(name)
    admission.retry("q")
    assert [each.workload.name for each in admission.settle()] == ["gang"]


def test_places_for_pods_that_a_node_has_not_got_keep_a_spread_workload_out():
    """As seen on the real Kueue 0.17.0, whose status with -1 pods in a domain the API server refuses."""
    three = [Node(f"n{n}", {CPU: 100, "pods": 3}, {"rack": "r", HOSTNAME_LABEL: f"n{n}"}) for n in range(3)]
    admission = Admission([queue("q", 100, flavors=("racks",))], [RACKS], three)
    pair = Workload("pair", "q", (PodSet(2, {CPU: 1}), PodSet(2, {CPU: 1}, name="more")))
    assert admitted(admission, pair) == ["pair"]
    assert [given.domains for given in admission.admitted["pair"].pod_sets] == [((("r", "n0"), 2),)] * 2
    assert admitted(admission, workload("spread", "q", 1, 4, created_s=1)) == []
    assert admission.waits("spread")
    assert admitted(admission, workload("small", "q", 1, 2, priority=1, created_s=2)) == ["small"]


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda: workload("w", "q", 1, count=0), "count: 0 is not accepted; expected at least 1 pod"),
        (lambda: Workload("w", "q", ()), r"podSets: \[\] is not accepted; expected at least one of workload w"),
        (lambda: queue("q", 1, strategy="FIFO"), "queueingStrategy: 'FIFO' is not accepted; expected one of"),
        (lambda: queue("q", 1, borrowing=1), "borrowingLimit: 1 is not accepted; expected none of plain, cpu in q"),
        (lambda: Admission([queue("q", 1, flavors=("gpu",))], [PLAIN], []), "flavors of q: 'gpu' is not accepted"),
        (lambda: Admission([queue("q", 1)], [PLAIN], []).submit(workload("w", "p", 1)), "queue: 'p' is not accepted"),
    ],
)
def test_a_mistake_is_one_line(make, line):
    with pytest.raises(UserError, match=line):
        make()
