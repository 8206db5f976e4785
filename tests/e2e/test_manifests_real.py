"""Manifests as AAML reads them, against a real API server that is asked to create the same (a dry run)."""

import subprocess
from pathlib import Path

import pytest

from aaml.errors import UserError
from aaml.kube.objects.convert import pod_from_json
from aaml.kube.objects.manifests import load
from aaml.kube.provision import KwokCluster

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
IS_B = "[{key: a, operator: Is, values: [b]}]"
TAKEN = """
containers: [{name: a, image: x, resources: {limits: {cpu: 1, memory: 1Gi, nvidia.com/gpu: 1}}}]
---
containers: [{name: a, image: x, resources: {requests: {cpu: 100m}, limits: {cpu: 1e0, memory: 1Gi}}}]
initContainers: [{name: i, image: x, resources: {limits: {cpu: 3}}}]
---
resources: {limits: {cpu: 2, memory: 2Gi}}
containers: [{name: a, image: x}, {name: b, image: x, resources: {requests: {cpu: 100m}}}]
---
resources: {requests: {cpu: 1}, limits: {cpu: 2, memory: 2Gi}}
containers: [{name: a, image: x, resources: {limits: {memory: 1Gi}}}]
---
hostNetwork: true
containers: [{name: a, image: x, ports: [{containerPort: 80}, {containerPort: 81, hostPort: 81, protocol: UDP}]}]
---
priorityClassName: system-cluster-critical
containers: [{name: a, image: x}]
---
topologySpreadConstraints: [{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: ScheduleAnyway, labelSelector: {}}]
containers: [{name: a, image: 1:30}]
"""
REFUSED = (
    "tolerations: [{key: a, operator: Exist}]",
    "tolerations: [{key: a, operator: Exists, effect: NoSchedul}]",
    "topologySpreadConstraints: [{maxSkew: 0, topologyKey: a, whenUnsatisfiable: DoNotSchedule}]",
    "topologySpreadConstraints: [{maxSkew: 1, topologyKey: a, whenUnsatisfiable: Soft}]",
    "topologySpreadConstraints: [{maxSkew: 1, topologyKey: a}]",
    f"affinity: {{podAntiAffinity: {{{REQUIRED}: [{{labelSelector: {{}}}}]}}}}",
    f"affinity: {{nodeAffinity: {{{REQUIRED}: {{nodeSelectorTerms: [{{matchExpressions: {IS_B}}}]}}}}}}",
    "preemptionPolicy: Sometimes",
    "nodeSelectors: {a: b}",
    "nodeSelector: {a: y}",
    "nodeSelector: {a: 12e4}",
)


def written(folder: Path, spec: str) -> Path:
    file = folder / "pod.yaml"
    lines = "".join(f"  {line}\n" for line in spec.strip().splitlines())
    file.write_text(f"apiVersion: v1\nkind: Pod\nmetadata: {{name: one}}\nspec:\n{lines}")
    return file


def created(kwok: KwokCluster, file: Path) -> subprocess.CompletedProcess[str]:
    """Ask to create what a file has, as a dry run."""
    command = [kwok.kubectl, "--kubeconfig", kwok.kubeconfig, "create", "--dry-run=server", "-o", "json", "-f", file]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("spec", TAKEN.split("---\n"))
def test_a_pod_is_read_with_what_the_api_server_fills_in(kwok: KwokCluster, tmp_path: Path, spec: str) -> None:
    file = written(tmp_path, spec)
    answer = created(kwok, file)
    assert answer.returncode == 0, answer.stderr
    (pod,), stored = load([file]).pods, pod_from_json(answer.stdout)
    for name in ("requests", "nonzero", "nonzero_containers", "gpu", "host_ports", "priority", "spread", "images"):
        assert getattr(pod, name) == getattr(stored, name), name


@pytest.mark.parametrize("spec", REFUSED)
def test_what_the_api_server_refuses_is_refused(kwok: KwokCluster, tmp_path: Path, spec: str) -> None:
    file = written(tmp_path, f"{spec}\ncontainers: [{{name: a, image: x}}]\n")
    assert created(kwok, file).returncode != 0
    with pytest.raises(UserError, match="Pod one"):
        load([file])
