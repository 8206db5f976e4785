"""Streams of training jobs: who is drawn, what is kept back, and how jobs are judged, worked out by hand."""

import runpy
from dataclasses import replace
from pathlib import Path

import pytest

from aaml.cluster.objects import RACK_LABEL, GpuRequest, Pod, PodGroup
from aaml.episodes.plan import Plan
from aaml.errors import UserError
from aaml.evaluation.identity import identity
from aaml.evaluation.program import gangs_sha256
from aaml.policies.registry import make_policy
from aaml.scheduling import pod_groups
from aaml.scheduling.play import play
from aaml.sim import cluster as simulator
from aaml.sim.cluster import SimCluster
from aaml.sim.metrics import OF_JOBS
from aaml.sim.recorded import VALIDATION_SEEDS
from aaml.sim.tasks import find_task
from aaml.sim.training_jobs import JobRun, jain, job_metrics, use
from aaml.workload.gangs import Racks
from aaml.workload.training_jobs import TrainingJobs

TASK = find_task("train-philly")
HOUR_S = 3600.0


def jobs(pods: tuple[Pod, ...]) -> dict[str, list[Pod]]:
    found: dict[str, list[Pod]] = {}
    for pod in pods:
        found.setdefault(pod.owner, []).append(pod)
    return found


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten jobs, a day apart, of 2, 1, 2, 1 ... GPUs and 100, 200 ... 1000 s; the last three are held out."""
    rows = []
    for day in range(1, 11):
        runs_s, gpus, queue = 100 * day, 1 + day % 2, "early" if day <= 7 else "late"
        rows.append(f"2017-10-{day:02d} 00:00:00,{runs_s},{gpus},{runs_s * gpus},{queue}")
    (tmp_path / "philly.csv").write_text("\n".join(["timestamp,duration,num_gpus,gpu_time,cluster", *rows, ""]))
    monkeypatch.setenv("AAML_PHILLY", str(tmp_path))


@pytest.mark.parametrize(
    ("rows", "part", "told"),
    [
        ([], "holdout", "has no jobs; expected a line each under its header"),
        (
            ["2017-10-09 07:01:55,30,1,30,a"],
            "holdout",
            "no job in the last 30% of its time runs for 60 s; expected",
        ),
        (["2017-10-09 07:01:55,300,2,600,a"] * 9, "training", "no job in the first 70% of its time runs for 60 s"),
        (
            ["2017-10-09 07:01:55,60,512,30720,a"],
            "holdout",
            "its jobs ask for 512 GPUs or more; expected some of",
        ),
    ],
    ids=["header only", "all short", "all at one time", "all too large"],
)
def test_a_record_without_jobs_to_draw_is_one_line(tmp_path, monkeypatch, rows, part, told) -> None:
    file = tmp_path / "philly.csv"
    file.write_text("\n".join(["timestamp,duration,num_gpus,gpu_time,cluster", *rows, ""]))
    monkeypatch.setenv("AAML_PHILLY", str(tmp_path))
    with pytest.raises(UserError) as error:
        replace(TASK, draw=TrainingJobs(part=part)).build(1000, pods=10)
    assert str(error.value).startswith(f"{file}: {told}")
    assert "\n" not in str(error.value)


def test_the_difference_of_one_seed_has_no_interval() -> None:
    compared = runpy.run_path(str(Path(__file__).parents[3] / "benchmarks/bench_train_philly.py"))["compared"]
    assert compared([-5.0], 10.0) == "-50%"
    assert compared([-5.0, -4.0, -6.0, -5.5, -4.5], 10.0).startswith("-50% [-6")


def test_a_job_of_several_nodes_is_a_gang_of_one_rack_and_a_smaller_one_a_pod() -> None:
    cluster = TASK.build(1)
    drawn = jobs(cluster.workload.pods)
    assert len(drawn) == 150
    assert [node.labels[RACK_LABEL] for node in cluster.state.nodes[::8]] == [f"rack-{rack}" for rack in range(4)]
    for owner, pods in drawn.items():
        gpus = int(owner.partition("-")[2].partition("gpu")[0])
        assert [pod.gpu for pod in pods] == [GpuRequest(min(gpus, 8), 1000)] * max(gpus // 8, 1)
        wanted = PodGroup(owner.removeprefix("Job/"), gpus // 8, RACK_LABEL) if gpus > 8 else None
        assert {pod.group for pod in pods} == {wanted}
    assert sum(pods[0].lifetime_s or 0.0 for pods in drawn.values()) / 150 == pytest.approx(HOUR_S, rel=0.05)


@pytest.mark.parametrize("load", [0.7, 1.1])
@pytest.mark.parametrize("arrivals", ["poisson", "record"])
def test_jobs_ask_for_the_load_of_the_gpus(load, arrivals) -> None:
    task = replace(TASK, draw=TrainingJobs(arrivals=arrivals)).at_load(load)
    pods = task.build(1, pods=2000).workload.pods
    asked = sum(pod.gpu.count * (pod.lifetime_s or 0.0) for pod in pods)
    assert asked / (256 * pods[-1].created_s) == pytest.approx(load, rel=0.1)


@pytest.mark.usefixtures("record")
def test_what_is_judged_comes_from_the_last_part_of_the_record_and_what_is_learned_from_the_first() -> None:
    task = replace(TASK, draw=TrainingJobs(sizes="record"))

    def queues(pods) -> set[str]:
        return {pod.namespace for pod in pods}

    assert queues(task.build(1).workload) == {"late"}
    assert queues(task.build(VALIDATION_SEEDS).workload) == queues(task.build((1 << 31) + 5).workload) == {"early"}
    assert queues(task.expected()) == {"early"}
    whole = replace(TASK, draw=TrainingJobs(sizes="record", part="whole"))
    assert queues(whole.build(1).workload) == {"early", "late"}


@pytest.mark.usefixtures("record")
def test_the_records_own_jobs_come_in_their_order_and_rhythm() -> None:
    """Seven jobs of 100 to 700 s, a day apart, are scaled by nine; 8 GPUs are half used for as long as they come."""
    task = replace(
        TASK, make_nodes=Racks((1,)), draw=TrainingJobs(0.5, sizes="record", arrivals="record", part="training")
    )
    pods = task.build(3, nodes=1, pods=7).workload.pods
    assert [pod.lifetime_s for pod in pods] == pytest.approx([900.0 * day for day in range(1, 8)])
    assert [pod.gpu.count for pod in pods] == [2, 1, 2, 1, 2, 1, 2]
    span_s = 900.0 * (1 * 2 + 2 + 3 * 2 + 4 + 5 * 2 + 6 + 7 * 2) / (0.5 * 8)
    assert [pod.created_s for pod in pods] == pytest.approx([span_s * day / 6 for day in range(7)])


def test_racks_have_any_shape_and_what_no_rack_holds_is_not_drawn() -> None:
    task = replace(TASK, make_nodes=Racks((2, 3), gpus_per_node=4))
    cluster = task.build(1, nodes=7)
    assert [node.labels[RACK_LABEL][-1] for node in cluster.state.nodes] == ["0", "0", "1", "1", "1", "2", "2"]
    assert max(len(pods) for pods in jobs(cluster.workload.pods).values()) == 2, "of 8 GPUs: a rack holds 12"
    loose = replace(TASK, make_nodes=Racks(()), draw=TrainingJobs(cpu_milli_per_gpu=4000, memory_per_gpu=1 << 30))
    gangs = [pod for pod in loose.build(1).workload if pod.group is not None]
    assert {pod.group.topology_key for pod in gangs} == {""}
    assert {pod.requests["cpu"] for pod in gangs} == {32_000}
    with pytest.raises(UserError, match="nodes: 1 is not accepted; expected racks of at least 2 GPUs"):
        replace(TASK, make_nodes=Racks((1,), gpus_per_node=1)).build(1, nodes=1)


def test_without_the_record_one_line_says_how_to_get_it(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("AAML_PHILLY", str(tmp_path))
    with pytest.raises(
        UserError, match=r"philly.csv is not in .*: get it with `aaml trace fetch philly`, or set AAML_"
    ):
        TASK.build(1)
    with pytest.raises(UserError, match="trace: 'default' is not accepted; expected none: train-philly draws"):
        TASK.build(1, trace="default")


def test_gpus_are_stranded_while_somebody_waits_for_no_more_than_are_free() -> None:
    """Of 16 GPUs A holds 12 for 100 s, B asks for 4 at 10 and gets them at 30, C for 8 at 20, D for all at 50.

    Busy: 12 for 50 s and 4 for 20 s of 16 for 50 s. Stranded: 4 from 10 to 30, for B; C asks for more than is free.
    """
    stream = [
        JobRun("a", 12, 2, 0.0, 0.0, True, 100.0),
        JobRun("a", 4, 1, 10.0, 20.0, True, 100.0),
        JobRun("a", 8, 1, 20.0, 80.0, True, 100.0),
        JobRun("a", 16, 1, 50.0, 500.0, False, 100.0),
    ]
    assert use(stream, 16) == pytest.approx(((12 * 50 + 4 * 20) / 800, 4 * 20 / 800))
    assert use([], 16) == (0.0, 0.0)
    assert jain([1.0, 1.0, 1.0]) == 1.0
    assert jain([1.0, 0.0, 0.0, 0.0]) == 0.25
    assert jain([1.0, 3.0]) == pytest.approx(16 / 20)


def a_job(name: str, gpus: int, at_s: float, runs_s: float, queue: str = "a") -> list[Pod]:
    parts = max(gpus // 8, 1)
    group = PodGroup(name, parts, RACK_LABEL) if parts > 1 else None
    return [
        Pod(
            f"{name}-{part}", queue, gpu=GpuRequest(gpus // parts, 1000), group=group, created_s=at_s, lifetime_s=runs_s
        )
        for part in range(parts)
    ]


def test_jobs_are_judged_by_their_class_and_a_gang_is_one_job() -> None:
    """One rack of two nodes. A holds a GPU for 600 s, so the gang G (16) waits from 100 to 600, N (8) starts at once.

    G backs off for 1, 2, 4, 8 and then 14 s (ten times the root of two), and a second more, as backoffs end by the
    second: it is tried at 100, 102, 105, 110, 119 and then each 15 s, 614 the first after 600. Its slowdown is
    (514 + 1000) / 1000, those of the others 1: queues have 1.257 and 1.
    """
    pods = [*a_job("A", 1, 0.0, 600.0), *a_job("N", 8, 50.0, 30.0, "b"), *a_job("G", 16, 100.0, 1000.0)]
    cluster = SimCluster(Racks((2,))(2), pods, further_metrics=job_metrics)
    play(cluster, make_policy("first-fit"))
    found = cluster.metrics()
    assert found["gang_job_wait_mean_s"] == found["job_wait_max_s"] == 514.0
    assert (found["small_job_wait_mean_s"], found["node_job_wait_p99_s"]) == (0.0, 0.0)
    assert found["job_wait_mean_s"] == pytest.approx(514 / 3)
    assert found["job_completion_mean_s"] == pytest.approx((600 + 30 + 1514) / 3)
    assert found["job_slowdown"] == pytest.approx((1 + 1 + 1.514) / 3)
    assert found["queue_fairness"] == pytest.approx(2.257**2 / (2 * (1.257**2 + 1)))
    assert cluster.fork().metrics() == found


def test_a_task_of_jobs_has_its_metrics_and_no_other_task_has() -> None:
    assert set(OF_JOBS) <= set(TASK.build(1, pods=3).metrics())
    TASK.check_metric("gpus_stranded")
    with pytest.raises(UserError, match="metric of balance: 'gpus_stranded' is not accepted"):
        find_task("balance").check_metric("gpus_stranded")
    with pytest.raises(UserError, match="compiled episodes"):
        Plan.of_cluster(TASK.build(1, pods=3))


def test_a_gang_that_would_fail_again_is_not_tried_and_starts_when_it_would_have(monkeypatch) -> None:
    def played() -> tuple[dict[str, float], int]:
        cluster = TASK.build(5, pods=60)
        decisions = play(cluster, make_policy("first-fit")).decisions
        return dict(cluster.journal.waited_s), decisions

    waits, decisions = played()
    monkeypatch.setattr(simulator, "_are_alike", lambda _pods: False)
    assert played()[0] == waits
    assert max(waits.values()) > HOUR_S
    assert decisions < played()[1] / 2


def test_the_identity_of_its_results_is_that_of_the_record_and_of_how_gangs_are_placed(tmp_path, monkeypatch) -> None:
    before = identity(TASK)["task_sha256"]
    assert before == identity(TASK, policy="rack-packing")["task_sha256"] != ""
    monkeypatch.setattr(pod_groups, "placement_scores", lambda full, _counts: [-each for each in full])
    gangs_sha256.cache_clear()
    assert identity(TASK)["task_sha256"] != before
    monkeypatch.undo()
    gangs_sha256.cache_clear()
    assert identity(TASK)["task_sha256"] == before
    (tmp_path / "philly.csv").write_text("another\n")
    monkeypatch.setenv("AAML_PHILLY", str(tmp_path))
    assert identity(TASK)["task_sha256"] != before


def test_with_one_pool_a_job_waits_for_its_number_of_gpus_alone_the_one_of_the_least_gpu_time_first() -> None:
    """Of 8 GPUs A holds 6 until 100. B (4 for 50 s) comes before C (4 for 10 s) and D (2 for 500 s, which fits).

    At 100 six are free again: C goes first, then B would need 4 of 2 and waits for C's end at 110.
    """
    come = [("A", 6, 0.0, 100.0), ("B", 4, 10.0, 50.0), ("C", 4, 20.0, 10.0), ("D", 2, 30.0, 500.0)]
    jobs = [JobRun(name, gpus, 1, at_s, 0.0, False, runs_s) for name, gpus, at_s, runs_s in come]
    pooled = runpy.run_path(str(Path(__file__).parents[3] / "benchmarks/bench_train_philly.py"))["pooled"]
    assert [(job.queue, job.wait_s) for job in pooled(jobs, 8)] == [("A", 0.0), ("B", 100.0), ("C", 80.0), ("D", 0.0)]
