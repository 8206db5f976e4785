"""Files that were damaged on their way: each is read, or refused in one line; nothing else ever happens.

200 mutations of every kind of file that a person hands over: bytes changed, cut out, doubled and put in, the end cut
off, and words replaced by strange ones.
"""

import gzip
import json
import pickle
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aaml.commands.flags import read_yaml
from aaml.errors import UserError
from aaml.evaluation.leaderboard.entry import BoardEntry
from aaml.evaluation.policies import load
from aaml.evaluation.results import Results
from aaml.evaluation.run_spec import read_run_specs
from aaml.evaluation.scheduler_config import read_scheduler_config
from aaml.kube.objects import manifests
from aaml.learning.agents import make_agent
from aaml.learning.config import Dqn, QTable
from aaml.learning.qtable import BinnedState, QTableAgent
from aaml.live.experience import transitions
from aaml.live.explaining import logged
from aaml.live.shadow import read_report
from aaml.settings import changed
from aaml.telemetry.recording import read_recording
from aaml.training.records import read_config
from aaml.training.settings import TrainConfig
from aaml.workload.deployments import read_shapes
from aaml.workload.trace.events import Began, NodeSeen, to_line
from aaml.workload.trace.trace import Trace
from aaml.workload.trace.windows import read_split
from aaml.workload.traces import load_nodes, read_pods
from support import make

ROOT = Path(__file__).parents[2]
MODELS = ROOT / "models"
STRANGE = (
    b"nan", b"-1", b"1e999", b"-inf", b"null", b"[]", b"{}", b'""', b"9" * 40, b"\x00", b"\xff\xfe", b"\n", b",,",
    "\u00e4\u2603".encode(), b"true", b"0x10", b"!!python/object/apply:os.system ['echo hi']", b'"', b"- - -",
)  # fmt: skip


@cache
def network() -> bytes:
    """A network as an agent saves it, small enough for every part of the file to be hit."""
    with tempfile.TemporaryDirectory() as folder:
        return Path(make_agent(Dqn(hidden_size=2)).save(folder, "x")[0]).read_bytes()


@cache
def qtable() -> bytes:
    agent = QTableAgent(QTable())
    for number in range(3):
        agent.update(BinnedState((number, 1, 2), (0, 1), (0, 1)), 0, 0.5, None)
    with tempfile.TemporaryDirectory() as folder:
        return Path(agent.save(folder, "x")[0]).read_bytes()


def trace() -> bytes:
    events = [Began(at=0.0, source="a test"), *(NodeSeen(at=0.0, node=each) for each in make.nodes(2))]
    return gzip.compress(b"".join(map(to_line, events)))


