"""A KubeSchedulerConfiguration as a policy: read as kube-scheduler reads it, written as it takes it."""

import logging
import textwrap

import pytest
import yaml

from aaml.cluster.objects import HOSTNAME_LABEL
from aaml.errors import UserError
from aaml.evaluation.entries import PolicyEntry
from aaml.evaluation.evaluate import evaluate
from aaml.evaluation.leaderboard.entry import Who
from aaml.policies.kube_scores import DEFAULT_WEIGHTS, KubeSchedulerConfig
from aaml.policies.kube_scores.document import document, write_configuration
from aaml.policies.kube_scores.profile import read_profile
from support.kube_configurations import HEAD, MISTAKES

LEAST, MOST = "LeastAllocated", "MostAllocated"


@pytest.fixture
def read(tmp_path):
    def read(text, profile=""):
        path = tmp_path / "config.yaml"
        path.write_text(HEAD + textwrap.dedent(text), encoding="utf-8")
        return read_profile(f"kube-scheduler:{path}{profile and '#'}{profile}")

    return read


def weights(text, read):
    return dict(read(f"profiles:\n- plugins: {text}").config.weights)


def test_a_file_that_says_nothing_is_kube_schedulers_default_profile(read):
    found = read("")
    assert (found.scheduler_name, found.config, found.unmodelled) == ("default-scheduler", KubeSchedulerConfig(), ())


def test_weights_are_those_of_score_before_those_of_multi_point(read):
    found = weights("{multiPoint: {enabled: [{name: ImageLocality, weight: 5}, {name: NodeAffinity, weight: 7}]}, "
                    "score: {enabled: [{name: NodeAffinity, weight: 9}]}}", read)  # fmt: skip
    assert found == {**DEFAULT_WEIGHTS, "ImageLocality": 5, "NodeAffinity": 9}


def test_a_plugin_that_is_named_again_without_a_weight_counts_once(read):
    # mergePluginSet replaces the default (weight 3 of TaintToleration), and a weight of 0 is read as 1
    assert weights("{multiPoint: {enabled: [{name: TaintToleration}]}}", read)["TaintToleration"] == 1
    assert weights("{score: {enabled: [{name: TaintToleration}]}}", read)["TaintToleration"] == 1


def test_a_star_switches_off_all_plugins_but_those_that_are_enabled(read):
    found = weights("{score: {disabled: [{name: '*'}], enabled: [{name: NodeResourcesFit, weight: 2}]}}", read)
    assert found == {"NodeResourcesFit": 2}
    found = weights("{score: {disabled: [{name: NodeResourcesFit}, {name: ImageLocality}]}}", read)
    assert found == {
        name: n for name, n in DEFAULT_WEIGHTS.items() if name not in {"NodeResourcesFit", "ImageLocality"}
    }


def test_arguments_of_plugins_become_settings(read):
    found = read("""
        percentageOfNodesToScore: 30
        profiles:
        - pluginConfig:
          - name: NodeResourcesFit
            args:
              scoringStrategy:
                type: RequestedToCapacityRatio
                resources: [{name: cpu, weight: 3}, {name: nvidia.com/gpu}]
                requestedToCapacityRatio: {shape: [{utilization: 0, score: 0}, {utilization: 70, score: 10}]}
          - name: NodeResourcesBalancedAllocation
            args: {resources: [{name: cpu}, {name: memory}, {name: nvidia.com/gpu, weight: 1}]}
          - name: InterPodAffinity
            args: {hardPodAffinityWeight: 50, ignorePreferredTermsOfExistingPods: true}
          - name: PodTopologySpread
            args:
              defaultingType: List
              defaultConstraints: [{maxSkew: 2, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: ScheduleAnyway}]
    """)
    assert found.unmodelled == ()
    assert found.config == KubeSchedulerConfig(
        strategy="RequestedToCapacityRatio", resources=(("cpu", 3), ("nvidia.com/gpu", 1)), shape=((0, 0), (70, 10)),
        balanced_resources=("cpu", "memory", "nvidia.com/gpu"), hard_pod_affinity_weight=50,
        ignore_preferred_terms_of_existing_pods=True, percentage_of_nodes_to_score=30,
        default_spreading=((2, HOSTNAME_LABEL),), system_spreading=False,
    )  # fmt: skip


