"""Pods from files, which are read here and by the real API server: what it refuses is refused here too."""

import json
from contextlib import closing
from pathlib import Path

import pytest
import yaml

from aaml.errors import UserError
from aaml.kube.objects.manifests import load
from aaml.kube.transport import ApiError, Transport
from aaml.schema import of_yaml

CONTAINER = "containers: [{name: a, image: x}]"
NEEDED, WANTED = "requiredDuringSchedulingIgnoredDuringExecution", "preferredDuringSchedulingIgnoredDuringExecution"
TWICE = "topologyKey: a, labelSelector: {}, matchLabelKeys: [b], mismatchLabelKeys: [b]"
ANY_TEXT = "matchExpressions: [{key: a, operator: In, values: [b c]}]"
FROM_1_TO_2 = "resources: {requests: {cpu: 1}, limits: {cpu: 2}}"
TERM = "podAffinityTerm: {topologyKey: a}"


def of_nodes(terms: str) -> str:
    return f"affinity: {{nodeAffinity: {{{NEEDED}: {{nodeSelectorTerms: {terms}}}}}}}"


def expression(text: str) -> str:
    return of_nodes(f"[{{matchExpressions: [{{key: a, {text}}}]}}]")


def of_pods(text: str) -> str:
    selector = f"labelSelector: {{matchExpressions: [{{key: a, {text}}}]}}"
    return f"affinity: {{podAntiAffinity: {{{NEEDED}: [{{topologyKey: a, {selector}}}]}}}}"


def spread(*constraints: str) -> str:
    each = ", ".join(f"{{maxSkew: 1, topologyKey: a, {text}}}" for text in constraints)
    return f"topologySpreadConstraints: [{each}]"


def container(text: str) -> str:
    return f"containers: [{{name: a, image: x, {text}}}]"


