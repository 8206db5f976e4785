"""Objects from YAML, as a user of the Go simulator has them, and the words that bad files get."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from aaml.cluster.objects import Pod, PodGroup
from aaml.cluster.quantity import LARGEST
from aaml.cluster.selectors import UNSCHEDULABLE_TAINT, matches_required_nodes, tolerated
from aaml.errors import UserError
from aaml.kube.objects.manifests import load, pods_like, read_simon

NODE = """apiVersion: v1
kind: Node
metadata: {name: gpu-0, labels: {kubernetes.io/hostname: gpu-0, alibabacloud.com/gpu-card-model: V100}}
status: {allocatable: {cpu: 64, memory: 256000Mi, pods: '110', alibabacloud.com/gpu-count: '2'}}
"""
WORKLOADS = """apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec:
  replicas: 3
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}, annotations: {alibabacloud.com/gpu-count: '1', alibabacloud.com/gpu-milli: '500'}}
    spec: {containers: [{name: c, resources: {requests: {cpu: 250m, memory: 1Gi}}}]}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: agent}
spec:
  selector: {matchLabels: {app: agent}}
  template: {metadata: {labels: {app: agent}}, spec: {containers: [{name: c}]}}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {}
"""


REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
SPREAD = "{maxSkew: 1, topologyKey: zone"
IS_B = "[{key: a, operator: Is, values: [b]}]"
OF_ITS_OWN = "selector: {matchLabels: {app: x}}, template: {metadata: {labels: {app: x}}"
IS_ON = "[{key: metadata.name, operator: In, values: [two]}]"
TEMPLATE = "template: {metadata: {labels: {app: web}}, spec: {containers: [{name: c}]}}"
SELECTOR = f"{{matchExpressions: {IS_B}}}"


def files(tmp_path: Path, **contents: str) -> Path:
    for name, text in contents.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    return tmp_path


def test_workloads_become_the_pods_that_controllers_would_make(tmp_path: Path, caplog) -> None:
    read = load([files(tmp_path, nodes=NODE, apps=WORKLOADS)])
    (node,) = read.nodes
    assert (node.gpu_count, node.gpu_model, node.allocatable["cpu"]) == (2, "V100", 64_000)
    assert [pod.key for pod in read.pods] == ["shop/web-0", "shop/web-1", "shop/web-2", "default/agent-gpu-0"]
    web, agent = read.pods[0], read.pods[3]
    assert (web.gpu.count, web.gpu.milli, web.requests["cpu"], web.labels["app"]) == (1, 500, 250, "web")
    assert len({pod.owner for pod in read.pods[:3]}) == 1
    assert matches_required_nodes(agent, node)
    assert not matches_required_nodes(agent, replace(node, name="gpu-1"))
    assert read.passed_over == {"Service": 1}
    assert "left out, for they are no nodes, pods or workloads of known kinds: 1 Service" in caplog.text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            f"kind: Deployment\nmetadata: {{name: d}}\nspec: {{replicas: -1, {OF_ITS_OWN}, spec: {{}}}}}}\n",
            r"Deployment d\): spec\.replicas: -1",
        ),
        ("kind: Deployment\nmetadata: {name: d}\nspec: {}\n", r"spec: missing .*template"),
        ("kind: Deployment\nmetadata: {name: d}\nspec: {template: {}}\n", r"spec\.template: missing .*spec"),
        ("metadata: {name: d}\n", "kind: None is not accepted"),
        (
            "kind: Pod\nmetadata: {name: p}\nspec: {containers: 3}\n",
            r"bad\.yaml, .* \(Pod p\): spec\.containers: .*array",
        ),
        ("kind: Node\nmetadata: {name: one}\nstatus: {allocatable: {cpu: lots}}\n", r"Node one\).*lots"),
        ("kind: Deployment\nmetadata: {name: d}\nspec: yes please\n", r"Deployment d\): spec: .*'yes please'"),
        ("kind: Deployment\nmetadata: web\nspec: {template: {spec: {}}}\n", r"metadata: .*'web'"),
        (
            "kind: Job\nmetadata: {name: j}\nspec: {template: {metadata: web, spec: {}}}\n",
            r"ate\.metadata: .*'web'",
        ),
        (
            f"kind: DaemonSet\nmetadata: {{name: d}}\nspec: {{{OF_ITS_OWN}, spec: {{overhead: {{cpu: x}}}}}}}}\n",
            r"Set d\).*'x'",
        ),
        ("kind: Pod\nspec: {}\n", r"metadata\.name: missing"),
        (
            "kind: Pod\nmetadata: {name: p}\nspec: {nodeSelectors: {a: b}}\n",
            r"'spec\.nodeSelectors'; did you mean",
        ),
        ("kind: Node\nmetadata: {name: one}\nspec: {unschedulabel: true}\n", r"unknown field 'spec\.unschedulabel'"),
        (
            "kind: Deployment\nmetadata: {name: d}\nspec: {replica: 3, template: {spec: {}}}\n",
            r"'spec\.replica'; did",
        ),
        (
            "kind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c, resources: {request: {cpu: 3}}}]}\n",
            r"'spec\.containers\[0\]\.resources\.request'; did you mean requests",
        ),
        (
            "kind: Pod\nmetadata: {name: p}\nspec: {containers: [{resources: {requests: {cpu: 7, cpu: 10m}}}]}\n",
            r"key 'cpu' stands twice",
        ),
        (
            "kind: PriorityClass\nmetadata: {name: high}\nvalu: 3\n",
            r"PriorityClass high\): unknown field 'valu'; did you mean value",
        ),
        ("kind: List\nitem: []\n", r"unknown field 'item'"),
        ("kind: List\nitems: [web]\n", r"items\[0\]: str"),
    ],
)
def test_bad_objects_are_named_with_their_field(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        load([files(tmp_path, bad=text)])


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("tolerations: [{operator: Exist}]", r"tolerations\[0\]\.operator: 'Exist' .*Exists, Equal, Lt, Gt"),
        ("tolerations: [{key: a, effect: NoSchedul}]", r"effect: 'NoSchedul' is not accepted; did you mean NoSchedule"),
        (f"topologySpreadConstraints: [{SPREAD}, whenUnsatisfiable: Soft}}]", "whenUnsatisfiable: 'Soft' .*Schedule"),
        (f"topologySpreadConstraints: [{SPREAD}}}]", "whenUnsatisfiable: missing; expected one of DoNotSchedule"),
        ("topologySpreadConstraints: [{maxSkew: 0, topologyKey: a, whenUnsatisfiable: DoNotSchedule}]", "maxSkew: 0 "),
        (f"affinity: {{podAntiAffinity: {{{REQUIRED}: [{{labelSelector: {{}}}}]}}}}", "topologyKey: missing"),
        (
            f"affinity: {{nodeAffinity: {{{REQUIRED}: {{nodeSelectorTerms: [{{matchFields: {IS_B}}}]}}}}}}",
            r"matchFields\[0\]\.operator: 'Is' .*In, NotIn, Exists, DoesNotExist, Gt, Lt",
        ),
        (
            f"affinity: {{podAffinity: {{{REQUIRED}: [{{topologyKey: a, labelSelector: {SELECTOR}}}]}}}}",
            r"matchExpressions\[0\]\.operator: 'Is'",
        ),
    ],
)
def test_words_that_the_api_does_not_know_are_named(tmp_path: Path, spec: str, words: str) -> None:
    with pytest.raises(UserError, match=rf"Pod p\): spec\..*{words}"):
        load([files(tmp_path, bad=f"kind: Pod\nmetadata: {{name: p}}\nspec: {{{spec}}}\n")])
    with pytest.raises(UserError, match=r"Node one\): spec\.taints\[0\]\.effect: 'Not' .*NoSchedule, Prefer"):
        load([files(tmp_path, bad="kind: Node\nmetadata: {name: one}\nspec: {taints: [{key: a, effect: Not}]}\n")])


def test_fields_that_scheduling_does_not_read_and_nulls_are_taken(tmp_path: Path) -> None:
    text = """
