"""`aaml serve` behind a real kube-scheduler with the configuration of deploy/: our scores decide where pods go."""

import json
import socket
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from aaml.kube.provision import KwokCluster
from aaml.kube.provision.binaries import programs_dir
from support.kwok import pod, pods, until
from support.processes import AAML, Process, free_port

DEPLOY = Path(__file__).parents[2] / "deploy/kubernetes"
CONFIGURATION = DEPLOY / "extender/kube-scheduler-configuration.yaml"
PODS = 12


class Pair:
    """A kube-scheduler of its own name, and what is behind it."""

    def __init__(self, kwok: KwokCluster, directory: Path) -> None:
        self._kwok, self._directory, self._running = kwok, directory, []
        self.name = f"extended-{directory.name[-12:].strip('_').replace('_', '-')}"

    def serve(self, policy: str, *more: str) -> int:
        command = [AAML, "serve", f"--policy={policy}", "--port=0", f"--kubeconfig={self._kwok.kubeconfig}", *more]
        self.service = Process(command, self._directory / "serve.log")
        self._running.append(self.service)
        self.service.wait_for("answers on http")
        return int(self.service.output().rsplit(":", 1)[1].split()[0])

    def schedule(self, port: int, **stanza: Any) -> None:
        configuration = yaml.safe_load(CONFIGURATION.read_text())
        configuration["profiles"][0]["schedulerName"] = self.name
        configuration["leaderElection"]["leaderElect"] = False
        configuration["clientConnection"]["kubeconfig"] = str(self._kwok.kubeconfig)
        configuration["extenders"][0] |= {"urlPrefix": f"http://127.0.0.1:{port}"} | stanza
        path = self._directory / "scheduler.yaml"
        path.write_text(yaml.safe_dump(configuration))
        command = [
            str(programs_dir() / "kube-scheduler"), f"--config={path}", "--secure-port=0", "--v=2",
            # Its cache of the last pod's order of nodes goes round extenders.
            "--feature-gates=OpportunisticBatching=false",
        ]  # fmt: skip
        scheduler = Process(command, self._directory / "scheduler.log")
        self._running.append(scheduler)

    def place(self, namespace: str, numbers: range = range(PODS)) -> Counter[str]:
        """Create pods one by one and return how many pods each node has."""
        api = self._kwok.api()
        for number in numbers:
            name = f"p{number}"
            api.request("POST", f"/api/v1/namespaces/{namespace}/pods", pod(name, cpu="4", schedulerName=self.name))
            path = f"/api/v1/namespaces/{namespace}/pods/{name}"
            until(lambda path=path: json.loads(api.request("GET", path))["spec"].get("nodeName"), f"{name} bound")
        return Counter(each["spec"]["nodeName"] for each in pods(api, namespace))

    def close(self) -> None:
        for process in reversed(self._running):
            with process:
                pass


@pytest.fixture
def pair(kwok: KwokCluster, tmp_path: Path) -> Iterator[Pair]:
    made = Pair(kwok, tmp_path)
    yield made
    made.close()


def served(port: int, path: str) -> str:
    with socket.create_connection(("127.0.0.1", port), 10) as connection:
        connection.sendall(f"GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
        return b"".join(iter(lambda: connection.recv(65536), b"")).decode()


def test_most_allocated_packs_where_kube_scheduler_alone_spreads(pair: Pair, namespace: str) -> None:
    port = pair.serve("most-allocated")
    pair.schedule(port)
    # 12 pods of 4 CPU fit into one node of 64: packing takes one, kube-scheduler's own scores take all ten.
    assert len(pair.place(namespace)) == 1
    assert f'aaml_http_requests_total{{endpoint="/prioritize",status="200"}} {PODS}.0' in served(port, "/metrics")


def test_least_allocated_spreads_over_all_nodes(pair: Pair, namespace: str) -> None:
    pair.schedule(pair.serve("least-allocated"))
    assert sorted(pair.place(namespace).values()) == [1] * 8 + [2] * 2


def test_filter_and_bind_are_ours_too_when_asked(pair: Pair, namespace: str, kwok: KwokCluster) -> None:
    port = pair.serve("most-allocated", "--bind-verb")
    pair.schedule(port, filterVerb="filter", bindVerb="bind", ignorable=False)
    assert len(pair.place(namespace)) == 1
    metrics = served(port, "/metrics")
    for verb in ("filter", "prioritize", "bind"):
        assert f'aaml_http_requests_total{{endpoint="/{verb}",status="200"}} {PODS}.0' in metrics
    api = kwok.api()
    impossible = pod("nowhere", schedulerName=pair.name, nodeSelector={"no": "such-node"})
    api.request("POST", f"/api/v1/namespaces/{namespace}/pods", impossible)
    until(
        lambda: any(
            each["type"] == "PodScheduled" and each["status"] == "False"
            for each in json.loads(api.request("GET", f"/api/v1/namespaces/{namespace}/pods/nowhere"))["status"].get(
                "conditions", ()
            )
        ),
        "kube-scheduler says that a pod fits nowhere",
    )


def test_kube_scheduler_shows_the_certificate_that_the_bind_verb_asks_for(
    pair: Pair, namespace: str, tmp_path: Path
) -> None:
    made = tmp_path / "certificates"
    subprocess.run([str(DEPLOY / "extender-bind/certificates.sh"), str(made)], check=True, capture_output=True)
    flags = {"tls-cert": "server.crt", "tls-key": "server.key", "tls-client-ca": "ca.crt"}
    port = pair.serve("most-allocated", "--bind-verb", *(f"--{flag}={made / name}" for flag, name in flags.items()))
    shipped = yaml.safe_load((DEPLOY / "extender-bind/kube-scheduler-configuration.yaml").read_text())["extenders"][0]
    shipped["tlsConfig"] = {key: str(made / Path(path).name) for key, path in shipped["tlsConfig"].items()}
    pair.schedule(port, **shipped | {"urlPrefix": f"https://127.0.0.1:{port}", "ignorable": False})
    assert len(pair.place(namespace)) == 1


def test_without_the_extender_pods_are_still_placed(pair: Pair, namespace: str) -> None:
    pair.schedule(free_port())
    assert len(pair.place(namespace)) > 1, "kube-scheduler alone spreads"


def test_an_extender_that_dies_is_ignored(pair: Pair, namespace: str) -> None:
    pair.schedule(pair.serve("most-allocated"))
    assert len(pair.place(namespace, range(3))) == 1
    pair.service.kill()
    assert pair.place(namespace, range(3, 8)).total() == 8
