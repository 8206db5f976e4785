"""Tuning kube-scheduler's configuration: what is found, that it repeats, goes on, and says when there is nothing."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
import yaml

from aaml.cli import run
from aaml.cluster.objects import Node, Pod
from aaml.cluster.quantity import CPU, MEMORY, PODS
from aaml.errors import StoppedError, UserError
from aaml.evaluation.evaluate import evaluate
from aaml.policies.kube_scores import KubeSchedulerConfig
from aaml.policies.kube_scores.profile import read_profile
from aaml.sim.tasks import find_task
from aaml.study.problem import Problem
from aaml.study.study import JOURNAL, exists
from aaml.tuning.episodes import evaluate_configurations
from aaml.tuning.kube_scheduler import KubeSchedulerTuning, tune
from aaml.tuning.space import Space
from aaml.workload.trace.events import Began, Listed, NodeSeen, PodBound, PodEnded, PodSeen
from aaml.workload.trace.store import TraceWriter

FEW = {"generations": 2, "population": 6, "episodes": 4, "seeds": tuple(range(1000, 1006))}


@pytest.fixture
def asked(tmp_path):
    return KubeSchedulerTuning(replace(find_task("compress"), sizes=(4,), pods=60), tmp_path / "tuned.yaml", **FEW)


def test_what_is_written_packs_where_kube_scheduler_spreads_and_is_judged_alike_by_evaluate(asked):
    (found,) = tune(asked).found
    (gain,) = found.gains
    assert found.file == asked.out
    assert gain.against.verdict == "better"
    assert gain.against.difference.count == 6
    assert read_profile(f"kube-scheduler:{asked.out}").config == found.config
    judged = evaluate(["kube-scheduler", f"tuned=kube-scheduler:{asked.out}"], asked.task, asked.seeds, progress=False)
    empty = judged.frame().groupby("policy")["mean_empty_fraction"].mean()
    assert (empty["kube-scheduler"], empty["tuned"]) == pytest.approx((gain.stock, gain.tuned), rel=1e-12)
    assert str(gain) in asked.out.read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_same_settings_find_the_same_for_any_number_of_processes_and_after_a_stop(asked, tmp_path):
    tune(asked)
    whole = asked.out.read_bytes()
    tune(replace(asked, out=tmp_path / "two.yaml", workers=2))
    assert (tmp_path / "two.yaml").read_bytes() == whole
    rest = replace(asked, out=tmp_path / "rest.yaml")
    outcome = tune(replace(rest, generations=1))
    assert outcome.generations == 1
    assert tune(rest, resume=True).generations == 2
    assert (tmp_path / "rest.yaml").read_bytes() == whole


def kept(asked):
    """Return the lines of the study's journal."""
    return (asked.folder / JOURNAL).read_bytes().splitlines() if exists(asked.folder) else []


def test_who_stops_it_keeps_the_best_so_far_and_only_the_same_search_goes_on(asked):
    many = replace(asked, generations=1000)
    outcome = tune(many, stopped=lambda: len(kept(many)) > 30)  # in the first generations
    assert 0 < outcome.generations < 1000
    assert outcome.found[0].better
    with pytest.raises(UserError, match="belongs to a study with another seed"):
        tune(replace(many, seed=7), resume=True)
    with pytest.raises(UserError, match="holds a study already; go on with --resume"):
        tune(many)
    with pytest.raises(StoppedError):
        tune(replace(many, out=asked.out.with_name("other.yaml")), stopped=lambda: True)


def test_a_stop_while_the_result_is_judged_writes_nothing_and_the_search_is_kept(asked):
    few = replace(asked, generations=1)
    whole = tune(few)
    written = asked.out.read_bytes()
    asked.out.unlink()
    shutil.rmtree(asked.folder)

    def stopped(*_args, **_more):
        raise StoppedError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("aaml.tuning.kube_scheduler.evaluate", stopped)
        with pytest.raises(StoppedError):
            tune(few)
    assert not asked.out.exists()
    assert tune(few, resume=True).found == whole.found
    assert asked.out.read_bytes() == written


def test_two_metrics_give_a_front_of_files_best_by_the_first_metric_first(asked):
    found = tune(replace(asked, metrics=("mean_empty_fraction", "mean_variance"))).found
    assert 1 < len(found) <= 5
    assert [each.file.name for each in found if each.file] == [
        f"tuned-{number + 1}.yaml" for number, each in enumerate(found) if each.better
    ]
    first, last = ([gain.tuned for gain in each.gains] for each in (found[0], found[-1]))
    assert first[0] > last[0]
    assert first[1] > last[1]