kind: List
metadata: {resourceVersion: ""}
items:
- kind: StatefulSet
  apiVersion: apps/v1
  metadata: {name: db, generation: 3, managedFields: [{manager: kubectl}], finalizers: [a/b]}
  spec:
    replicas: null
    serviceName: db
    volumeClaimTemplates: [{metadata: {name: data}}]
    selector: {matchLabels: {app: db}}
    template:
      metadata: {labels: {app: db}}
      spec:
        nodeName: null
        serviceAccountName: db
        tolerations: [{key: a, operator: Exists, effect: NoExecute, tolerationSeconds: 30}]
        volumes: [{name: v, emptyDir: {medium: Memory}}]
        containers:
        - {name: c, image: db, env: [{name: A, value: b}], livenessProbe: {exec: {}}, ports: [{containerPort: 1}]}
  status: {readyReplicas: 1}
"""
    assert [pod.key for pod in load([files(tmp_path, all=text)]).pods] == ["default/db-0"]


def pods_of(tmp_path: Path, text: str) -> dict[str, Pod]:
    return {pod.name: pod for pod in load([files(tmp_path, all=text)]).pods}


def test_what_a_pod_limits_and_does_not_request_is_requested_as_the_api_server_has_it(tmp_path: Path) -> None:
    """The requests are those of a real API server (`kubectl apply --dry-run=server`)."""
    pods = pods_of(
        tmp_path,
        """
