"""Batched episodes against the simulator that they stand for: the same decisions give the same bits."""

from dataclasses import replace

import numpy as np
import pytest

from aaml.cluster.objects import GpuRequest, Node, Pod, PodGroup, Taint, Toleration
from aaml.cluster.quantity import CPU, MEMORY, PODS
from aaml.episodes.batch import BatchedEnv
from aaml.episodes.own_rewards import compile_reward
from aaml.episodes.plan import Plan
from aaml.episodes.rewards import REWARDS, pairwise_sum
from aaml.errors import UserError
from aaml.policies.fragment_meter import FragmentMeter
from aaml.policies.registry import make_reward
from aaml.scheduling.cycle import SchedulingCycle
from aaml.scheduling.lifetimes import LifetimeModel, expected_lifetimes
from aaml.scheduling.observation import NO_POD, NODE_FEATURES, ObservationSpec
from aaml.scheduling.ports import Decision
from aaml.scheduling.queue import QueueSettings
from aaml.scheduling.queue_sort import QueueSort
from aaml.scheduling.rewards import RewardOptions
from aaml.sim.cluster import SimCluster
from aaml.sim.task_episodes import TaskEpisodes
from aaml.sim.tasks import TASKS, find_task
from aaml.sim.timeline import Cordon
from aaml.workload.model import Workload

SIZES = (4, 7, 3)  # of neighbouring rows: the smaller ones are padded
GIB = 1 << 30


class Twin:
    """The simulator, driven as the environment drives it."""

    def __init__(self, cluster, reward, observation_spec, sort):
        self.cluster = cluster
        cluster.sort_queue(sort)
        self.cycle = SchedulingCycle(
            cluster, make_reward(reward, RewardOptions(observation_spec.fragmentation)), observation_spec
        )
        self._go_on()

    def _go_on(self):
        self.context = None
        while self.context is None and (pod := self.cluster.next_pod()) is not None:
            self.context = self.cycle.begin(pod)
        observation_spec, state = self.cycle.spec, self.cluster.state
        nothing = np.zeros(len(state), dtype=bool)
        now_s = self.cluster.now_s()
        self.seen = (
            self.context.observation if self.context else observation_spec.observe(state, NO_POD, nothing, now_s=now_s)
        )

    def step(self, row):
        feasible = row < len(self.context.mask) and self.context.mask[row]
        outcome = self.cycle.finish(self.context, Decision(row if feasible else None))
        self._go_on()
        return outcome.reward if feasible else -1.0


def same(seen, row, twin):
    n = len(twin.seen.mask)
    for name in ("nodes", "pairs", "mask"):
        array = getattr(seen, name)[row] if row is not None else getattr(seen, name)
        np.testing.assert_array_equal(array[:n], getattr(twin.seen, name), name, strict=True)
        assert not array[n:].any(), name
    np.testing.assert_array_equal(seen.pod[row] if row is not None else seen.pod, twin.seen.pod, "pod", strict=True)