TWO = """
    percentageOfNodesToScore: 30
    profiles:
    - schedulerName: packing
      percentageOfNodesToScore: 100
      pluginConfig: [{name: NodeResourcesFit, args: {scoringStrategy: {type: MostAllocated}}}]
    - schedulerName: default-scheduler
"""


def test_a_profile_is_chosen_by_its_name_and_else_it_is_that_of_pods_that_name_none(read):
    assert (read(TWO).scheduler_name, read(TWO).config.percentage_of_nodes_to_score) == ("default-scheduler", 30)
    packing = read(TWO, "packing").config
    assert (packing.strategy, packing.percentage_of_nodes_to_score) == ("MostAllocated", 100)
    assert read(TWO.replace("default-scheduler", "other")).scheduler_name == "packing"  # the first
    wrong = r"'packng' is not accepted; did you mean packing\? Expected one of packing, default-scheduler"
    with pytest.raises(UserError, match=wrong):
        read(TWO, "packng")


def test_backoffs_are_read_and_written_where_they_are_not_the_usual_ones(read, tmp_path):
    assert read("podMaxBackoffSeconds: 10").config.backoff_s is None
    config, path = read("podInitialBackoffSeconds: 2\npodMaxBackoffSeconds: 3").config, tmp_path / "own.yaml"
    assert config.backoff_s == (2, 3)
    write_configuration(path, document(config))
    assert read_profile(f"kube-scheduler:{path}").config.backoff_s == (2, 3)
    assert document(KubeSchedulerConfig(), f"kube-scheduler:{path}")["podMaxBackoffSeconds"] == 10


def test_what_is_not_modelled_is_named_in_one_line(read, caplog):
    with caplog.at_level(logging.WARNING):
        found = read("""
            extenders: [{urlPrefix: "http://127.0.0.1:1", filterVerb: filter}]
            profiles:
            - plugins: {multiPoint: {enabled: [{name: Coscheduling}]}, filter: {disabled: [{name: NodePorts}]}}
              pluginConfig:
              - {name: NodeResourcesFit, args: {ignoredResources: [example.com/foo]}}
              - {name: Coscheduling, args: {anything: 1}}
        """)
    assert found.unmodelled == (
        "plugins that are not kube-scheduler's own (Coscheduling)", "filter without NodePorts",
        "NodeResourcesFit: ignored resources", "1 extender",
    )  # fmt: skip
    (line,) = caplog.messages
    assert line.endswith("; ".join(found.unmodelled))


@pytest.mark.parametrize("text", MISTAKES)
def test_what_kube_scheduler_refuses_is_refused_in_a_line(text, read):
    with pytest.raises(UserError, match=MISTAKES[text]) as error:
        read(text)
    assert "\n" not in str(error.value)