kind: Pod
metadata: {name: limited}
spec:
  containers:
  - {name: a, resources: {limits: {cpu: 1, memory: 1Gi, nvidia.com/gpu: 1}}}
  - {name: b, resources: {requests: {cpu: 100m}, limits: {cpu: 1, memory: 1Gi}}}
  initContainers: [{name: i, resources: {limits: {cpu: 3}}}]
---
kind: Deployment
metadata: {name: whole}
spec:
  selector: {matchLabels: {app: whole}}
  template:
    metadata: {labels: {app: whole}}
    spec:
      resources: {limits: {cpu: 2, memory: 2Gi}}
      containers: [{name: a}, {name: b, resources: {requests: {cpu: 100m}}}]
---
kind: Pod
metadata: {name: proxy}
spec: {hostNetwork: true, containers: [{name: c, ports: [{containerPort: 80}, {containerPort: 90, hostPort: 90}]}]}
""",
    )
    gib = 1 << 30
    assert pods["limited"].requests == {"cpu": 3000, "memory": 2 * gib, "nvidia.com/gpu": 1}
    assert pods["limited"].gpu.count == 1
    assert pods["whole-0"].requests == {"cpu": 100, "memory": 2 * gib}
    assert [port.port for port in pods["proxy"].host_ports] == [80, 90]


def test_a_daemonset_has_pods_where_its_controller_makes_them(tmp_path: Path) -> None:
    pods = pods_of(
        tmp_path,
        """
kind: Node
metadata: {name: plain}
---
kind: Node
metadata: {name: gpu, labels: {gpu: "yes"}}
spec: {unschedulable: true, taints: [{key: node.kubernetes.io/unschedulable, effect: NoSchedule}]}
---
kind: Node
metadata: {name: closed, labels: {gpu: "yes"}}
spec: {taints: [{key: own, effect: NoExecute}]}
---
kind: DaemonSet
metadata: {name: all}
spec: {selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c}]}}}
---
kind: DaemonSet
metadata: {name: driver}
spec:
  selector: {matchLabels: {a: b}}
  template:
    metadata: {labels: {a: b}}
    spec: {nodeSelector: {gpu: "yes"}, tolerations: [{key: own, operator: Exists}]}
---
kind: Node
metadata: {name: new}
spec: {taints: [{key: node.kubernetes.io/network-unavailable, effect: NoSchedule}]}
---
kind: DaemonSet
metadata: {name: cni}
spec:
  selector: {matchLabels: {a: b}}
  template: {metadata: {labels: {a: b}}, spec: {hostNetwork: true, containers: [{name: c}]}}