REFUSED = {
    "tolerations: [{operator: Equal, value: b}]": "tolerations[0].operator: 'Equal'",
    "tolerations: [{value: b}]": "tolerations[0].operator: 'Equal'",
    "tolerations: [{key: a, operator: Exists, value: b}]": "tolerations[0].value: 'b'",
    f"affinity: {{podAffinity: {{{WANTED}: [{{weight: 0, {TERM}}}]}}}}": "[0].weight: 0",
    f"affinity: {{podAffinity: {{{WANTED}: [{{weight: 101, {TERM}}}]}}}}": "[0].weight: 101",
    f"affinity: {{nodeAffinity: {{{WANTED}: [{{weight: 101, preference: {{}}}}]}}}}": "[0].weight: 101",
    of_nodes("[]"): "nodeSelectorTerms: []",
    of_nodes("[{matchFields: [{key: metadata.name, operator: In, values: [a, b]}]}]"): "matchFields[0]",
    of_nodes("[{matchFields: [{key: metadata.labels, operator: In, values: [a]}]}]"): "matchFields[0].key",
    expression('operator: "", values: [b]'): "matchExpressions[0].operator: ''",
    of_pods('operator: "", values: [b]'): "matchExpressions[0].operator: ''",
    spread("whenUnsatisfiable: ScheduleAnyway, matchLabelKeys: [a]"): "matchLabelKeys: ['a']",
    f"affinity: {{podAffinity: {{{NEEDED}: [{{topologyKey: a, matchLabelKeys: [b]}}]}}}}": "matchLabelKeys: ['b']",
    "containers: [{name: a, image: x}, {name: a, image: z}]": "containers[1].name: 'a'",
    'schedulingGates: [{name: ""}]': "schedulingGates[0].name: ''",
    expression("operator: In"): "matchExpressions[0].values: []",
    expression("operator: Exists, values: [b]"): "matchExpressions[0].values: ['b']",
    expression("operator: Gt"): "one whole number beside Gt",
    expression('operator: Lt, values: ["1", "2"]'): "one whole number beside Lt",
    of_pods('operator: Gt, values: ["1"]'): "matchExpressions[0].operator: 'Gt'",
    of_pods("operator: NotIn"): "matchExpressions[0].values: []",
    spread("whenUnsatisfiable: ScheduleAnyway, minDomains: 2"): "minDomains: 2",
    spread(*["whenUnsatisfiable: ScheduleAnyway"] * 2): "topologySpreadConstraints[1]",
    "schedulingGates: [{name: g.x/a}, {name: g.x/a}]": "schedulingGates[1].name: 'g.x/a'",
    container("resources: {requests: {cpu: 2}, limits: {cpu: 1500m}}"): "resources.requests.cpu: 2",
    container("resources: {requests: {gpu: 1}}"): "containers[0].resources: 'gpu'",
    container("resources: {limits: {pods: 1}}"): "containers[0].resources: 'pods'",
    container("resources: {requests: {nvidia.com/gpu: 1}}"): "resources.requests.nvidia.com/gpu: 1",
    container("resources: {requests: {nvidia.com/gpu: 1}, limits: {nvidia.com/gpu: 2}}"): "as much as its limit",
    "activeDeadlineSeconds: 0": "activeDeadlineSeconds: 0",
    "activeDeadlineSeconds: 2147483648": "activeDeadlineSeconds: 2147483648",
    "topologySpreadConstraints: [{maxSkew: 3000000000, topologyKey: a, whenUnsatisfiable: DoNotSchedule}]": "maxSkew",
    container("ports: [{containerPort: 70000}]"): "containerPort: 70000",
    container("ports: [{containerPort: 80, hostPort: 70000}]"): "hostPort: 70000",
    f"hostNetwork: true\n  {container('ports: [{containerPort: 80, hostPort: 81}]')}": "hostPort: 81",
    "tolerations: [{key: a, operator: Exists, tolerationSeconds: 3}]": "tolerations[0].effect: None",
    "tolerations: [{key: a, operator: Exists, effect: NoSchedule, tolerationSeconds: 3}]": "effect: 'NoSchedule'",
    "tolerations: [{key: a b, operator: Exists}]": "tolerations[0].key: 'a b'",
    "tolerations: [{key: a, value: b c}]": "tolerations[0].value: 'b c'",
    "tolerations: [{key: a, operator: Gt, value: '07'}]": "tolerations[0].value: '07'",
    "tolerations: [{key: a, operator: Lt, value: '9223372036854775808'}]": "value: '9223372036854775808'",
    "nodeSelector: {a b: c}": "spec.nodeSelector: 'a b'",
    "nodeSelector: {a: b c}": "spec.nodeSelector.a: 'b c'",
    expression('operator: Gt, values: ["-1"]'): "matchExpressions[0].values: '-1'",
    expression(f"operator: In, values: [{'b' * 64}]"): "matchExpressions[0].values: 'bbb",
    of_pods("operator: In, values: [b c]"): "matchExpressions[0].values: 'b c'",
    f"affinity: {{podAffinity: {{{NEEDED}: [{{topologyKey: a b, labelSelector: {{}}}}]}}}}": "topologyKey: 'a b'",
    f"affinity: {{podAffinity: {{{NEEDED}: [{{topologyKey: a, namespaces: [A]}}]}}}}": "namespaces: 'A'",
    f"affinity: {{podAffinity: {{{NEEDED}: [{{{TWICE}}}]}}}}": "mismatchLabelKeys: 'b'",
    spread("whenUnsatisfiable: ScheduleAnyway, labelSelector: {}, matchLabelKeys: [a b]"): "matchLabelKeys: 'a b'",
    "schedulingGates: [{name: a b}]": "schedulingGates: 'a b'",
    "volumes: [{name: v, emptyDir: {}}, {name: v, emptyDir: {}}]": "volumes[1].name: 'v'",
    "volumes: [{name: v, persistentVolumeClaim: {claimName: ''}}]": "volumes[0].persistentVolumeClaim.claimName: ''",
    container("ports: [{containerPort: 80, hostPort: 80}, {containerPort: 81, hostPort: 80}]"): "ports[1].hostPort: 80",
    f"hostNetwork: true\n  {container('ports: [{containerPort: 80}, {containerPort: 80}]')}": "ports[1].hostPort: 80",
    container("resources: {limits: {hugepages-2Mi: 4Mi}}"): "hugepages beside cpu or memory",
    container("resources: {requests: {cpu: 1, hugepages-2Mi: 4Mi}}"): "requests.hugepages-2Mi: '4Mi'",
    container("resources: {requests: {hugepages-2Mi: 2Mi}, limits: {cpu: 1, hugepages-2Mi: 4Mi}}"): "as its limit",
    container("resources: {limits: {cpu: 1, hugepages-2Mi: 3Mi}}"): "hugepages-2Mi: '3Mi'",
    container("resources: {limits: {cpu: 1, hugepages-x: 4Mi}}"): "hugepages-x: '4Mi'",
    container("resources: {limits: {nvidia.com/gpu: 500m}}"): "limits.nvidia.com/gpu: '500m'",
    container("resources: {limits: {requests.x/y: 1}}"): "'requests.x/y'",
    "resources: {requests: {ephemeral-storage: 1Gi}}": "spec.resources: 'ephemeral-storage'",
    "resources: {requests: {cpu: 2}, limits: {cpu: 1}}": "spec.resources.requests.cpu: 2",
    f"resources: {{requests: {{cpu: 1}}}}\n  {container('resources: {limits: {cpu: 2}}')}": "resources.requests.cpu",
    f"resources: {{limits: {{cpu: 1}}}}\n  {container(FROM_1_TO_2)}": "spec.containers[0].resources.limits.cpu: 2",
    container("resources: {limits: {cpu: lots}}"): "resources.limits.cpu: 'lots'",
    container("resources: {limits: {cpu: -1}}"): "resources.limits.cpu: -1",
    "resources: {limits: {cpu: lots}}": "spec.resources.limits.cpu: 'lots'",
    f"hostNetwork: true\n  {CONTAINER}\n  initContainers: [{{name: i, image: x, ports: [{{hostPort: 85, "
    "containerPort: 85}, {containerPort: 85}]}]": "initContainers[0].ports[1].hostPort: 85",
    of_nodes("[{matchFields: [{key: metadata.name, operator: In, values: [A_b]}]}]"): "matchFields[0].values: ['A_b']",
    spread("whenUnsatisfiable: DoNotSchedule, minDomains: 2147483648"): "minDomains: 2147483648",
    "priority: 5": "spec.priority: 5",
    "priorityClassName: system-cluster-critical\n  priority: 5": "spec.priority: 5",
    "priorityClassName: system-cluster-critical\n  preemptionPolicy: Never": "preemptionPolicy: 'Never'",
    "preemptionPolicy: Never": "preemptionPolicy: 'Never'",
}
TAKEN = [
    "tolerations: [{operator: Exists}, {key: a, value: b}, {key: a, operator: Equal, value: b, effect: NoExecute}]",
    f"affinity: {{podAffinity: {{{WANTED}: [{{weight: 100, {TERM}}}]}}}}",
    of_nodes("[{matchFields: [{key: metadata.name, operator: In, values: [a]}]}, {}]"),
    expression('operator: Gt, values: ["3"]'), expression("operator: DoesNotExist"), of_pods("operator: Exists"),
    spread("whenUnsatisfiable: DoNotSchedule, minDomains: 2", "whenUnsatisfiable: ScheduleAnyway"),
    "schedulingGates: [{name: g.x/a}, {name: g.x/b}]",
    container("resources: {requests: {cpu: 1500m}, limits: {cpu: 1.5}}"),
    container("resources: {requests: {a.b/c: 2, ephemeral-storage: 1Gi}, limits: {a.b/c: 2, nvidia.com/gpu: 1}}"),
    "activeDeadlineSeconds: 1",
    f"hostNetwork: true\n  {container('ports: [{containerPort: 80, hostPort: 80}]')}",
    "tolerations: [{key: a.b/c, operator: Exists, effect: NoExecute, tolerationSeconds: -3}]",
    "nodeSelector: {a.b/c_D: ''}",
    "topologySpreadConstraints: [{maxSkew: 1, topologyKey: a b, whenUnsatisfiable: DoNotSchedule}]",
    spread("whenUnsatisfiable: ScheduleAnyway, labelSelector: {}, matchLabelKeys: [a, a]"),
    container("ports: [{containerPort: 80, hostPort: 80}, {containerPort: 80, hostPort: 80, protocol: UDP}]"),
    container("ports: [{containerPort: 80, hostPort: 80}, {containerPort: 80, hostPort: 80, hostIP: 10.0.0.1}]"),
    container("ports: [{containerPort: 80}, {containerPort: 80}]"),
    container("resources: {requests: {memory: 1Gi}, limits: {hugepages-2Mi: 4Mi, hugepages-1Gi: 1Gi}}"),
    container("resources: {limits: {cpu: 0.0001, nvidia.com/gpu: 1000m}}"),
    f"resources: {{requests: {{cpu: 2}}}}\n  {container('resources: {limits: {cpu: 2, ephemeral-storage: 1Gi}}')}",
    "resources: {requests: {cpu: 1}, limits: {hugepages-2Mi: 4Mi}}",
    f"affinity: {{nodeAffinity: {{{WANTED}: [{{weight: 1, preference: {{{ANY_TEXT}}}}}]}}}}",
    container("resources: {requests: {kubernetes.io/x: 1}}"),
    "priority: 0", "preemptionPolicy: PreemptLowerPriority",
    "priorityClassName: system-cluster-critical\n  priority: 2000000000",
]  # fmt: skip