def play(clusters, reward="balance", observation_spec=None, sort=None, queue=None, seed=0, threads=1):
    """Play one episode a row with random decisions, a twentieth of them infeasible, beside the simulator."""
    observation_spec = observation_spec or ObservationSpec()
    options = {} if queue is None else {"queue": queue}
    options |= {"reward": reward} if reward in REWARDS else {"own": compile_reward(make_reward(reward))}
    batch = BatchedEnv(
        lambda group, _number: Plan.of_cluster(clusters[group](), observation_spec.lifetime_model), len(clusters),
        observation_spec=observation_spec, expected=observation_spec.fragmentation, queue_sort=sort, restart=False,
        threads=threads, **options,
    )  # fmt: skip
    twins = [Twin(make(), reward, observation_spec, sort) for make in clusters]
    rng = np.random.default_rng(seed)
    seen = batch.reset()
    played = 0
    while batch.alive.any():
        actions = np.zeros(len(clusters), dtype=int)
        going = np.flatnonzero(batch.alive)
        for row in going:
            same(seen, row, twins[row])
            assert batch.now_s[row] == twins[row].cluster.now_s()
            assert batch.pending[row] == twins[row].cluster.pending_count()
            fitting = np.flatnonzero(seen.mask[row])
            actions[row] = rng.choice(fitting) if rng.random() < 0.95 else rng.integers(seen.mask.shape[1])
        step = batch.step(actions)
        played += len(going)
        ended = {each.row: each for each in step.ended}
        for row in going:
            earned = twins[row].step(actions[row])
            assert step.reward[row] == (earned if reward in REWARDS else pytest.approx(earned, rel=1e-12)), played
            over = twins[row].context is None
            assert over == (row in ended) == bool(step.terminated[row] or step.truncated[row])
            if over:
                assert step.truncated[row] == (twins[row].cluster.until_s < np.inf)
                same(ended[row].last, None, twins[row])
                assert dict(ended[row].metrics) == dict(twins[row].cluster.metrics())
    batch.close()
    return played, twins


def meter_of(task):
    return FragmentMeter.of(find_task(task).expected())


@pytest.mark.parametrize("task", TASKS)
def test_every_task_is_the_simulators_to_the_bit(task):
    clusters = [lambda n=n, row=row: find_task(task).build(row, n, pods=40 * n) for row, n in enumerate(SIZES)]
    spec = ObservationSpec(find_task(task).lookahead, lifetimes=True, fragmentation=meter_of(task))
    played, _ = play(clusters, find_task(task).reward, spec)
    assert played > 80


@pytest.mark.parametrize("remaining_lifetimes", ["learned", "known"])
@pytest.mark.parametrize("task", ["services-and-jobs", "churn", "waiting"])
def test_what_pods_are_expected_to_run_on_is_the_simulators_too(task, remaining_lifetimes):
    clusters = [lambda n=n, row=row: find_task(task).build(row, n, pods=60 * n) for row, n in enumerate(SIZES)]
    spec = ObservationSpec(
        lifetime_model=expected_lifetimes(remaining_lifetimes, find_task(task).expected()), fragmentation=meter_of(task)
    )
    played, twins = play(clusters, find_task(task).reward, spec)
    assert played > 300
    empty_in = [twin.seen.nodes[:, NODE_FEATURES.index("empty_in")] for twin in twins]
    assert np.ptp(np.concatenate(empty_in)) > 0.1


@pytest.mark.parametrize("sort", [None, QueueSort(), QueueSort(200.0, -300.0, 1500.0)])
@pytest.mark.parametrize("queue", [QueueSettings(), QueueSettings(initial_backoff_s=0.0), QueueSettings(30.0, 600.0)])
def test_pods_wait_in_the_same_order(sort, queue):
    def cluster(seed):
        built = find_task("waiting").build(seed, 3, pods=200)
        return SimCluster(built.state.nodes, built.workload, until_s=built.until_s, queue=queue)

    _, twins = play([lambda: cluster(1), lambda: cluster(2)], "waiting-time", ObservationSpec(3), sort, queue)
    assert all(twin.cluster.metrics()["rejected"] > 100 for twin in twins)


@pytest.mark.parametrize("remaining_lifetimes", ["learned", "known"])
def test_pods_wait_in_the_same_order_where_it_looks_at_how_long_they_run(remaining_lifetimes):
    task = find_task("churn@1.2")
    lifetime_model = expected_lifetimes(remaining_lifetimes, task.expected())
    spec = ObservationSpec(lifetime_model=lifetime_model)
    clusters = [lambda: task.build(1, 3, pods=150), lambda: task.build(2, 4, pods=150)]
    sort = QueueSort(100.0, rest=1.0, work=3.0)
    _, twins = play(clusters, "waiting-time", spec, sort.knowing(lifetime_model))
    _, others = play(clusters, "waiting-time", spec, QueueSort(100.0))
    assert all(twin.cluster.metrics()["rejected"] > 20 for twin in twins)
    assert [twin.cluster.metrics() for twin in twins] != [other.cluster.metrics() for other in others]