""",
    )
    assert sorted(pods) == [
        "all-gpu", "all-plain", "cni-gpu", "cni-new", "cni-plain", "driver-closed", "driver-gpu",
    ]  # fmt: skip
    assert tolerated(pods["all-gpu"].tolerations, UNSCHEDULABLE_TAINT)


def test_a_node_that_has_none_of_a_daemonsets_pods_gets_one(tmp_path: Path, caplog) -> None:
    """Of an exported cluster, its pods on two nodes; a third node was added, and a fourth's pod has failed."""
    spec = f"spec: {{selector: {{matchLabels: {{app: web}}}}, {TEMPLATE}}}"
    waits = f"spec: {{affinity: {{nodeAffinity: {{{REQUIRED}: {{nodeSelectorTerms: [{{matchFields: {IS_ON}}}]}}}}}}}}"
    made = [
        of("Pod", "agent-a", "DaemonSet/agent", "spec: {nodeName: one}"),
        of("Pod", "agent-b", "DaemonSet/agent", waits),
        of("Pod", "agent-c", "DaemonSet/agent", "spec: {nodeName: four}\nstatus: {phase: Failed}"),
        of("Pod", "other-a", "DaemonSet/other", "spec: {nodeName: three}"),
    ]  # fmt: skip
    nodes = [f"kind: Node\nmetadata: {{name: {name}}}\n" for name in ("one", "two", "three", "four")]
    pods = pods_of(tmp_path, "---\n".join([of("DaemonSet", "agent", more=spec), *made, *nodes]))
    assert sorted(pods) == ["agent-a", "agent-b", "agent-four", "agent-three", "other-a"]
    assert "stands in the files too" not in caplog.text


@pytest.mark.parametrize(
    ("spec", "count"),
    [
        ("", 1),
        ("parallelism: 3", 3),
        ("completions: 5", 1),
        ("parallelism: 5, completions: 2", 2),
        ("parallelism: 5, completions: 0", 0),
        ("parallelism: 5, suspend: false", 5),
        ("parallelism: 5, suspend: true", 0),
        ("parallelism: 3}, status: {active: 3, startTime: '2026-11-30T10:00:00Z'", 3),
        ("completions: 1}, status: {succeeded: 1, conditions: [{type: Complete, status: 'True'}]", 0),
        ("parallelism: 3}, status: {failed: 7, conditions: [{type: Failed, status: 'True', reason: x}]", 0),
        ("parallelism: 3}, status: {conditions: [{type: SuccessCriteriaMet, status: 'True'}]", 0),
        ("parallelism: 3}, status: {conditions: [{type: Failed, status: 'False'}]", 3),
        ("parallelism: 3, completions: 5}, status: {succeeded: 4, active: 1", 1),
        ("parallelism: 3, completions: 5}, status: {succeeded: 6", 0),
        ("parallelism: 3}, status: {succeeded: 1, active: 2", 2),
    ],
)
def test_a_job_has_the_pods_that_its_controller_makes(tmp_path: Path, caplog, spec: str, count: int) -> None:
    template = "template: {spec: {containers: [{name: c}]}}"
    pods = pods_of(tmp_path, f"{{kind: Job, metadata: {{name: j}}, spec: {{{template}{spec and f', {spec}'}}}}}\n")
    assert len(pods) == count
    assert ("Jobs that are suspended have no pods: j" in caplog.text) == ("suspend: true" in spec)
    assert ("Jobs that have ended have no pods: j" in caplog.text) == ("'True'" in spec)


def test_pods_have_the_priority_of_their_class(tmp_path: Path, caplog) -> None:
    text = """
kind: Pod
metadata: {name: plain}
---
kind: Pod
metadata: {name: high}
spec: {priorityClassName: high}
---
kind: Pod
metadata: {name: system}
spec: {priorityClassName: system-node-critical}
---
kind: Pod
metadata: {name: lost}
spec: {priorityClassName: nowhere}
---
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: high}
value: 1000
preemptionPolicy: Never
"""
    pods = pods_of(tmp_path, text)
    assert {name: pod.priority for name, pod in pods.items()} == {
        "plain": 0, "high": 1000, "system": 2_000_001_000, "lost": 0,
    }  # fmt: skip
    assert [name for name, pod in pods.items() if pod.preemption_policy == "Never"] == ["high"]
    assert "have priority 0: nowhere" in caplog.text
    usual = "---\nkind: PriorityClass\nmetadata: {name: usual}\nvalue: 5\nglobalDefault: true\n"
    assert pods_of(tmp_path, text + usual)["plain"].priority == 5


