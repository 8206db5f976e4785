"""Pods from files, which are read here and by the real API server: what it refuses is refused here too."""

import json
from contextlib import closing
from pathlib import Path

import pytest

from aaml.errors import UserError
from aaml.kube.objects.manifests import load
from aaml.kube.transport import ApiError, Transport
from aaml.schema import of_yaml

CONTAINER = "containers: [{name: a, image: x}]"
NEEDED, WANTED = "requiredDuringSchedulingIgnoredDuringExecution", "preferredDuringSchedulingIgnoredDuringExecution"
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
]  # fmt: skip


def written(spec: str) -> str:
    more = "" if "containers:" in spec else f"\n  {CONTAINER}"
    return f"apiVersion: v1\nkind: Pod\nmetadata: {{name: p, namespace: default}}\nspec:\n  {spec}{more}\n"


def answer(kwok, text: str) -> int:
    """Return the status with which the API server would answer who creates the pod."""
    with closing(Transport(kwok.kubeconfig)) as api:
        (pod,) = of_yaml(text.encode(), "pod")
        try:
            api.request("POST", "/api/v1/namespaces/default/pods?dryRun=All", json.loads(json.dumps(pod)))
        except ApiError as error:
            return error.status
        return 201


@pytest.mark.parametrize("spec", REFUSED)
def test_what_the_api_server_refuses_is_told_with_its_field(kwok, tmp_path: Path, spec: str) -> None:
    (tmp_path / "pod.yaml").write_text(written(spec))
    assert answer(kwok, written(spec)) in (400, 422)
    with pytest.raises(UserError) as error:
        load([tmp_path])
    assert REFUSED[spec] in str(error.value)
    assert "expected" in str(error.value)


@pytest.mark.parametrize("spec", TAKEN)
def test_what_it_takes_is_taken(kwok, tmp_path: Path, spec: str) -> None:
    (tmp_path / "pod.yaml").write_text(written(spec))
    assert answer(kwok, written(spec)) == 201
    assert len(load([tmp_path]).pods) == 1
