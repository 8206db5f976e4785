"""Files of every kind that a schema reads, mutated: each gives a value or one line, and no name is dropped in silence.

`AAML_MUTATIONS` sets how many mutations of a kind are drawn (200).
"""

import copy
import json
import logging
import os
import random
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aaml.commands.flags import read_yaml
from aaml.errors import UserError
from aaml.evaluation.policies import load, load_policy
from aaml.evaluation.run_spec import read_run_specs
from aaml.evaluation.scheduler_config import read_scheduler_config
from aaml.evolve.front import read_front
from aaml.evolve.search import read_config
from aaml.evolve.settings import EvolveConfig
from aaml.kube.objects.manifests import load as load_objects
from aaml.learning.config import QTable
from aaml.learning.qtable import BinnedState, QTableAgent
from aaml.live.node_template import NodeTemplate
from aaml.live.shadow import read_report
from aaml.nodes.catalogue_file import read_catalogue, shipped_catalogue, written_catalogue
from aaml.nodes.file import read_autoscaler
from aaml.nodes.prices import PriceList
from aaml.policies.formula_file import save_formula
from aaml.policies.formulas.policy import Formula
from aaml.policies.formulas.text import parse
from aaml.policies.kube_scores.profile import read_profile
from aaml.scheduling.observation import ObservationSpec
from aaml.settings import changed, plain
from aaml.training.records import read_config as read_run
from aaml.training.settings import TrainConfig
from aaml.workload.trace.windows import read_split

ROOT = Path(__file__).parents[2]
MUTATIONS = int(os.environ.get("AAML_MUTATIONS", "200"))
RAW = {
    "null": "null", "text": '"x"', "empty": '""', "true": "true", "zero": "0", "negative": "-1", "half": "0.5",
    "int64": str(2**63), "huge": "9" * 400, "endless": "9" * 5000, "infinite": "1e999", "nan": "NaN", "list": "[]",
    "mapping": "{}", "nested": "[" * 400 + "]" * 400, "several": '[1, "a", null, {"a": [{}]}]',
    "strange": '"\\u0000\\n"',
}  # fmt: skip
"""What is put in a value's place, as text."""
INPUTS = {"task": "a digest"}
MARK, RENAMED = "@@value@@", "renamedKey"


def nodepool() -> object:
    return yaml.safe_load("""
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: mine, annotations: {aaml.dev/batch-idle-duration: 5s, other: a}}
spec:
  limits: {cpu: "100"}
  weight: 10
  template:
    metadata: {labels: {team: a}}
    spec:
      nodeClassRef: {group: karpenter.k8s.aws, kind: EC2NodeClass, name: default}
      expireAfter: 720h
      taints: [{key: a, value: b, effect: NoSchedule}]
      requirements:
      - {key: karpenter.sh/capacity-type, operator: In, values: [spot, on-demand]}
      - {key: node.kubernetes.io/instance-type, operator: In, values: [compute-4]}
      - {key: karpenter.kwok.sh/instance-cpu, operator: Gt, values: ["2"], minValues: 1}
  disruption:
    consolidationPolicy: WhenEmpty
    consolidateAfter: 1m30s
    budgets: [{nodes: 20%}, {nodes: "3", schedule: "@daily", duration: 8h, reasons: [Empty]}]
""")


def node_template() -> object:
    return yaml.safe_load("""
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: mine}
spec:
  limits: {cpu: "100"}
  template:
    metadata: {labels: {team: a}, annotations: {note: b}}
    spec:
      nodeClassRef: {group: karpenter.k8s.aws, kind: EC2NodeClass, name: default}
      expireAfter: 720h
      terminationGracePeriod: 1h30m
      taints: [{key: a, value: b, effect: NoSchedule}]
      startupTaints: [{key: c, effect: NoExecute}]
      requirements: [{key: karpenter.sh/capacity-type, operator: In, values: [spot, on-demand]}]
  disruption: {consolidateAfter: 30s}
""")


def scheduler() -> object:
    return yaml.safe_load("""
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
parallelism: 8
podInitialBackoffSeconds: 1
profiles:
- schedulerName: default-scheduler
  percentageOfNodesToScore: 30
  plugins: {score: {enabled: [{name: NodeResourcesFit, weight: 3}], disabled: [{name: ImageLocality}]}}
  pluginConfig:
  - {name: NodeResourcesFit, args: {scoringStrategy: {type: MostAllocated, resources: [{name: cpu, weight: 1}]}}}
  - {name: InterPodAffinity, args: {hardPodAffinityWeight: 5}}
""")