OWN = "{metadata: {labels: {a: b}}, spec: {containers: [{name: a, image: x}]}}"
NEVER, LASTING = "spec: {restartPolicy: Never, ", "spec: {activeDeadlineSeconds: 5, "
PRIORITY = "scheduling.k8s.io/v1 PriorityClass"
APPS = "apps/v1 Deployment", "apps/v1 ReplicaSet", "apps/v1 StatefulSet", "apps/v1 DaemonSet"
REFUSED_OBJECTS = {
    **{f"{kind} spec: {{template: {OWN}}}": "spec.selector: missing" for kind in APPS},
    **{f"{kind} spec: {{selector: {{}}, template: {OWN}}}": "spec.selector: '{}'" for kind in APPS},
    f"{APPS[0]} spec: {{selector: {{matchLabels: {{a: c}}}}, template: {OWN}}}": "metadata.labels: {'a': 'b'}",
    f"{APPS[3]} spec: {{selector: {{matchExpressions: [{{key: a, operator: DoesNotExist}}]}}, template: {OWN}}}":
        "metadata.labels: {'a': 'b'}",
    f"{APPS[1]} spec: {{selector: {{matchLabels: {{a: b}}}}, template: {OWN.replace('spec: {', LASTING)}}}":
        "spec.template.spec.activeDeadlineSeconds: 5",
    f"v1 Deployment spec: {{selector: {{matchLabels: {{a: b}}}}, template: {OWN}}}": "apiVersion: 'v1'",
    f"batch/v1beta1 Job spec: {{template: {OWN.replace('spec: {', NEVER)}}}": "apiVersion: 'batch/v1beta1'",
    "v2 Pod spec: {containers: [{name: a, image: x}]}": "apiVersion: 'v2'",
    "apps/v1 Node spec: {}": "apiVersion: 'apps/v1'",
    f"{PRIORITY} value: 1000000001": "value: 1000000001",
    f"{PRIORITY} value: -2147483649": "value: -2147483649",
    f"{PRIORITY} {{metadata: {{name: system-x}}, value: 5}}": "metadata.name: 'system-x'",
    f"{PRIORITY} {{metadata: {{name: Big}}, value: 5}}": "metadata.name: 'Big'",
    "scheduling.k8s.io/v1beta1 PriorityClass value: 1": "apiVersion: 'scheduling.k8s.io/v1beta1'",
    "v1 Node spec: {taints: [{key: a, effect: NoSchedule}, {key: a, value: b, effect: NoSchedule}]}": "taints[1]",
    "v1 Node spec: {taints: [{key: a b, effect: NoSchedule}]}": "spec.taints[0].key: 'a b'",
    "v1 Node spec: {taints: [{key: '', effect: NoSchedule}]}": "spec.taints[0].key: ''",
    "v1 Node spec: {taints: [{key: a, value: b c, effect: NoSchedule}]}": "spec.taints[0].value: 'b c'",
    "v1 Node metadata: {name: A_b}": "metadata.name: 'A_b'",
    "v1 Node metadata: {name: a, labels: {a b: c}}": "metadata.labels: 'a b'",
    "v1 Node metadata: {name: a, labels: {a: b c}}": "metadata.labels.a: 'b c'",
    "v1 Node metadata: {name: a, annotations: {a b: c}}": "metadata.annotations: 'a b'",
    "v1 Node status: {allocatable: {nvidia.com/gpu: 500m}}": "status.allocatable.nvidia.com/gpu: '500m'",
    "v1 Node status: {capacity: {pods: 1.5}}": "status.capacity.pods: 1.5",
    "v1 Node status: {capacity: {cpu: -1}}": "status.capacity.cpu: -1",
    "v1 Node status: {capacity: {cpu: lots}}": "status.capacity.cpu: 'lots'",
}  # fmt: skip
TAKEN_OBJECTS = [
    *(f"{kind} spec: {{selector: {{matchLabels: {{a: b}}}}, template: {OWN}}}" for kind in APPS),
    f"{APPS[0]} spec: {{selector: {{matchExpressions: [{{key: a, operator: In, values: [b, c]}}]}}, template: {OWN}}}",
    f"batch/v1 Job spec: {{template: {OWN.replace('spec: {', NEVER)}}}",
    f"{PRIORITY} description: without a value", f"{PRIORITY} value: 1000000000", f"{PRIORITY} value: -2147483648",
    "v1 Node spec: {taints: [{key: a, effect: NoSchedule}, {key: a, effect: NoExecute}]}",
    "v1 Node status: {capacity: {cpu: 1}, allocatable: {cpu: 2.5, nvidia.com/gpu: 2000m}}",
]  # fmt: skip