def test_doubles_and_missing_paths_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="node: 'gpu-0' comes 2 times"):
        load([files(tmp_path, one=NODE, two=NODE)])
    with pytest.raises(UserError, match=r"path: .*nowhere"):
        load([tmp_path / "nowhere"])


def test_simon_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "cluster").mkdir()
    config = tmp_path / "config.yaml"
    config.write_text(
        "apiVersion: simon/v1alpha1\nkind: Config\nspec:\n  cluster: {customConfig: cluster}\n"
        "  appList: [{name: a, path: apps}]\n"
        "  customConfig: {shufflePod: true, workloadTuningConfig: {ratio: 0.9, seed: 233}}\n"
    )
    read = read_simon(config)
    assert (read.cluster, read.apps) == (tmp_path / "cluster", (Path("apps"),))
    assert (read.shuffle, read.tune_ratio, read.seed) == (True, 0.9, 233)
    config.write_text("kind: Config\nspec: {}\n")
    with pytest.raises(UserError, match=r"spec\.cluster\.customConfig: missing"):
        read_simon(config)


def test_pods_are_named_by_a_trace_a_list_or_yaml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    header = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\n"
    (tmp_path / "openb_node_list_gpu_node.csv").write_text("sn,cpu_milli,memory_mib,gpu,model\n")
    (tmp_path / "openb_pod_list_small.csv").write_text(header + "traced,1000,1024,1,500\n")
    (tmp_path / "mine.csv").write_text(header + "listed,1000,1024,1,1000\n")
    (tmp_path / "yaml").mkdir()
    workloads = files(tmp_path / "yaml", all=WORKLOADS)
    monkeypatch.setenv("AAML_TRACES", str(tmp_path))
    assert [(pod.name, pod.gpu.milli) for pod in pods_like("small")] == [("traced", 500)]
    assert [(pod.name, pod.gpu.milli) for pod in pods_like(str(tmp_path / "mine.csv"))] == [("listed", 1000)]
    assert [pod.gpu.milli for pod in pods_like(str(workloads))] == [500, 500, 500]
    with pytest.raises(UserError, match="trace: 'large' is not accepted; expected one of small"):
        pods_like("large")
    with pytest.raises(UserError, match="a YAML file or a folder of them"):
        pods_like(str(tmp_path / "missing.yaml"))
    service = tmp_path / "service.yaml"
    service.write_text("{apiVersion: v1, kind: Service, metadata: {name: web}}")
    with pytest.raises(UserError, match=r"expected a file with pods or workloads such as Deployments \(it has Service"):
        pods_like(str(service))


def of(kind: str, name: str, owner: str = "", more: str = "", labels: str = "{app: web}") -> str:
    """Return an object as a cluster has it; `owner` is KIND/NAME."""
    whose, _, its_name = owner.partition("/")
    references = f"ownerReferences: [{{kind: {whose}, name: {its_name}, uid: u, controller: true}}]" if owner else ""
    return f"""apiVersion: {"v1" if kind == "Pod" else "batch/v1" if kind == "Job" else "apps/v1"}
kind: {kind}
metadata:
  name: {name}
  labels: {labels}
  {references}
{more}
"""


