"""Heuristics on hand-made clusters."""

import numpy as np
import pytest

from aaml.cluster.filters import feasible
from aaml.cluster.objects import RACK_LABEL, GpuRequest, Node, Pod, PodGroup
from aaml.cluster.state import ClusterState
from aaml.errors import UserError
from aaml.policies.fragment_meter import FragmentMeter
from aaml.policies.heuristics import PolicyOptions, ScorePolicy, racks, scores
from aaml.policies.registry import POLICIES, make_policy, register_policy
from support import make
from support.make import GIB


def context(sizes, used=(), pod=None, mask=None, gpus=()):
    """A context of nodes with (cpu, GiB) sizes; `used` places (node_index, cpu, GiB) pods."""
    gpus = gpus or [0] * len(sizes)
    nodes = [make.node(f"n{i}", cpu, gib * GIB, gpus=gpus[i]) for i, (cpu, gib) in enumerate(sizes)]
    state = make.cluster(nodes, [(node_index, cpu, gib * GIB) for node_index, cpu, gib in used])
    return make.context(state, pod or make.pod(cpu=1000), mask)


def test_scores_by_hand():
    # n0: 4 CPU, 8 GiB empty; n1: 2 of 4 CPU and 1 of 8 GiB taken. The pod takes 1 CPU and 1 GiB.
    situation = context([(4000, 8), (4000, 8)], [(1, 2000, 1)])
    assert scores.least_allocated(situation) == pytest.approx([50 * (3 / 4 + 7 / 8), 50 * (1 / 4 + 6 / 8)])
    assert scores.most_allocated(situation) == pytest.approx([50 * (1 / 4 + 1 / 8), 50 * (3 / 4 + 2 / 8)])
    # Standard deviation of two fractions is half their difference.
    assert scores.balanced_allocation(situation) == pytest.approx([100 - 50 / 8, 100 - 50 * 0.5])
    assert scores.best_fit(situation) == pytest.approx([50 * (1 / 4 + 1 / 8), 50 * (3 / 4 + 2 / 8)])
    assert scores.dot_product(situation) == pytest.approx(
        [50 * ((1 - 1 / 4) + (1 - 1 / 8)), 50 * ((1 - 1 / 8) + (1 - 7 / 64))]
    )


def test_least_variance_scores_the_change_of_the_variance():
    sizes, used = [(4000, 8), (8000, 8), (4000, 16)], [(0, 1000, 2), (1, 1000, 4), (2, 3000, 1)]
    situation = context(sizes, used)
    score = scores.least_variance(situation)
    cpu, memory = np.array([0.25, 0.125, 0.75]), np.array([0.25, 0.5, 0.0625])
    before = cpu.var() + memory.var()
    for node_index, (size_cpu, size_gib) in enumerate(sizes):
        cpu_after, memory_after = cpu.copy(), memory.copy()
        cpu_after[node_index] += 1000 / size_cpu
        memory_after[node_index] += 1 / size_gib
        change = 3 * (cpu_after.var() + memory_after.var() - before)
        assert score[node_index] == pytest.approx(-1e4 * change)


def test_alphaevolves_heuristic_by_hand():
    """A pod of 1 CPU and 1 GiB; free are 4 and 8, 2 and 7, 1 and 1, and 3.9 and 4 of each.

    What runs on the last node asks for no CPU, which counts as 100m in Kubernetes' scores.
    """
    situation = context([(4000, 8)] * 4, [(1, 2000, 1), (2, 3000, 7), (3, 0, 4)])
    shares = [(1 / 4, 1 / 8), (1 / 2, 1 / 7), (1.0, 1.0), (1 / 3.9, 1 / 4)]
    by_hand = [-(c + m + m / c + c / m) for c, m in shares]
    assert scores.alphaevolve(situation) == pytest.approx(by_hand)
    assert make_policy("alphaevolve").act(situation).node_index == 3, "as even a share of both, and a small one"


def test_alphaevolves_heuristic_divides_nothing_by_zero():
    """A pod that asks for nothing at all, and a node without anything left."""
    nothing = Pod("p", requests={"cpu": 0, "memory": 0})
    found = scores.alphaevolve(context([(4000, 8), (1000, 1)], [(1, 1000, 1)], pod=nothing))
    assert np.isfinite(found).all()
    assert np.isfinite(scores.alphaevolve(context([(1000, 1)], [(0, 1000, 1)]))).all()


def test_pods_without_requests_count_as_kube_scheduler_counts_them():
    situation = context([(1000, 1)], pod=Pod("p"))
    assert scores.least_allocated(situation) == pytest.approx([50 * (0.9 + 1 - 200 / 1024)])


@pytest.mark.parametrize(
    ("name", "chosen"),
    [
        ("first-fit", 1),
        ("least-allocated", 3),
        ("most-allocated", 2),
        ("best-fit", 2),
        ("kube-scheduler", 3),
        ("kube-scheduler-packing", 2),
    ],
)
def test_named_policies_choose_among_feasible_rows(name, chosen):
    situation = context([(4000, 8)] * 4, [(1, 1000, 2), (2, 2000, 4), (3, 500, 1)], mask=[0, 1, 1, 1])
    assert make_policy(name).act(situation).node_index == chosen