def objects() -> object:
    pod = yaml.safe_load("""
nodeSelector: {zone: a}
priority: 0
schedulingGates: [{name: g}]
tolerations: [{key: a, operator: Exists, effect: NoExecute, tolerationSeconds: 3}]
topologySpreadConstraints:
- {maxSkew: 1, topologyKey: zone, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {app: web}}}
affinity:
  podAntiAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
    - {topologyKey: zone, labelSelector: {matchExpressions: [{key: app, operator: In, values: [web]}]}}
  nodeAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      nodeSelectorTerms: [{matchExpressions: [{key: zone, operator: Exists}]}]
containers:
- name: c
  image: web
  resources: {requests: {cpu: 250m}, limits: {memory: 1Gi}}
  ports: [{containerPort: 80, hostPort: 80}]
""")
    template = {"metadata": {"labels": {"app": "web"}}, "spec": pod}
    selector = {"matchLabels": {"app": "web"}}
    node = yaml.safe_load("""
apiVersion: v1
kind: Node
metadata: {name: a, labels: {zone: a}}
spec: {unschedulable: false, taints: [{key: a, value: b, effect: NoSchedule}]}
status: {allocatable: {cpu: "8", memory: 8Gi, pods: "10"}, images: [{names: [web], sizeBytes: 5}]}
""")
    apps = [
        {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": kind.lower()}, "spec": spec}
        for kind, spec in (
            ("Deployment", {"replicas": 2, "selector": selector, "template": template}),
            ("DaemonSet", {"selector": selector, "template": template}),
        )
    ]
    bare = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "annotations": {"a": "b"}}, "spec": pod}
    return {"apiVersion": "v1", "kind": "List", "items": [node, bare, *apps]}


def node_policy() -> object:
    return {
        "apiVersion": "aaml.dev/v1",
        "kind": "NodePolicy",
        "spec": {"idle_s": 8.0, "margin": 0.4, "most_at_once": 1},
    }


def descheduler() -> object:
    return yaml.safe_load("""
apiVersion: descheduler/v1alpha2
kind: DeschedulerPolicy
maxNoOfPodsToEvictPerNode: 5
nodeSelector: a=b
profiles:
- name: p
  pluginConfig:
  - {name: HighNodeUtilization, args: {thresholds: {cpu: 20, memory: 30.5}, numberOfNodes: 1}}
  - {name: DefaultEvictor, args: {noEvictionPolicy: Mandatory}}
  plugins: {balance: {enabled: [HighNodeUtilization]}}
""")


def catalogue() -> object:
    return json.loads(written_catalogue(shipped_catalogue({}).types[:2]))


def front() -> object:
    row = {"text": "pair.cpu_after", "training_loss": 0.5, "losses": [0.5, 0.25], "size": 1, "terms": 1, "latex": "c"}
    return [row, {**row, "text": "pair.cpu_after + 1"}]


ORIGIN = {"command": "aaml search formula", "seed": 0}


def formula() -> object:
    made = Formula(parse("pair.cpu_after + 0.5 * node.cpu_used"), ObservationSpec(lookahead=2), ORIGIN)
    with tempfile.TemporaryDirectory() as folder:
        save_formula(made, Path(folder) / "a.formula")
        return json.loads((Path(folder) / "a.formula").read_text())


def linear() -> object:
    return json.loads((ROOT / "models" / "Linear_linear_waiting_s0.json").read_text())


def qtable() -> object:
    agent = QTableAgent(QTable())
    agent.update(BinnedState((0, 1, 2), (0, 1), (0, 1)), 0, 0.5, None)
    with tempfile.TemporaryDirectory() as folder:
        return json.loads(Path(agent.save(folder, "x")[0]).read_text())


def run_specs() -> object:
    return [{"task": "balance", "pods": 10, "policies": {"a": "random"}, "instance_types": "types.json"}]


def shadow_line() -> object:
    value = {"policy": 0.25, "chosen": 0.5}
    return {
        "time": "2026-11-29T10:00:00", "pod": "default/p", "uid": "u", "policy": "gnn", "source": "a.pth",
        "sha256": "ab", "scheduler": "default-scheduler", "policy_node": "a", "chosen_node": "b", "chosen_pool": "",
        "agree": True, "chosen_feasible": True, "feasible_nodes": 4,
        "objectives": {"variance": value, "empty_nodes": value},
    }  # fmt: skip


def training() -> object:
    return {"stem": "gnn_balance_s0", "training": plain(TrainConfig().resolved)}


def read_training(path: Path) -> object:
    found = read_run(path.parent)
    assert found is not None
    return changed(TrainConfig(), found["training"])


def read_scheduler(path: Path) -> object:
    return [load_policy(name) for name in read_scheduler_config(path)]


@dataclass(frozen=True)
class Kind:
    """What a file is called, a good one, what reads it, and keys of mappings in which every name may stand."""

    file: str
    good: Callable[[], object]
    read: Callable[[Path], object]
    free: frozenset[str] = frozenset()