def test_a_pod_of_an_exported_cluster_counts_once(tmp_path: Path, caplog) -> None:
    template = "template: {metadata: {labels: {app: web}}, spec: {containers: [{name: c}]}}"
    own = f"spec: {{replicas: 2, selector: {{matchLabels: {{app: web}}}}, {template}}}"
    job, pod = f"spec: {{{template}}}", "spec: {nodeName: gpu-0, containers: [{name: c}]}"
    labels = "{app: web, pod-template-hash: 5b7d}"
    made = [of("Pod", f"web-5b7d-{each}", "ReplicaSet/web-5b7d", pod, labels) for each in "ab"]
    deployment, replica_set = of("Deployment", "web", more=own), of("ReplicaSet", "web-5b7d", "Deployment/web", own)
    ended = of("Pod", "job-a", "Job/job", f"{pod}\nstatus: {{phase: Succeeded}}")
    evicted = of("Pod", "gone", "ReplicaSet/web-5b7d", f"{pod}\nstatus: {{phase: Failed}}", labels)

    def read(*objects: str) -> list[str]:
        return [each.name for each in load([files(tmp_path, all="---\n".join([NODE, *objects]))]).pods]

    there = ["web-5b7d-a", "web-5b7d-b"]
    assert read(deployment, replica_set, *made) == there
    assert "left out, for what they have made stands in the files too: 1 Deployment, 1 ReplicaSet" in caplog.text
    assert read(deployment, *made) == there  # as of `kubectl get deployments,pods`
    assert read(deployment, replica_set) == ["web-5b7d-0", "web-5b7d-1"]
    assert read(deployment) == ["web-0", "web-1"]
    assert read(of("Job", "job", more=job), ended) == []
    assert "left out, for they have ended: 1 pod" in caplog.text
    assert read(deployment, evicted) == ["web-0", "web-1"]  # an evicted pod is made again
    other = made[0].replace("metadata:", "metadata:\n  namespace: other", 1)
    assert read(deployment, other) == ["web-0", "web-1", "web-5b7d-a"]


def test_annotations_and_json_are_taken_as_kubectl_takes_them(tmp_path: Path) -> None:
    told = {"metadata": {"name": "a", "annotations": {"Example.COM/Owner": "\N{PARTY POPPER} x"}}}
    pod = {"apiVersion": "v1", "kind": "Pod", **told, "spec": {"containers": [{"name": "c"}]}}
    file = tmp_path / "pod.json"
    file.write_text(json.dumps(pod))  # escapes the letter
    assert [each.name for each in load([file]).pods] == ["a"]
    file.write_text(json.dumps(pod).replace('"a"', '"a", "name": "b"', 1))
    with pytest.raises(UserError, match="not readable as YAML"):
        load([file])
    file.write_text("\n".join(json.dumps(pod | {"metadata": {"name": name}}) for name in "abc") + "\n")
    assert [each.name for each in load([file]).pods] == ["a", "b", "c"]
    file.write_text(file.read_text() + "{")
    with pytest.raises(UserError, match="not readable as YAML"):
        load([file])


# What kube-apiserver 1.37.2 makes of each, by `kubectl create -f`.
@pytest.mark.parametrize(
    ("resources", "requests"),
    [
        ("{limits: {cpu: '1'}, requests: {cpu: }}", {"cpu": 0}),
        ("{limits: {cpu: '1'}, requests: }", {"cpu": 1000}),
        ("{limits: {example.com/GPU: 1}}", {"example.com/GPU": 1}),
        *((f"{{requests: {{memory: {amount}}}}}", {"memory": LARGEST + 1})
          for amount in (2**63, 99999999999999999999, 10**24)),
        ("{limits: {cpu: }, requests: {cpu: 1}}", "requests.cpu: 1 .*at most its limit, 0"),
        ("{limits: {nvidia.com/gpu: 1}, requests: {nvidia.com/gpu: }}", "requests.nvidia.com/gpu: '0' .*as much as"),
        ("{limits: {Example.com/gpu: 1}}", r"containers\[0\]\.resources: 'Example.com/gpu' is not accepted"),
    ],
)  # fmt: skip
def test_amounts_are_taken_as_the_api_server_takes_them(
    tmp_path: Path, resources: str, requests: dict[str, int] | str
) -> None:
    text = f"kind: Pod\nmetadata: {{name: p}}\nspec: {{containers: [{{name: c, resources: {resources}}}]}}\n"
    if isinstance(requests, str):
        with pytest.raises(UserError, match=requests):
            load([files(tmp_path, pod=text)])
        return
    (pod,) = load([files(tmp_path, pod=text)]).pods
    assert {name: pod.requests.get(name, 0) for name in requests} == requests