NODES = b"sn,cpu_milli,memory_mib,gpu,model\nn-1,64000,262144,2,P100\nn-2,96000,393216,8,V100M32\n"
PODS = (
    b"name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,creation_time,deletion_time\n"
    b"p-1,12000,16384,1,1000,,LS,0,12537496\np-2,6000,12288,1,460,V100M16|V100M32,LS,427061,12902960\n"
)
RECORDING = (
    b"pod_name,action,reward,done,cpu_request,memory_request,cpu_a,cpu_b,memory_a,memory_b,pods_a,pods_b\n"
    b"default/p-1,1,-0.9,0,173m,2008Mi,0,0.25,0,0.5,0,3\ndefault/p-2,0,-1.5,1,2,1Gi,0,0.3,0,0.5,0,4\n"
)
SHAPES = (
    b"name,weight,replicas,cpu_request,mem_request,lifetime_s\nweb,5,5..15,50m..500m,64Mi..1Gi,\napi,3,2,1,1Gi,60\n"
)
SETTINGS = (
    b"agent: gnn\ntask: balance\nnodes: [10, 50]\nlearning_rate: 0.0003\nsteps: 60000\nhidden_size: 32\nseed: 7\n"
)
SIMON = b"""apiVersion: simon/v1alpha1
kind: Config
metadata: {name: tried}
spec:
  cluster: {customConfig: cluster}
  appList: [{name: web, path: apps/web}, {name: batch, path: apps/batch}]
  customConfig: {shufflePod: true, workloadTuningConfig: {ratio: 1.3, seed: 42}}
"""
PROFILE = b"""apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: default-scheduler
  plugins: {score: {enabled: [{name: BestFitScore, weight: 3}, {name: DotProductScore, weight: 1}]}}
"""
RESULTS = b"""task,nodes,policy,seed,mean_variance
balance,10,kube-scheduler,1,0.0021
balance,10,kube-scheduler,2,0.0034
balance,10,random,1,0.0456
balance,10,random,2,0.0501
"""
RUN = b'{"training": {"agent": "gnn", "task": "balance", "steps": 60000}, "stem": "gnn_balance_s0", "versions": {}}'
SPLIT = b'{"window_s": 600.0, "holdout_from_s": 7200.0}'
RUN_SPECS = (
    b'[{"task": "balance", "pods": 100, "policies": {"kube-scheduler": "kube-scheduler", "mine": "least-variance"}}]'
)
MANIFEST = b"""apiVersion: v1
kind: Pod
metadata: {name: p, namespace: default, labels: {app: web}}
spec:
  nodeSelector: {zone: a}
  tolerations: [{key: k, operator: Exists}]
  containers: [{name: c, resources: {requests: {cpu: 250m, memory: 1Gi}}}]
---
apiVersion: v1
kind: Node
metadata: {name: node}
status: {allocatable: {cpu: "4", memory: 8Gi, pods: "110"}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 3
  selector: {matchLabels: {app: web}}
  template: {metadata: {labels: {app: web}}, spec: {containers: [{name: c, resources: {requests: {cpu: "1"}}}]}}
"""


def shadow_log() -> bytes:
    value = {"policy": 0.25, "chosen": 0.5}
    line = {
        "uid": "u", "policy": "gnn", "agree": True, "chosen_feasible": True, "feasible_nodes": 4,
        "objectives": {"variance": value, "empty_nodes": value},
    }  # fmt: skip
    return json.dumps(line).encode() + b"\n" + json.dumps({**line, "uid": "v"}).encode() + b"\n"


def entry() -> bytes:
    return next((ROOT / "docs" / "results" / "leaderboard").rglob("*.json")).read_bytes()


def explanations() -> bytes:
    """Two lines as a live scheduler logs them."""
    explained = {
        "pod": "default/p", "asks": "cpu 250m", "policy": "gnn", "nodes": ["a", "b"], "of": 2, "mask": [True, False],
        "refusals": [["NodeResourcesFit", "Insufficient cpu"]], "scores": [0.5, None], "parts": {"room": [0.5, 0.25]},
        "parts_are": "sum", "chosen": 0, "number": 0, "time_s": 1.5, "seconds": {"policy": 0.001}, "notes": [],
    }  # fmt: skip
    line = json.dumps({"time": 1795389291.1, "kind": "explanation", "explanation": explained}).encode() + b"\n"
    return b'{"kind": "started"}\n' + line + line


def whole_trace(path: Path) -> object:
    return Trace.read(path.parent)


@dataclass(frozen=True)
class Kind:
    """A kind of file: what it is called, a good one, and what reads it."""

    file: str
    good: Callable[[], bytes]
    read: Callable[[Path], object]


