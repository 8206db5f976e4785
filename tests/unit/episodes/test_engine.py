"""The compiled engine against a slow, obvious scheduler in plain Python, on random clusters and arrivals."""

from math import exp, floor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aaml.cluster.objects import GpuRequest, Node, Pod
from aaml.episodes.engine import Episode, simulate, simulate_choices
from aaml.episodes.tournament import (
    build,
    build_ties,
    first_best,
    first_best_where,
    leaves_for,
    nth_best,
    update_ties,
)
from aaml.policies.fragmentation import fragment_tables, typical_pods
from aaml.policies.gpu.arrays import NodeArrays, empty_nodes, pod_shape
from aaml.policies.gpu.fit import fits_all
from aaml.policies.gpu.learned import linear_scorer
from aaml.policies.gpu.policies import RANDOM, policy_number, score_all
from aaml.policies.gpu.scores import gpu_packing
from aaml.policies.gpu_names import FEATURES, GROUPS

GIB = 2**30


class PlainNode:
    def __init__(self, node: Node) -> None:
        self.cpu, self.memory = node.allocatable["cpu"], node.allocatable["memory"]
        self.pods, self.model = node.allocatable["pods"], node.gpu_model
        self.gpu = [1000] * node.gpu_count
        self.kinds: set[str] = set()


def kind_of(pod: Pod) -> str:
    gpu = pod.gpu
    return "" if not gpu.count else "share" if gpu.count == 1 and gpu.milli < 1000 else f"{gpu.count}-gpu"


def fits(node: PlainNode, pod: Pod) -> bool:
    gpu = pod.gpu
    if pod.requests["cpu"] > node.cpu or pod.requests["memory"] > node.memory or node.pods < 1:
        return False
    if gpu.milli == 0:
        return True
    if gpu.models and node.model not in gpu.models:
        return False
    need = gpu.milli if gpu.count == 1 else 1000
    return sum(free >= need for free in node.gpu) >= gpu.count


def fragments(node: PlainNode, cpu: int, gpu: list[int], pods: list[Pod]) -> int:
    """C F(n), every pod of the list counting once."""
    total = 0
    for pod in pods:
        need = pod.gpu.milli
        usable = need and (not pod.gpu.models or node.model in pod.gpu.models) and cpu >= pod.requests["cpu"]
        if usable and sum(free >= need for free in gpu) >= pod.gpu.count:
            total += sum(free for free in gpu if free < need)
        else:
            total += sum(gpu)
    return total


def taken(node: PlainNode, pod: Pod, device: int) -> list[int]:
    gpu, left = list(node.gpu), pod.gpu.count
    if device >= 0:
        gpu[device] -= pod.gpu.milli
    elif pod.gpu.milli:
        for i, free in enumerate(gpu):
            if left and free == 1000:
                gpu[i], left = 0, left - 1
    return gpu


def score(policy: str, node: PlainNode, pod: Pod, pods: list[Pod]) -> tuple[float, int]:
    """Score and device by the rules of the paper; raw for FGD, so that no noise decides."""
    free, asked = sum(node.gpu), pod.gpu.total_milli
    share = pod.gpu.count == 1 and 0 < pod.gpu.milli < 1000
    fitting = [i for i, left in enumerate(node.gpu) if left >= pod.gpu.milli]
    best = min(fitting, key=lambda i: node.gpu[i]) if share else -1
    cpu = node.cpu - pod.requests["cpu"]
    if policy == "best-fit":
        return floor((1 - (0.5 * cpu / 128000 + 0.5 * (free - asked) / 8000)) * 100), best
    if policy == "gpu-clustering":
        kind = kind_of(pod)
        if not kind:
            return 0, best
        base = (8000 - free) * 25 // 8000
        same, others = kind in node.kinds, bool(node.kinds - {kind})
        return base + (75 if same and not others else 50 if same else 0 if others else 25), best
    if policy == "gpu-packing":
        return packing(node, pod), best
    before = fragments(node, node.cpu, node.gpu, pods)
    options = [
        (100 / (1 + exp((fragments(node, cpu, taken(node, pod, device), pods) - before) / len(pods) / 1000)), -device)
        for device in (fitting if share else [-1])
    ]
    chosen = max(options, key=lambda option: (round(option[0], 9), option[1]))
    return round(chosen[0], 9), -chosen[1]