def test_a_number_above_64_bits_is_refused_where_no_quantity_stands(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="expected whole numbers of 64 bits"):
        load([files(tmp_path, pod=f"kind: Pod\nmetadata: {{name: p}}\nspec: {{priority: {2**63}}}\n")])


def test_base64_is_the_text_that_it_stands_for(tmp_path: Path) -> None:
    text = "kind: Pod\nmetadata: {name: p, labels: {a: !!binary %s}}\nspec: {}\n"
    assert load([files(tmp_path, pod=text % "aGVsbG8=")]).pods[0].labels == {"a": "hello"}
    for wrong, told in (("aGVs-", "line 2: .*!!binary: no base64"), ("wMA=", "labels.a: '\ufffd\ufffd' is not")):
        with pytest.raises(UserError, match=told):
            load([files(tmp_path, pod=text % wrong)])


GROUP = """apiVersion: scheduling.k8s.io/v1beta1
kind: PodGroup
metadata: {name: train}
spec: %s
"""
MEMBER = """apiVersion: v1
kind: Pod
metadata: {name: worker}
spec: {schedulingGroup: {podGroupName: train}, containers: [{name: c}]}
"""
GANG = "schedulingPolicy: {gang: {minCount: 2}}"
JOB = """apiVersion: batch/v1
kind: Job
metadata: {name: train}
spec: {parallelism: 2, scheduling: %s, template: {spec: {containers: [{name: c}]}}}
"""
RACK_NODE = NODE.replace("kubernetes.io/hostname: gpu-0", "kubernetes.io/hostname: gpu-0, rack: r0")


def test_pods_have_the_group_that_they_name_wherever_it_stands(tmp_path):
    spec = f"{{{GANG}, schedulingConstraints: {{topology: [{{key: rack}}]}}, disruptionMode: {{all: {{}}}}}}"
    (pod,) = load([files(tmp_path, a=MEMBER, b=GROUP % spec, nodes=RACK_NODE)]).pods
    assert pod.group == PodGroup("train", 2, "rack", whole=True)


def test_a_job_with_scheduling_has_a_group_of_all_its_pods_or_of_as_many_as_it_says(tmp_path):
    for policy, least in (("gang: {}", 2), ("gang: {minCount: 1}", 1), ("basic: {}", None)):
        pods = load([files(tmp_path, job=JOB % f"{{schedulingPolicy: {{{policy}}}}}")]).pods
        (group,) = {pod.group for pod in pods}
        assert (len(pods), group) == (2, PodGroup(group.name, least))


def test_the_group_of_a_job_has_nobody_elses_name(tmp_path):
    """A Job's own group and a PodGroup of its name, and of the name that was made up, are three."""
    job = JOB % "{schedulingPolicy: {gang: {}}}"
    read = files(tmp_path, a=MEMBER, b=GROUP % "{schedulingPolicy: {gang: {minCount: 1}}}", job=job)
    groups = {pod.name: pod.group for pod in load([read]).pods}
    assert groups["worker"] == PodGroup("train", 1)
    made = groups["train-0"].name
    assert groups["train-0"] == groups["train-1"] == PodGroup(made, 2) != PodGroup("train", 2)
    (tmp_path / "c.yaml").write_text(
        (GROUP % "{schedulingPolicy: {basic: {}}}").replace("name: train", f"name: {made}")
    )
    assert {pod.group.name for pod in load([read]).pods} - {"train", made} != set()


def test_pods_of_a_job_with_scheduling_keep_the_group_that_the_template_names(tmp_path):
    """The Job controller makes no group then (job_scheduling_manager.go, getManagementMode)."""
    job = (JOB % "{schedulingPolicy: {gang: {}}}").replace("{spec: {", "{spec: {schedulingGroup: {podGroupName: own}, ")
    own = (GROUP % "{schedulingPolicy: {gang: {minCount: 5}}}").replace("name: train", "name: own")
    assert {pod.group for pod in load([files(tmp_path, job=job, own=own)]).pods} == {PodGroup("own", 5)}