def test_relative_values_count_by_the_logarithm_of_what_an_episode_came_to_before():
    problem = Problem(
        find_task("compress"), (1, 2), (4,), evaluate_configurations, relative=True
    )  # more is better: values are turned
    start, halved, doubled = (-np.array([[0.2], [0.1]]) * times for times in (1.0, 0.5, 2.0))
    losses = problem.losses(np.array([start, halved, doubled]), problem.scale(start))
    assert losses[:, 0] == pytest.approx([0.0, np.log(2.0), -np.log(2.0)])
    with pytest.raises(UserError, match="relative: an episode's value is 0 to begin with"):
        problem.scale(np.zeros((2, 1)))


def test_where_nothing_is_gained_nothing_is_written_and_a_line_says_so(tmp_path, capsys):
    out = tmp_path / "tuned.yaml"  # on one node all configurations are alike
    few = ["--generations=1", "--population=4", "--episodes=2", "--seeds=1000..1004", "--workers=1"]
    assert run("search scheduler", ["--task=balance", "--nodes=1", "--pods=20", *few, f"--out={out}"]) == 0
    assert "nothing was gained on mean_variance on held-out episodes: nothing is written" in capsys.readouterr().out
    assert not out.exists()
    assert run("search scheduler", ["--plugins=NodePort"]) == 2
    assert "plugins: 'NodePort' is not accepted; expected one of TaintToleration" in capsys.readouterr().err


def test_a_configuration_of_ones_own_is_where_it_begins_and_keeps_what_is_not_searched(asked, tmp_path):
    own = tmp_path / "own.yaml"
    head = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
    profiles = [{"schedulerName": "batch", "plugins": {"score": {"disabled": [{"name": "ImageLocality"}]}}}]
    own.write_text(yaml.safe_dump({**head, "parallelism": 8, "profiles": profiles}), encoding="utf-8")
    (found,) = tune(replace(asked, start=f"kube-scheduler:{own}")).found
    written = yaml.safe_load(asked.out.read_text(encoding="utf-8"))
    assert (written["parallelism"], written["profiles"][0]["schedulerName"]) == (8, "batch")
    assert "ImageLocality" not in found.config.weights


def test_plugins_that_say_what_pods_ask_for_keep_their_share():
    space, rng = Space(KubeSchedulerConfig()), np.random.default_rng(0)
    seen = set()
    for _ in range(300):
        weights = space.child([KubeSchedulerConfig()], rng).weights
        searched = weights["NodeResourcesFit"] + weights["NodeResourcesBalancedAllocation"]
        seen.add(searched)
        # 3 of TaintToleration to 1 + 1 in the default profile, as near as whole numbers come
        assert abs(weights["TaintToleration"] - 3 * searched / 2) <= 0.5
    assert len(seen) > 5


def test_the_share_of_nodes_to_score_is_searched_where_it_makes_a_difference():
    shares = {
        samples: {
            Space(KubeSchedulerConfig(), samples=samples)
            .child([KubeSchedulerConfig()], rng)
            .percentage_of_nodes_to_score
            for rng in map(np.random.default_rng, range(200))
        }
        for samples in (True, False)
    }
    assert len(shares[True]) > 3
    assert shares[False] == {0}


def test_a_recorded_trace_is_tuned_for_on_its_training_windows(tmp_path, capsys):
    folder = tmp_path / "trace"
    nodes = [Node(name, {CPU: 4000, MEMORY: 4 << 30, PODS: 10}) for name in ("a", "b", "c")]
    events = [Began(at=0.0), *(NodeSeen(at=0.0, node=node) for node in nodes), Listed(at=0.0)]
    for number in range(100):
        pod = Pod(f"p{number}", requests={CPU: 300, MEMORY: 256 << 20}, created_s=float(number), priority=number % 2)
        at = pod.created_s
        events += [PodSeen(at=at, pod=pod), PodBound(at=at, uid=pod.uid, node_name="abc"[number % 3])]
        events += [PodEnded(at=at + 5.0, uid=pod.uid, how="succeeded")]
    with TraceWriter(folder) as writer:
        for event in sorted(events, key=lambda each: each.at):
            writer.write(event)
    asked = [f"--task=compress@{folder}", "--generations=2", "--population=6", "--workers=1"]
    assert run("search scheduler", [*asked, f"--out={tmp_path / 'tuned.yaml'}"]) == 0
    said = capsys.readouterr().out
    assert f"next: aaml evaluate --task compress@{folder} --policies kube-scheduler tuned=kube-scheduler:" in said
    assert "better" in said
    assert read_profile(f"kube-scheduler:{tmp_path / 'tuned.yaml'}").config != KubeSchedulerConfig()
    seen = f"--seeds={(1 << 31) + 1_000_000}"  # no seed that is played, but it stands for a window that is
    assert run("search scheduler", [*asked, seen, f"--out={tmp_path / 'seen.yaml'}"]) == 2
    assert "expected episodes that are held out: the search plays these for training" in capsys.readouterr().err