KINDS = {
    "NodePool": Kind("n.yaml", nodepool, read_autoscaler, frozenset({"annotations", "labels", "limits"})),
    "node template": Kind(
        "t.yaml",
        node_template,
        NodeTemplate.read,
        frozenset({"annotations", "labels", "metadata", "limits", "disruption"}),
    ),
    "objects": Kind(
        "o.yaml",
        objects,
        lambda path: load_objects([path]),
        frozenset({"annotations", "labels", "nodeSelector", "matchLabels", "requests", "limits", "allocatable"}),
    ),
    "KubeSchedulerConfiguration of apply": Kind("k.yaml", scheduler, read_scheduler),
    "KubeSchedulerConfiguration": Kind("k.yaml", scheduler, lambda path: read_profile(f"kube-scheduler:{path}")),
    "NodePolicy": Kind("p.yaml", node_policy, read_autoscaler),
    "DeschedulerPolicy": Kind("d.yaml", descheduler, read_autoscaler, frozenset({"plugins"})),
    "catalogue": Kind("c.json", catalogue, lambda path: read_catalogue(path, {}), frozenset({"resources"})),
    "price list": Kind("l.json", catalogue, PriceList.read, frozenset({"resources"})),
    "settings of a search": Kind("settings.json", lambda: plain(EvolveConfig()), lambda path: read_config(path.parent)),
    "front of a search": Kind("front.json", front, lambda path: read_front(path.parent)),
    "formula": Kind("f.formula", formula, load, frozenset({"provenance"})),
    "linear scorer": Kind("l.json", linear, load, frozenset({"models", "owners"})),
    "Q-table": Kind("q.json", qtable, load),
    "specs of runs": Kind(
        "recipes.json", run_specs, lambda path: read_run_specs([path.parent]), frozenset({"policies"})
    ),
    "split of a trace": Kind(
        "split.json", lambda: {"window_s": 600.0, "holdout_from_s": 7200.0}, lambda path: read_split(path.parent)
    ),
    "line of a shadow log": Kind("s.jsonl", shadow_line, lambda path: str(read_report(path))),
    "settings of a training": Kind(
        "t.yaml", lambda: plain(TrainConfig()), lambda path: changed(TrainConfig(), read_yaml(path, "config"))
    ),
    "record of a training": Kind("config.json", training, read_training),
}


@cache
def good(name: str) -> str:
    return json.dumps(KINDS[name].good())


def places(value: object, way: tuple[object, ...] = ()) -> Iterator[tuple[object, ...]]:
    """Every place in a value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        yield (*way, key)
        yield from places(each, (*way, key))


@dataclass(frozen=True)
class Mutated:
    """A file's bytes, and where a key was renamed."""

    content: bytes
    renamed: tuple[object, ...] | None = None


def mutated(name: str, how: str, rng: random.Random) -> Mutated:
    text = good(name)
    if how == "truncated":
        return Mutated(text.encode()[: rng.randrange(len(text))])
    if how == "bytes":
        at = rng.randrange(len(text))
        return Mutated(text[:at].encode() + rng.choice([b"\xff\xfe", b"\x00", b"\xc3", b"&a *a"]) + text[at:].encode())
    if how == "encoding":
        return Mutated(text.encode(rng.choice(["utf-16", "utf-32", "utf-8-sig", "cp037"])))
    content = copy.deepcopy(json.loads(text))
    way = rng.choice(list(places(content)))
    inside = content
    for step in way[:-1]:
        inside = inside[step]
    last = way[-1]
    if how in RAW:
        inside[last] = MARK
        return Mutated(json.dumps(content).replace(f'"{MARK}"', RAW[how]).encode())
    if isinstance(inside, list):
        inside.insert(last, inside[last])
        return Mutated(json.dumps(content).encode())
    if how == "dropped":
        del inside[last]
    elif how == "renamed":
        inside[RENAMED] = inside.pop(last)
        return Mutated(json.dumps(content).encode(), way)
    else:
        inside[MARK] = inside[last]
        return Mutated(json.dumps(content).replace(MARK, last).encode())
    return Mutated(json.dumps(content).encode())


class Heard(logging.Handler):
    """All that is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def told(kind: Kind, content: bytes) -> tuple[bool, str]:
    """Return whether a file is refused, and what is said of it."""
    heard, log = Heard(), logging.getLogger("aaml")
    log.addHandler(heard)
    try:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / kind.file
            path.write_bytes(content)
            kind.read(path)
    except UserError as error:
        return True, str(error)
    finally:
        log.removeHandler(heard)
    return False, " ".join(heard.lines)


@pytest.mark.parametrize("name", KINDS)
def test_a_good_file_is_taken(name):
    refused, said = told(KINDS[name], good(name).encode())
    assert not refused, said


@pytest.mark.slow
@pytest.mark.timeout(60 + MUTATIONS)
@pytest.mark.parametrize("name", KINDS)
def test_a_mutated_file_gives_a_value_or_one_line_and_drops_no_name(name):
    kind, refused = KINDS[name], []
    hows = [*RAW, "dropped", "renamed", "renamed", "doubled", "truncated", "bytes", "encoding"]

    @settings(
        max_examples=MUTATIONS, deadline=None, derandomize=True, database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )  # fmt: skip
    @given(how=st.sampled_from(hows), seed=st.integers(0, 2**32))
    def check(how: str, seed: int) -> None:
        made = mutated(name, how, random.Random(seed))
        is_refused, said = told(kind, made.content)
        assert not is_refused or "\n" not in said
        assert len(said) < 2000
        refused.append(is_refused)
        if made.renamed is not None and not kind.free.intersection(made.renamed[:-1]):
            assert is_refused or RENAMED in said, f"{made.renamed}: dropped in silence"

    check()
    assert sum(refused) > MUTATIONS // 4