def test_every_policy_respects_the_mask():
    rng = np.random.default_rng(0)
    for name in POLICIES.names():
        policy = make_policy(name, PolicyOptions(expected=[Pod("e", requests={"cpu": 1}, gpu=GpuRequest(1, 500))]))
        for _ in range(20):
            mask = rng.random(5) < 0.4
            mask[rng.integers(5)] = True
            situation = context([(4000, 8)] * 5, mask=mask, gpus=[2] * 5)
            assert mask[policy.act(situation).node_index], name


def test_round_robin_goes_round_and_skips():
    policy = make_policy("round-robin")
    sizes = [(4000, 8)] * 4
    assert [policy.act(context(sizes)).node_index for _ in range(5)] == [0, 1, 2, 3, 0]
    assert policy.act(context(sizes, mask=[1, 0, 0, 1])).node_index == 3
    assert policy.act(context(sizes, mask=[0, 1, 0, 0])).node_index == 1
    assert policy.act(context(sizes, mask=[1, 1, 0, 0])).node_index == 0


def test_random_is_uniform_over_feasible_rows_and_seeded():
    situation = context([(4000, 8)] * 4, mask=[1, 0, 1, 1])
    policy, twin = (make_policy("random", PolicyOptions(seed=4)) for _ in range(2))
    chosen = [policy.act(situation).node_index for _ in range(3000)]
    assert chosen == [twin.act(situation).node_index for _ in range(3000)]
    counts = np.bincount(chosen, minlength=4)
    assert counts[1] == 0
    assert np.abs(counts[[0, 2, 3]] - 1000).max() < 130  # five standard deviations of a binomial


def policy_of(values, **options):
    return ScorePolicy("test", lambda _context: np.array(values), PolicyOptions(**options))


def test_tie_breaks():
    situation = make.context(make.cluster(make.node(name) for name in "cbad"), make.pod(), [1, 1, 1, 0])
    values = [5.0, 5.0, 5.0, 9.0]
    assert policy_of(values).act(situation).node_index == 0
    assert policy_of(values, tie_break="name").act(situation).node_index == 2
    policy = policy_of(values, tie_break="random")
    assert {policy.act(situation).node_index for _ in range(60)} == {0, 1, 2}
    with pytest.raises(UserError, match="tie_break: 'last'"):
        PolicyOptions(tie_break="last")


def test_truncation_makes_ties():
    situation = context([(4000, 8)] * 3)
    assert policy_of([7.1, 7.9, 6.0]).act(situation).node_index == 1
    assert policy_of([7.1, 7.9, 6.0], truncate=True).act(situation).node_index == 0
    assert policy_of([-0.9, 0.5, -2.0], truncate=True).act(situation).node_index == 0  # towards zero, as Go does


def test_scores_without_meaning_are_an_error():
    situation = context([(4000, 8)] * 3)
    assert policy_of([np.nan, 1.0, -np.inf]).act(situation).node_index == 1
    with pytest.raises(ValueError, match="no feasible node has a score"):
        policy_of([np.nan, -np.inf, np.nan]).act(situation)
    with pytest.raises(ValueError, match="shape"):
        policy_of([1.0, 2.0]).act(situation)


def test_fgd_keeps_whole_devices_whole():
    # Both nodes have two devices; on n1 one is half used. Expected pods want whole devices: the half goes beside.
    state = make.cluster(make.nodes(2, gpus=2))
    state.assume(Pod("used", requests={"cpu": 10}, gpu=GpuRequest(1, 500)), "n1")
    pod = Pod("p", requests={"cpu": 10}, gpu=GpuRequest(1, 500))
    situation = make.context(state, pod)
    expected = [Pod(f"e{i}", requests={"cpu": 10}, gpu=GpuRequest(1, 1000)) for i in range(4)]
    decision = make_policy("fgd", PolicyOptions(expected=expected)).act(situation)
    assert (decision.node_index, decision.gpus) == (1, (0,))


def test_fgd_tells_the_device_models_of_two_clusters_apart():
    # Whole T4s are expected: half of one leaves a fragment, half of a P4 was one before. So the P4 is taken, in a
    # cluster that lists its models in this order or in that one.
    expected = [Pod("e", requests={"cpu": 10}, gpu=GpuRequest(1, 1000, frozenset({"T4"})))]
    pod = Pod("p", requests={"cpu": 10}, gpu=GpuRequest(1, 500))
    for orders in ((("P4", "T4"), ("T4", "P4")), (("T4", "P4"), ("P4", "T4"))):
        policy, meter = make_policy("fgd", PolicyOptions(expected=expected)), FragmentMeter.of(expected)
        for order in orders:
            nodes = [make.node(model, gpus=1, gpu_model=model) for model in order]
            situation = make.context(make.cluster(nodes), pod)
            assert policy.act(situation).node_index == order.index("P4")
            assert meter(situation.state)[order.index("P4")] == 1000.0
            assert meter(situation.state)[order.index("T4")] == 0.0