def test_an_order_by_how_long_pods_run_needs_something_that_is_expected():
    for sort in (QueueSort(rest=1.0), QueueSort(work=1.0)):
        with pytest.raises(UserError, match="nothing is expected"):
            BatchedEnv(lambda _group, _number: None, 1, queue_sort=sort)


@pytest.mark.parametrize("reward", [name for name in REWARDS if name != "bill"])
def test_every_reward_is_that_of_the_scheduling_cycle(reward):
    clusters = [
        lambda: find_task("fragmentation").build(3, 9),
        lambda: SimCluster(find_task("seed-a").make_nodes(4), find_task("balance").build(1, 4, pods=120).workload),
    ]
    play(clusters, reward, ObservationSpec(fragmentation=meter_of("fragmentation")), seed=4)


OWN_REWARDS = """
import numpy as np

def cheap(context, row):
    return -float(context.state.requested[row, 0] > 0.8 * context.state.allocatable[row, 0])

def level(state):
    used = state.requested[:, 0] / state.allocatable[:, 0]
    return -np.sqrt(used[state.capacity].var())

def crowded(context, row):
    return context.mask.sum() - 0.1 * context.queue_length + context.now_s / 100 + context.state.gpu_count[row]

def by_name(context, row):
    return float(context.pod.name.startswith("a"))
"""


@pytest.mark.parametrize(
    "reward", ["{0}:cheap", "{0}:level", "{0}:crowded", "{0}:cheap=0.5,{0}:level=2"], ids=lambda text: text[4:]
)
def test_a_reward_of_ones_own_is_compiled_as_it_stands_and_says_what_it_says_in_the_scheduling_cycle(reward, tmp_path):
    (tmp_path / "mine.py").write_text(OWN_REWARDS)
    clusters = [
        lambda: find_task("fragmentation").build(3, 9),
        lambda: SimCluster(find_task("seed-a").make_nodes(4), find_task("balance").build(1, 4, pods=120).workload),
    ]
    played, _ = play(clusters, reward.format(tmp_path / "mine.py"), seed=4, threads=2)
    assert played > 100


def test_what_compiled_code_cannot_see_is_named(tmp_path):
    (tmp_path / "mine.py").write_text(OWN_REWARDS)
    with pytest.raises(UserError, match="Unknown attribute 'pod'"):
        compile_reward(make_reward(f"{tmp_path / 'mine.py'}:by_name"))
    with pytest.raises(UserError, match="Balance is neither a function of"):
        compile_reward(make_reward("balance"))


@pytest.mark.parametrize("value", ["1.0 / (context.now_s - context.now_s)", "context.state.requested[row + 99, 0]"])
def test_a_compiled_reward_that_is_no_number_is_refused(value, tmp_path):
    (tmp_path / "mine.py").write_text(f"def mine(context, row):\n    return {value}\n")
    own = compile_reward(make_reward(f"{tmp_path / 'mine.py'}:mine"))
    batch = BatchedEnv(
        lambda _group, number: Plan.of_cluster(find_task("balance").build(number, 4, pods=20)), 2, own=own
    )
    seen = batch.reset()
    with pytest.raises(UserError, match=r"reward: (inf|nan) is not accepted"):
        batch.step(seen.mask.argmax(axis=1))
    batch.close()