KINDS = {
    "network": Kind("DQN_Model_x.pth", network, load),
    "linear": Kind("linear.json", (MODELS / "Linear_linear_balance_s7.json").read_bytes, load),
    "qtable": Kind("QTable_x.json", qtable, load),
    "scorer": Kind("scorer.npz", (MODELS / "openb_linear.npz").read_bytes, load),
    "nodes": Kind("nodes.csv", lambda: NODES, load_nodes),
    "pods": Kind("pods.csv", lambda: PODS, read_pods),
    "trace": Kind("trace/part-000001.jsonl.gz", trace, whole_trace),
    "settings": Kind("settings.yaml", lambda: SETTINGS, lambda path: changed(TrainConfig(), read_yaml(path, "config"))),
    "recording": Kind("sched.csv", lambda: RECORDING, lambda path: list(transitions(read_recording(path)))),
    "shapes": Kind("shapes.csv", lambda: SHAPES, read_shapes),
    "manifest": Kind("pod.yaml", lambda: MANIFEST, lambda path: manifests.load([path])),
    "simon": Kind("config.yaml", lambda: SIMON, manifests.read_simon),
    "profile": Kind("scheduler.yaml", lambda: PROFILE, read_scheduler_config),
    "results": Kind("results.csv", lambda: RESULTS, lambda path: str(Results.read(path).compare())),
    "entry": Kind("entry.json", entry, BoardEntry.read),
    "recipes": Kind("recipes.json", lambda: RUN_SPECS, lambda path: read_run_specs([path.parent])),
    "run": Kind("config.json", lambda: RUN, lambda path: read_config(path.parent)),
    "split": Kind("split.json", lambda: SPLIT, lambda path: read_split(path.parent)),
    "explanations": Kind("run.log", explanations, lambda path: logged(path, 0)),
    "shadow": Kind("shadow.jsonl", shadow_log, read_report),
}


FOREIGN = {
    "nothing": b"", "blank": b" \n\n", "picture": b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR", "zeros": bytes(4096),
    "program": b"\x7fELF\x02\x01\x01" + bytes(64), "zip": b"PK\x05\x06" + bytes(18), "gzip": gzip.compress(b"hello\n"),
    "pickle": pickle.dumps({"a": 1}), "page": b"<!DOCTYPE html>\n<html><body>404</body></html>\n", "number": b"42\n",
    "text": b"Hello, world.\n", "list": b"[1, 2, 3]\n", "utf-16": "name,cpu\na,1\n".encode("utf-16"),
}  # fmt: skip
TAKEN = {
    "manifest": {"simon", "profile", "blank", "nothing"},  # objects passed over and told, or none
    "shapes": {"pods"},  # a column `name` is all that shapes need
}


@st.composite
def damaged(draw: st.DrawFn, good: bytes) -> bytes:
    """Return a file that was damaged once to three times."""
    content = good
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(content)))
        end = min(len(content), start + draw(st.integers(0, 40)))
        match draw(st.sampled_from(["change", "cut", "double", "insert", "end", "strange"])):
            case "change":
                content = content[:start] + draw(st.binary(max_size=end - start)) + content[end:]
            case "cut":
                content = content[:start] + content[end:]
            case "double":
                content = content[:end] + content[start:]
            case "insert":
                content = content[:start] + draw(st.binary(max_size=20)) + content[start:]
            case "end":
                content = content[:start]
            case "strange":
                content = content[:start] + draw(st.sampled_from(STRANGE)) + content[end:]
    return content


def read(kind: Kind, folder: Path, content: bytes) -> str:
    """Return what a person is told of a file, "" when it is taken."""
    path = folder / kind.file
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    try:
        kind.read(path)
    except UserError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", KINDS)
def test_a_good_file_is_taken(name, tmp_path):
    assert read(KINDS[name], tmp_path, KINDS[name].good()) == ""


@pytest.mark.parametrize("name", KINDS)
def test_a_damaged_file_is_taken_or_refused_in_one_line(name, tmp_path):
    kind, refused = KINDS[name], []

    @settings(
        max_examples=200, deadline=None, derandomize=True, database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )  # fmt: skip
    @given(content=damaged(kind.good()))
    def check(content: bytes) -> None:
        with tempfile.TemporaryDirectory(dir=tmp_path) as folder:  # readers of traces remember a file by its path
            said = read(kind, Path(folder), content)
        assert "\n" not in said
        refused.append(bool(said))

    check()
    assert sum(refused) > 20


@pytest.mark.parametrize("name", KINDS)
def test_a_foreign_file_is_refused_in_one_line(name, tmp_path):
    """Every other kind's good file, and files of other programs; a model's name does not say of which kind it is."""
    others = {other: kind.good() for other, kind in KINDS.items() if kind.read is not KINDS[name].read}
    said = {other: read(KINDS[name], tmp_path, content) for other, content in (others | FOREIGN).items()}
    assert not [line for line in said.values() if "\n" in line]
    assert {other for other, line in said.items() if not line} == TAKEN.get(name, set())