def written(spec: str) -> str:
    more = "" if "containers:" in spec else f"\n  {CONTAINER}"
    return f"apiVersion: v1\nkind: Pod\nmetadata: {{name: p, namespace: default}}\nspec:\n  {spec}{more}\n"


def written_object(text: str) -> str:
    """Return an object as YAML: its version, its kind, and what differs from one with a name alone."""
    version, kind, more = text.split(" ", 2)
    (own,) = of_yaml(more.encode(), "object")
    return yaml.safe_dump({"apiVersion": version, "kind": kind, "metadata": {"name": "one"}, **own})


def answer(kwok, text: str) -> int:
    """Return the status with which the API server would answer who creates the object."""
    with closing(Transport(kwok.kubeconfig)) as api:
        (found,) = of_yaml(text.encode(), "object")
        try:
            api.request("POST", f"{PATHS[found['kind']]}?dryRun=All", json.loads(json.dumps(found)))
        except ApiError as error:
            return error.status
        return 201


PATHS = {
    "Pod": "/api/v1/namespaces/default/pods", "Node": "/api/v1/nodes", "Job": "/apis/batch/v1/namespaces/default/jobs",
    "PriorityClass": "/apis/scheduling.k8s.io/v1/priorityclasses",
    **{kind: f"/apis/apps/v1/namespaces/default/{kind.lower()}s" for _, kind in map(str.split, APPS)},
}  # fmt: skip


