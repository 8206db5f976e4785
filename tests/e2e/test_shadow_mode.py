"""Shadow mode beside a real kube-scheduler: a line a pod, nothing bound, and a report of it."""

import json
import subprocess
from pathlib import Path

from aaml.kube.provision import KwokCluster
from support.kwok import pod, pods, until
from support.processes import AAML, Process

PODS = 20


def test_a_line_for_each_pod_that_kube_scheduler_places(kwok: KwokCluster, namespace: str, tmp_path: Path) -> None:
    api, log = kwok.api(), tmp_path / "shadow.jsonl"
    command = [AAML, "schedule", "policy", "--dry-run", "--policy=most-allocated", f"--kubeconfig={kwok.kubeconfig}",
               f"--shadow-log={log}"]  # fmt: skip
    with Process(command, tmp_path / "shadow.log") as shadow:
        shadow.wait_for("looks on")
        for number in range(PODS):
            api.request("POST", f"/api/v1/namespaces/{namespace}/pods", pod(f"p{number}", cpu="2", memory="8Gi"))
            found = f"/api/v1/namespaces/{namespace}/pods/p{number}"
            until(lambda found=found: json.loads(api.request("GET", found))["spec"].get("nodeName"), "a pod bound")

        def lines() -> list[dict]:
            read = [json.loads(line) for line in log.read_text().splitlines()]
            return [line for line in read if line["pod"].startswith(f"{namespace}/")]

        until(lambda: len(lines()) == PODS, "a line for each pod")
        assert shadow.stop() == 0
    chosen = {f"{namespace}/{each['metadata']['name']}": each["spec"]["nodeName"] for each in pods(api, namespace)}
    assert {line["pod"]: line["chosen_node"] for line in lines()} == chosen
    for line in lines():
        assert line["agree"] == (line["policy_node"] == line["chosen_node"])
        assert line["chosen_feasible"]
        assert line["feasible_nodes"] == 10
    # kube-scheduler fills the ten nodes evenly; packing would have put every second pod on top of the first.
    late = [line["objectives"]["variance"] for line in lines()[1:]]
    assert all(value["policy"] >= value["chosen"] for value in late)
    assert sum(value["policy"] > value["chosen"] for value in late) >= PODS // 2
    report = subprocess.run([AAML, "report", "shadow", str(log)], capture_output=True, text=True, check=True).stdout
    assert "most-allocated" in report
    assert "variance" in report
    assert f"{len({line['uid'] for line in map(json.loads, log.read_text().splitlines())})}" in report


def test_a_scheduler_that_learns_looks_on_alike(kwok: KwokCluster, namespace: str, tmp_path: Path) -> None:
    api, log = kwok.api(), tmp_path / "shadow.jsonl"
    command = [AAML, "schedule", "gnn", "--dry-run", f"--shadow-log={log}",
               f"--namespaces={namespace}", f"--kubeconfig={kwok.kubeconfig}"]  # fmt: skip
    with Process(command, tmp_path / "shadow.log") as shadow:
        shadow.wait_for("looks on")
        for number in range(PODS):
            api.request("POST", f"/api/v1/namespaces/{namespace}/pods", pod(f"p{number}", cpu="2", memory="8Gi"))
        until(lambda: len(log.read_text().splitlines()) == PODS, "a line for each pod")
        assert shadow.stop() == 0
    chosen = {f"{namespace}/{each['metadata']['name']}": each["spec"]["nodeName"] for each in pods(api, namespace)}
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert {line["pod"]: line["chosen_node"] for line in lines} == chosen
    assert {line["policy"] for line in lines} == {"gnn"}
    (decisions,) = (tmp_path / "logs").glob("gnn_*.jsonl")
    assert sum('"kind":"decision"' in line for line in decisions.read_text().splitlines()) == PODS