def test_own_policies_by_name_and_by_file(tmp_path):
    @register_policy("test-last")
    def last(context):
        return np.arange(len(context.mask), dtype=float)

    situation = context([(4000, 8)] * 3, mask=[1, 1, 0])
    policy = make_policy("test-last")
    assert (policy.name, policy.act(situation).node_index) == ("test-last", 1)

    file = tmp_path / "mine.py"
    file.write_text(
        "from aaml.scheduling.ports import Decision\n"
        "from aaml.policies.registry import register_policy\n"
        "class Last:\n"
        "    def act(self, context):\n"
        "        return Decision(int(context.mask.nonzero()[0][-1]))\n"
        "@register_policy('test-file')\n"
        "def score(context):\n"
        "    return context.state.allocatable[:, 0] * 0.0\n",
        encoding="utf-8",
    )
    assert make_policy(f"{file}:Last").act(situation).node_index == 1
    assert make_policy(f"{file}:Last").name == "Last"
    assert make_policy(f"{file}:score").act(situation).node_index == 0
    assert make_policy(f"{file}:test-file").act(situation).node_index == 0
    with pytest.raises(UserError, match="policy: 'test-file' is not accepted"):  # another file may have that name too
        make_policy("test-file")
    with pytest.raises(UserError, match=r"policy in .*: 'nothing'"):
        make_policy(f"{file}:nothing")
    with pytest.raises(UserError, match="a Python file that exists"):
        make_policy(f"{tmp_path}/other.py:x")
    broken = tmp_path / "broken.py"
    broken.write_text("1 / 0", encoding="utf-8")
    with pytest.raises(UserError, match="does not run: ZeroDivisionError"):
        make_policy(f"{broken}:x")
    broken.write_text("import sys\nsys.exit(0)\n", encoding="utf-8")
    with pytest.raises(UserError, match="does not run: SystemExit: 0"):
        make_policy(f"{broken}:x")
    with pytest.raises(UserError, match=r"policy: 'fastest' is not accepted; expected one of .*balanced-allocation"):
        make_policy("fastest")
    with pytest.raises(ValueError, match="built in"):
        register_policy("random")(last)


@pytest.mark.parametrize("known", ["placed", "tried"])
def test_rack_packing_knows_racks_by_the_label_that_groups_name(known, caplog):
    """Racks A, A, B, B; A1 is full. Eight GPUs go to A2, whose rack has one empty node, wherever racks are known."""
    racks._say_once.cache_clear()
    label, gang = "example.com/rack", PodGroup("g", 1, "example.com/rack")
    state = ClusterState(
        Node(f"{rack}{number}", {"cpu": 8000, "memory": 8 << 30, "pods": 10}, {label: rack}, gpu_count=8)
        for number in (2, 1)
        for rack in "BA"
    )
    first = Pod("first", gpu=GpuRequest(8, 1000), group=gang if known == "placed" else None)
    state.assume(first, "A1")

    def best(pod: Pod) -> set[str]:
        scores = racks.rack_packing(make.context(state, pod, feasible(state, pod).mask))
        free = [score if name != "A1" else -np.inf for name, score in zip(state.names, scores, strict=True)]
        return {name for name, score in zip(state.names, free, strict=True) if score == max(free)}

    assert best(Pod("q", gpu=GpuRequest(8, 1000), group=gang if known == "tried" else None)) == {"A2"}
    assert "rack-packing" not in caplog.text
    state.remove_pod(first.uid)
    state.assume(Pod("plain", gpu=GpuRequest(8, 1000)), "A1")
    for _ in range(2):
        assert best(Pod("q", gpu=GpuRequest(8, 1000))) == {"A2", "B1", "B2"}
    assert caplog.text.count("rack-packing: no node has the label rack: all nodes count as one rack") == 1


def test_rack_packing_fills_nodes_then_racks_that_no_gang_can_use():
    """Racks A, A, B, B, C, C of 8 GPUs. Pods of 4 on A1 and B1, of 8 on B2: the others are empty.

    4 GPUs go to B1: it has 4 free as A1 has, but no empty node beside it. 8 go to A2: its rack has one empty node, C
    two. With A1 given 2 more, 2 GPUs go there: two free is less than four.
    """
    state = ClusterState(
        Node(f"{rack}{number}", {"cpu": 8000, "memory": 8 << 30, "pods": 10}, {RACK_LABEL: rack}, gpu_count=8)
        for rack in "ABC"
        for number in (1, 2)
    )
    for number, (gpus, node) in enumerate([(4, "A1"), (4, "B1"), (8, "B2")]):
        state.assume(Pod(f"p{number}", gpu=GpuRequest(gpus, 1000)), node)

    def chosen(gpus: int) -> str:
        pod = Pod("q", gpu=GpuRequest(gpus, 1000))
        return state.names[
            make_policy("rack-packing").act(make.context(state, pod, feasible(state, pod).mask)).node_index
        ]

    assert [chosen(4), chosen(8)] == ["B1", "A2"]
    state.assume(Pod("more", gpu=GpuRequest(2, 1000)), "A1")
    assert chosen(2) == "A1"