def packing(node: PlainNode, pod: Pod) -> int:
    if not pod.gpu.milli:
        return 0
    whole = sum(free == 1000 for free in node.gpu)
    if whole == len(node.gpu):
        return max(33 - whole, whole)
    chosen = sorted(free for free in node.gpu if free >= pod.gpu.milli)[: pod.gpu.count]
    used = sum(free == 1000 for free in chosen)
    return max(50 - used, 33) if used else max(100 - sum(free // 10 for free in chosen) // 10, 50)


def plain_run(policy: str, nodes: list[Node], pods: list[Pod], rank: list[int]) -> list[int]:
    cluster, rows = [PlainNode(node) for node in nodes], []
    for pod in pods:
        options = [
            (score(policy, node, pod, pods), -rank[row], row) for row, node in enumerate(cluster) if fits(node, pod)
        ]
        if not options:
            rows.append(-1)
            continue
        (_, device), _, row = max(options, key=lambda option: (option[0][0], option[1]))
        node = cluster[row]
        node.gpu = taken(node, pod, device)
        node.cpu, node.memory = node.cpu - pod.requests["cpu"], node.memory - pod.requests["memory"]
        node.pods -= 1
        node.kinds |= {kind_of(pod)} - {""}
        rows.append(row)
    return rows


node_lists = st.lists(
    st.tuples(
        st.sampled_from([8000, 16000, 32000]), st.sampled_from([16, 64]), st.sampled_from([2, 100]),
        st.sampled_from([(0, ""), (1, "T4"), (2, "T4"), (4, "V100"), (8, "G2")]),
    ), min_size=1, max_size=9,
)  # fmt: skip
pod_lists = st.lists(
    st.tuples(
        st.sampled_from([1000, 3000, 4000, 8000]), st.sampled_from([1, 4, 16]),
        st.sampled_from([(0, 0), (1, 0), (1, 300), (1, 470), (1, 800), (1, 1000), (2, 1000), (4, 1000)]),
        st.sampled_from(["", "", "T4", "T4|V100"]),
    ), min_size=1, max_size=40,
)  # fmt: skip


def make(node_rows: list, pod_rows: list) -> tuple[list[Node], list[Pod]]:
    nodes = [
        Node(f"n{i}", {"cpu": cpu, "memory": memory * GIB, "pods": limit}, gpu_count=gpus, gpu_model=model)
        for i, (cpu, memory, limit, (gpus, model)) in enumerate(node_rows)
    ]
    pods = [
        Pod(
            f"p{i}",
            requests={"cpu": cpu, "memory": memory * GIB},
            gpu=GpuRequest(count, milli, frozenset(filter(None, spec.split("|"))) if milli else frozenset()),
        )
        for i, (cpu, memory, (count, milli), spec) in enumerate(pod_rows)
    ]
    return nodes, pods


def compiled_run(policy: str, nodes: list[Node], pods: list[Pod], rank: list[int], **options: object) -> tuple:
    arrays, models = empty_nodes(nodes)
    shapes = np.array([pod_shape(pod, models) for pod in pods])
    tables = fragment_tables(typical_pods(pods, coverage=1), models, arrays.gpu.shape[1])
    episode = simulate(
        arrays, shapes, np.arange(len(pods)), tables, policy_number(policy), node_rank=np.array(rank), **options
    )
    return arrays, episode


@pytest.mark.parametrize("policy", ["best-fit", "gpu-clustering", "gpu-packing", "fgd"])
@given(node_lists, pod_lists, st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=60)
def test_places_every_pod_where_the_plain_rules_do(policy: str, node_rows: list, pod_rows: list, random) -> None:
    nodes, pods = make(node_rows, pod_rows)
    rank = random.sample(range(len(nodes)), len(nodes))
    raw = {"truncate": False, "device_rule": 3} if policy == "fgd" else {}
    arrays, episode = compiled_run(policy, nodes, pods, rank, **raw)
    expected = plain_run(policy, nodes, pods, rank)
    if policy == "fgd" and expected != episode.node.tolist():
        # Equal raw scores may differ in their last bit: then the first difference has to be a tie.
        assert_first_difference_is_a_tie(nodes, pods, expected, episode)
        return
    assert episode.node.tolist() == expected
    assert all((array >= 0).all() for array in (arrays.cpu, arrays.memory, arrays.pods, arrays.gpu))
    capacity = 1000 * sum(node.gpu_count for node in nodes)
    placed = sum(pod.gpu.total_milli for pod, row in zip(pods, expected, strict=True) if row >= 0)
    assert episode.used_milli[-1] == placed == capacity - arrays.gpu.sum()


def assert_first_difference_is_a_tie(nodes: list[Node], pods: list[Pod], expected: list[int], episode: Episode) -> None:
    step = next(i for i, (one, other) in enumerate(zip(expected, episode.node, strict=True)) if one != other)
    arrays, models = empty_nodes(nodes)
    tables = fragment_tables(typical_pods(pods, coverage=1), models, arrays.gpu.shape[1])
    shapes = np.array([pod_shape(pod, models) for pod in pods])

    def choose(i: int, _mask: object) -> tuple[int, int]:
        return expected[i], int(score_all("fgd", arrays, shapes[i], tables, truncate=False)[1][expected[i]])

    simulate_choices(choose, arrays, shapes, np.arange(step), tables)
    scores, _ = score_all("fgd", arrays, shapes[step], tables, truncate=False)
    assert scores[expected[step]] == pytest.approx(scores[episode.node[step]], abs=1e-6)


@given(node_lists, pod_lists)
@settings(deadline=None, max_examples=30)
def test_random_takes_feasible_nodes_only_and_fails_only_when_there_is_none(node_rows: list, pod_rows: list) -> None:
    nodes, pods = make(node_rows, pod_rows)
    rank = list(range(len(nodes)))
    _, episode = compiled_run("random", nodes, pods, rank, random_ties=True, device_rule=0, seed=3)
    arrays, models = empty_nodes(nodes)
    shapes = np.array([pod_shape(pod, models) for pod in pods])
    tables = fragment_tables(typical_pods(pods), models, arrays.gpu.shape[1])
    again = simulate_choices(
        lambda step, _mask: (int(episode.node[step]), -1), arrays, shapes, np.arange(len(pods)), tables
    )
    assert again.node.tolist() == episode.node.tolist()  # it raises where a pod does not fit
    assert again.used_milli.tolist() == episode.used_milli.tolist()


def test_learned_scorers_follow_the_rule_for_ties() -> None:
    nodes = [Node(f"n{i}", {"cpu": 10**6, "memory": 100 * GIB, "pods": 100}) for i in range(8)]
    pods = [Pod(f"p{i}", requests={"cpu": 1, "memory": 1}) for i in range(200)]
    arrays, models = empty_nodes(nodes)
    shape, tables = pod_shape(pods[0], models)[None, :], fragment_tables(typical_pods(pods), models, 0)
    indifferent = linear_scorer(np.zeros(len(FEATURES)), tables, np.zeros(len(models)))

    def rows(*, random_ties: bool) -> list[int]:
        return simulate(
            arrays.copy(), shape, np.zeros(200, dtype=np.int64), tables, policy_number("linear"), scorer=indifferent,
            node_rank=np.arange(8)[::-1].copy(), random_ties=random_ties, seed=1,
        ).node.tolist()  # fmt: skip

    assert rows(random_ties=False) == [7] * 100 + [6] * 100  # the smallest rank, until it is full
    assert set(rows(random_ties=True)[:100]) == set(range(8))


def test_random_is_uniform_over_feasible_nodes() -> None:
    nodes = [Node(f"n{i}", {"cpu": 10**6, "memory": GIB * (1 + 99 * (i % 2)), "pods": 10**5}) for i in range(8)]
    pods = [Pod(f"p{i}", requests={"cpu": 1, "memory": 2**21 + 2**20}) for i in range(20_000)]
    arrays, models = empty_nodes(nodes)
    shape = pod_shape(pods[0], models)[None, :]
    tables = fragment_tables(typical_pods(pods), models, 0)
    arrivals = np.zeros(20_000, dtype=np.int64)
    episode = simulate(arrays, shape, arrivals, tables, RANDOM, node_rank=np.arange(8), random_ties=True, seed=1)
    small = [(episode.node == row).sum() for row in range(0, 8, 2)]
    assert small == [341] * 4  # 1 GiB holds 341 pods of 3 MiB; then the others share the rest evenly
    large = np.array([(episode.node == row).sum() for row in range(1, 8, 2)])
    assert abs(large - large.mean()).max() < 4 * large.mean() ** 0.5


@pytest.mark.parametrize(
    ("gpu", "milli", "count", "expected"),
    [
        ([200, 1000, 1000, 500], 1000, 2, 48),
        ([1000] * 4, 1000, 2, 29),
        ([1000] * 8, 1000, 2, 25),
        ([200, 1000, 1000, 500], 200, 2, 93),
    ],
)
def test_packing_scores_of_the_published_program(gpu: list[int], milli: int, count: int, expected: int) -> None:
    one = np.ones(1, dtype=np.int64)
    nodes = NodeArrays(
        1000 * one, 96_000 * one, one, one, np.array([gpu], dtype=np.int64), len(gpu) * one, one, 0 * one
    )
    shape = np.array([100, 0, count, milli, -1, 1 + count], dtype=np.int64)
    assert gpu_packing(nodes, 0, shape) == expected


def test_a_linear_scorer_on_fgd_s_feature_is_raw_fgd() -> None:
    nodes, pods = make(
        [(32000, 64, 100, (4, "V100")), (16000, 64, 100, (2, "T4")), (32000, 64, 100, (8, "G2"))] * 3,
        [(1000 * (1 + i % 5), 1, [(1, 300), (1, 470), (1, 1000), (0, 0), (2, 1000)][i * 7 % 5], "") for i in range(60)],
    )
    arrays, models = empty_nodes(nodes)
    tables = fragment_tables(typical_pods(pods), models, 8)
    weights = np.zeros((len(GROUPS), len(FEATURES)))
    weights[:4, FEATURES.index("fgd")] = 100.0
    scorer = linear_scorer(weights, tables, np.zeros(len(models)))
    rng = np.random.default_rng(0)
    for pod in pods:
        shape = pod_shape(pod, models)
        raw, device = score_all("fgd", arrays, shape, tables, truncate=False)
        learned, same_device = score_all("linear", arrays, shape, tables, truncate=False, scorer=scorer)
        np.testing.assert_allclose(learned, raw, rtol=1e-12)
        mask = fits_all(arrays, shape)
        assert (np.isneginf(raw) == ~mask).all()
        if mask.any():
            row = int(rng.choice(np.flatnonzero(mask)))
            assert device[row] == same_device[row]
            simulate_choices(
                lambda _i, _m, r=row, d=int(device[row]): (r, d), arrays, shape[None], np.zeros(1, np.int64), tables
            )


@given(
    st.lists(st.integers(-1, 4), min_size=1, max_size=33),
    st.lists(st.tuples(st.integers(0, 32), st.integers(-1, 4)), max_size=20),
)
@settings(deadline=None, max_examples=80)
def test_tournament_finds_the_first_and_every_tied_best(scores: list[int], changes: list[tuple[int, int]]) -> None:
    half = leaves_for(len(scores))
    tree, ties = np.full(2 * half, -np.inf), np.zeros(2 * half, dtype=np.int32)
    values = [float(score) if score >= 0 else -np.inf for score in scores]
    tree[half : half + len(values)] = values
    build(tree)
    build_ties(tree, ties)
    for leaf, score in changes:
        if leaf < len(values):
            values[leaf] = float(score) if score >= 0 else -np.inf
            update_ties(tree, ties, leaf, values[leaf])
    best = max(values)
    if best == -np.inf:
        assert first_best(tree) == -1
        return
    tied = [i for i, value in enumerate(values) if value == best]
    assert first_best(tree) == tied[0]
    assert [nth_best(tree, ties, n) for n in range(ties[1])] == tied
    amount = np.array([i % 3 for i in range(len(values))], dtype=np.int64)
    allowed = [i for i, value in enumerate(values) if amount[i] >= 2 and value > -np.inf]
    expected = min(allowed, key=lambda i: (-values[i], i)) if allowed else -1
    assert first_best_where(tree, amount, np.arange(len(values)), 2)[0] == expected