@pytest.mark.parametrize("spec", REFUSED)
def test_what_the_api_server_refuses_is_told_with_its_field(kwok, tmp_path: Path, spec: str) -> None:
    assert_refused(kwok, tmp_path, written(spec), REFUSED[spec])


@pytest.mark.parametrize("text", REFUSED_OBJECTS)
def test_so_is_what_it_refuses_of_other_kinds(kwok, tmp_path: Path, text: str) -> None:
    assert_refused(kwok, tmp_path, written_object(text), REFUSED_OBJECTS[text])


def assert_refused(kwok, folder: Path, text: str, words: str) -> None:
    (folder / "one.yaml").write_text(text)
    assert answer(kwok, text) in (400, 403, 422)
    with pytest.raises(UserError) as error:
        load([folder])
    assert words in str(error.value)
    assert "expected" in str(error.value).lower()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("spec", TAKEN)
def test_what_it_takes_is_taken(kwok, tmp_path: Path, spec: str) -> None:
    (tmp_path / "pod.yaml").write_text(written(spec))
    assert answer(kwok, written(spec)) == 201
    assert len(load([tmp_path]).pods) == 1


@pytest.mark.parametrize("text", TAKEN_OBJECTS)
def test_so_are_objects_of_other_kinds(kwok, tmp_path: Path, text: str) -> None:
    (tmp_path / "one.yaml").write_text(written_object(text))
    assert answer(kwok, written_object(text)) == 201
    load([tmp_path])