def test_pods_wait_for_a_group_that_the_files_do_not_have(tmp_path, caplog):
    (pod,) = load([files(tmp_path, a=MEMBER)]).pods
    assert pod.group == PodGroup("train", seen=False)
    assert "pods wait for PodGroups that the files do not have: default/train" in caplog.text


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("{schedulingPolicy: {gang: {minCount: 0}}}", "spec.schedulingPolicy.gang.minCount: 0 is not accepted"),
        ("{schedulingPolicy: {gang: {}}}", "spec.schedulingPolicy.gang.minCount: None is not accepted"),
        ("{schedulingPolicy: {gang: {minCount: 2147483648}}}",
         "minCount: 2147483648 is not accepted; expected a whole number from 1 to 2147483647"),
        ("", "spec: missing; expected a schedulingPolicy in it"),
        ("{schedulingPolicy: {}}", "spec.schedulingPolicy: 'neither' is not accepted; expected basic: {}, or gang"),
        ("{schedulingPolicy: {gang: {minCount: 1}, basic: {}}}", "spec.schedulingPolicy: 'both' is not accepted"),
        ("{}", "spec.schedulingPolicy: missing; expected basic: {}, or gang: {minCount: ...}"),
        ("{schedulingPolicy: {gang: {mincount: 1}}}", "unknown field 'spec.schedulingPolicy.gang.mincount'; did"),
        (f"{{{GANG}, schedulingConstraints: {{topology: [{{key: rack}}, {{key: zone}}]}}}}",
         "spec.schedulingConstraints.topology: ['rack', 'zone'] is not accepted; expected one constraint at most"),
        (f"{{{GANG}, schedulingConstraints: {{topology: [{{key: row}}]}}}}",
         "schedulingConstraints.topology[0].key: 'row' is not accepted; expected a label of a node"),
        (f"{{{GANG}, schedulingConstraints: {{topology: [{{}}]}}}}",
         "spec.schedulingConstraints.topology[0].key: missing; expected the name of a label"),
        (f"{{{GANG}, parentCompositePodGroupName: train}}", "expected none: groups of groups are not scheduled"),
        (f"{{{GANG}, disruptionMode: {{single: {{}}, all: {{}}}}}}", "spec.disruptionMode: 'both' is not accepted"),
        (f"{{{GANG}, preemptionPolicy: Sometimes}}", "spec.preemptionPolicy: 'Sometimes' is not accepted"),
        (f"{{{GANG}, priority: 5}}", "spec.priority: 0 is not accepted; expected 5, as PodGroup train has it"),
    ],
)  # fmt: skip
def test_a_group_that_the_api_server_would_refuse_is_one_line(tmp_path, spec, said):
    with pytest.raises(UserError) as caught:
        load([files(tmp_path, group=GROUP % spec, pod=MEMBER, nodes=RACK_NODE)])
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_groups_that_are_their_own_ancestors_or_have_one_and_twins_are_one_line(tmp_path):
    tree = GROUP % "{parentCompositePodGroupName: train}"
    with pytest.raises(UserError, match=r"CompositePodGroup train\): groups of groups are not scheduled; expected Pod"):
        load([files(tmp_path, tree=tree.replace("kind: PodGroup", "kind: CompositePodGroup"))])
    (tmp_path / "tree.yaml").unlink()
    with pytest.raises(UserError, match="PodGroup default/train comes twice"):
        load([files(tmp_path, a=GROUP % f"{{{GANG}}}", b=GROUP % f"{{{GANG}}}")])
    (tmp_path / "a.yaml").unlink()
    (tmp_path / "b.yaml").unlink()
    with pytest.raises(UserError, match=r"minCount: 3 is not accepted; expected at most spec.parallelism \(2\)"):
        load([files(tmp_path, job=JOB % "{schedulingPolicy: {gang: {minCount: 3}}}")])