def strange(seed):
    """Nodes and pods of all kinds that compiled episodes know; whole seconds, so that things happen at once."""
    rng = np.random.default_rng(seed)
    taint = Taint("special", "yes")
    nodes = [
        Node(
            f"n{i}", {CPU: int(rng.integers(0, 4)) * 4000, MEMORY: int(rng.integers(1, 5)) * 4 * GIB, PODS: 6}
            | ({"example.com/nic": 2} if i % 3 == 0 else {}),
            taints=(taint,) if i == 1 else (), unschedulable=i == 2, gpu_count=int(rng.integers(0, 4)),
            gpu_model=("A", "B")[i % 2],
        )
        for i in range(8)
    ]  # fmt: skip
    tolerations = ((), (Toleration("special", "Exists"),), (Toleration("", "Exists"),))
    gpus = (GpuRequest(), GpuRequest(1, 300), GpuRequest(1, 1000), GpuRequest(2, 1000), GpuRequest(1, 0),
            GpuRequest(1, 500, frozenset({"B"})), GpuRequest(1, 500, frozenset({"C"})))  # fmt: skip
    requests = ({}, {CPU: 1500}, {CPU: 3000, MEMORY: 3 * GIB}, {MEMORY: GIB}, {CPU: 500, "example.com/nic": 1},
                {CPU: 100, "example.com/unknown": 0}, {CPU: 100, "example.com/nowhere": 1})  # fmt: skip
    pods = tuple(
        Pod(
            f"p{i}", requests=requests[rng.integers(len(requests))], gpu=gpus[rng.integers(len(gpus))],
            tolerations=tolerations[rng.integers(3)], owner=("", "a", "b")[rng.integers(3)], created_s=float(i // 4),
            lifetime_s=None if rng.random() < 0.1 else float(rng.integers(1, 30)),
        )
        for i in range(160)
    )  # fmt: skip
    return SimCluster(nodes, Workload(pods), until_s=50.0 if seed % 2 else np.inf, invariants=True)


@pytest.mark.parametrize("seed", range(6))
def test_taints_models_devices_and_resources_that_few_nodes_have(seed):
    pods = strange(seed).workload.pods
    lifetime_model = LifetimeModel.of_history(pods) if seed % 3 == 0 else None
    spec = ObservationSpec(2, lifetimes=True, fragmentation=FragmentMeter.of(pods), lifetime_model=lifetime_model)
    _, twins = play([lambda: strange(seed), lambda: strange(seed + 100)], "fragmentation", spec, seed=seed)
    assert twins[0].cluster.metrics()["rejected"] > 20


@pytest.mark.parametrize("task", [*TASKS, "compress@0.1..0.7"])
def test_plans_by_seed_are_those_of_the_built_clusters(task):
    lifetime_model = LifetimeModel.of_history(find_task(task).expected()) if task == "services-and-jobs" else None
    drawn = TaskEpisodes(find_task(task), pods=70, lifetime_model=lifetime_model)
    for seed in (0, 5):
        ours, built = drawn.plan(seed, 4), Plan.of_cluster(find_task(task).build(seed, 4, pods=70), lifetime_model)
        assert ours.until_s == built.until_s
        for name in ("arrival_s", "lifetime_s", "kind", "limit_s"):
            np.testing.assert_array_equal(getattr(ours, name), getattr(built, name), strict=True)
        for name in ("request", "gpu", "picky"):
            np.testing.assert_array_equal(getattr(ours, name)[ours.shape], getattr(built, name)[built.shape])
        alike = [np.equal.outer(plan.owner, plan.owner) for plan in (ours, built)]  # who has whose owner
        np.testing.assert_array_equal(*alike)


def test_threads_change_nothing():
    clusters = [lambda row=row: find_task("balance").build(row, 150, pods=40) for row in range(5)]
    play(clusters, threads=3)


def episodes(group, number):
    return Plan.of_cluster(find_task("balance").build(10 * group + number, 3, pods=20 + group))


def test_a_group_sees_the_same_arrivals_and_the_groups_next_episode_follows_at_once():
    asked = []

    def source(group, number):
        asked.append((group, number))
        return episodes(group, number)

    batch = BatchedEnv(source, 2, group_size=3, threads=1)
    seen = batch.reset()
    assert asked == [(0, 0), (1, 0)]
    assert np.array_equal(seen.pairs[0], seen.pairs[2])
    assert not np.array_equal(seen.pairs[0], seen.pairs[3])
    firsts = {key: BatchedEnv(lambda _g, _n, key=key: episodes(*key), 1, threads=1).reset().pairs[0].copy()
              for key in ((0, 0), (0, 1), (1, 1))}  # fmt: skip
    ended = []
    for count in range(1, 46):
        fitting = [np.flatnonzero(mask) for mask in batch.seen.mask]
        step = batch.step([rows[copy % 3 % len(rows)] for copy, rows in enumerate(fitting)])
        for each in step.ended:
            ended.append((each.row, each.number, count, each.steps))
            if each.number == 0:
                assert np.array_equal(batch.seen.pairs[each.row], firsts[each.row // 3, 1])
    assert [each for each in ended if each[1] == 0] == [(row, 0, 20 + row // 3, 20 + row // 3) for row in range(6)]
    assert sorted(asked) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]


def test_the_same_actions_give_a_group_the_same_rewards_and_held_adds_up_to_the_averages():
    batch = BatchedEnv(episodes, 1, group_size=2, threads=1, restart=False)
    seen, held = batch.reset(), 0.0
    rng = np.random.default_rng(0)
    while batch.alive.any():
        step = batch.step(np.repeat(rng.choice(np.flatnonzero(seen.mask[0])), 2))
        assert step.reward[0] == step.reward[1]
        held = held + step.held[0]
    first, second = step.ended
    assert first.metrics == second.metrics
    assert held[0] / batch.now_s[0] == pytest.approx(first.metrics["mean_variance"])


def test_an_episode_may_be_cut_off_after_so_many_steps():
    batch = BatchedEnv(episodes, 1, max_steps=5, threads=1)
    batch.reset()
    for count in range(1, 11):
        step = batch.step([0])
        assert (bool(step.truncated[0]), bool(step.terminated[0])) == (count % 5 == 0, False)


def test_wrong_actions_are_refused():
    batch = BatchedEnv(episodes, 2, threads=1)
    with pytest.raises(RuntimeError, match="reset"):
        batch.step([0, 0])
    batch.reset()
    for actions in ([0], [0, 3], [-1, 0]):
        with pytest.raises(ValueError, match="actions"):
            batch.step(actions)


def test_what_compiled_episodes_do_not_know_is_refused():
    node, plain = Node("n", {CPU: 1000, MEMORY: GIB, PODS: 110}), Pod("p", requests={CPU: 100})
    for change in (
        {"priority": 1},
        {"node_selector": {"a": "b"}},
        {"group": PodGroup("g")},
        {"gates": ("g",)},
        {"node_name": "n"},
    ):
        with pytest.raises(UserError, match="default/p: it has"):
            Plan.of_cluster(SimCluster([node], Workload((replace(plain, **change),))))
    with pytest.raises(UserError, match="no timeline"):
        Plan.of_cluster(SimCluster([node], Workload((plain,)), timeline=(Cordon(1.0, "n"),)))
    for options in (
        {"reward": "rack-spread"},
        {"observation_spec": ObservationSpec(racks=True)},
        {"reward": "fragmentation"},
    ):
        with pytest.raises(UserError):
            BatchedEnv(episodes, 1, **options)
    heavy = replace(plain, requests={CPU: 2000})
    with pytest.raises(UserError, match="no pod that fits"):
        BatchedEnv(lambda _g, _n: Plan.of_cluster(SimCluster([node], Workload((heavy,)))), 1, threads=1).reset()


def test_sums_are_added_up_as_numpy_does_it():
    rng = np.random.default_rng(0)
    for count in (*range(300), 1213, 5000):
        values = rng.normal(size=count) * 10.0 ** rng.uniform(-5, 5, size=count)
        assert pairwise_sum(values, count) == values.sum()