def test_another_version_another_kind_and_no_file_are_refused(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(HEAD.replace("/v1", "/v1beta3"), encoding="utf-8")
    with pytest.raises(UserError, match=r"v1beta3, KubeSchedulerConfiguration' is not accepted; expected .*/v1, Kube"):
        read_profile(f"kube-scheduler:{path}")
    with pytest.raises(UserError, match="exists"):
        read_profile("kube-scheduler:nowhere.yaml")


def test_what_is_written_is_read_as_it_was(tmp_path):
    config = KubeSchedulerConfig(
        weights={**DEFAULT_WEIGHTS, "NodeResourcesFit": 6} | {"NodeResourcesBalancedAllocation": 0},
        strategy="RequestedToCapacityRatio", resources=(("cpu", 2), ("memory", 5)), shape=((0, 10), (50, 7), (100, 0)),
        percentage_of_nodes_to_score=40,
    )  # fmt: skip
    write_configuration(tmp_path / "tuned.yaml", document(config), ["a note"])
    found = read_profile(f"kube-scheduler:{tmp_path / 'tuned.yaml'}").config
    assert {**found.weights, "NodeResourcesBalancedAllocation": 0} == config.weights
    assert (found.strategy, found.resources, found.shape) == (config.strategy, config.resources, config.shape)
    assert found.percentage_of_nodes_to_score == 40
    assert (tmp_path / "tuned.yaml").read_text(encoding="utf-8").startswith("# a note\napiVersion:")


def test_what_is_kube_schedulers_default_is_not_written():
    (profile,) = document(KubeSchedulerConfig())["profiles"]
    assert "plugins" not in profile
    assert "percentageOfNodesToScore" not in profile


def test_a_file_of_ones_own_keeps_everything_else(read, tmp_path):
    read("leaderElection: {leaderElect: false}" + TWO.replace("\n    ", "\n"))
    config = KubeSchedulerConfig(weights={**DEFAULT_WEIGHTS, "NodeResourcesFit": 4}, percentage_of_nodes_to_score=50)
    changed = document(config, f"kube-scheduler:{tmp_path / 'config.yaml'}")
    assert changed["leaderElection"] == {"leaderElect": False}
    packing, default = changed["profiles"]
    assert packing == yaml.safe_load(HEAD + textwrap.dedent(TWO))["profiles"][0]
    assert default["percentageOfNodesToScore"] == 50
    assert {"name": "NodeResourcesFit", "weight": 4} in default["plugins"]["score"]["enabled"]


@pytest.mark.parametrize(
    "off", ["multiPoint: {disabled: [{name: TaintToleration}]}", "preScore: {disabled: [{name: '*'}]}"]
)
def test_what_is_written_prepares_what_it_scores_by(read, tmp_path, off):
    """kube-scheduler fails for every pod where TaintToleration scores and its preScore is off."""
    read(f"profiles:\n- plugins:\n    {off}\n")
    base = f"kube-scheduler:{tmp_path / 'config.yaml'}"
    content = document(KubeSchedulerConfig(weights={"TaintToleration": 4, "ImageLocality": 1}), base)
    assert {"name": "TaintToleration"} in content["profiles"][0]["plugins"]["preScore"]["enabled"]
    assert {"name": "ImageLocality"} not in content["profiles"][0]["plugins"]["preScore"]["enabled"]
    write_configuration(tmp_path / "out.yaml", content)
    unmodelled = read_profile(f"kube-scheduler:{tmp_path / 'out.yaml'}").unmodelled
    assert not [each for each in unmodelled if each.startswith("preScore") and "TaintToleration" in each]


def test_a_configuration_is_a_policy_wherever_policies_are_named(tmp_path):
    write_configuration(tmp_path / "packing.yaml", document(KubeSchedulerConfig(strategy="MostAllocated")))
    spec = f"kube-scheduler:{tmp_path / 'packing.yaml'}"
    results = evaluate(["kube-scheduler", f"packing={spec}"], "compress", range(5), nodes=3, pods=60, progress=False)
    empty = results.frame().groupby("policy")["mean_empty_fraction"].mean()
    assert empty["packing"] > empty["kube-scheduler"]
    rows = results.frame()
    assert set(rows[rows["policy"] == "packing"]["policy_sha256"]) != {""}  # the file is part of a result
    assert (Who.of(PolicyEntry(spec)).kind, Who.of(PolicyEntry(spec, "packing")).name) == ("own", "packing")


@pytest.mark.parametrize("profiles", ["profiles: []", "profiles: null", ""])
def test_a_file_without_profiles_is_that_of_the_default_one(tmp_path, profiles):
    """kube-scheduler takes it so."""
    path = tmp_path / "scheduler.yaml"
    path.write_text(f"apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n{profiles}\n")
    (profile,) = document(KubeSchedulerConfig(), f"kube-scheduler:{path}")["profiles"]
    assert profile["schedulerName"] == "default-scheduler"
