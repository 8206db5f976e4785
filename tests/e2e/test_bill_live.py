"""`aaml bill` on a real API server, with the rights of the recorder alone."""

import json
import subprocess
import time
from contextlib import closing
from pathlib import Path

import pytest

from aaml.cli import run as command
from aaml.cluster.objects import CAPACITY_TYPE_LABEL, TYPE_LABEL
from aaml.kube.objects.manifest import node_to_json
from aaml.live.recorder import Recorder
from aaml.nodes.catalogue_file import shipped_catalogue
from aaml.nodes.prices import PriceList
from aaml.workload.trace.events import NodeGone
from aaml.workload.trace.names import NameHasher
from aaml.workload.trace.store import TraceWriter
from aaml.workload.trace.trace import Trace
from aaml.workload.trace.windows import Split, Windows
from support.kwok import answers, pod, pods, until
from support.processes import AAML, Process

RECORDER = Path(__file__).parents[2] / "deploy" / "kubernetes" / "recorder"


@pytest.fixture
def bought(kwok):
    """Two nodes of the shipped catalogue's cheapest type, one of them of a type that it does not know."""
    api, kind = kwok.api(), shipped_catalogue().types[0]
    nodes = [kind.node("bill-0", kind.cheapest), kind.node("bill-1", kind.cheapest)]
    manifests = [node_to_json(each) for each in nodes]
    manifests[1]["metadata"]["labels"] = {TYPE_LABEL: "odd-1", CAPACITY_TYPE_LABEL: "spot"}
    for each in manifests:
        api.request("POST", "/api/v1/nodes", each)
    yield kind
    for node in nodes:
        if answers(api, f"/api/v1/nodes/{node.name}"):
            api.request("DELETE", f"/api/v1/nodes/{node.name}")


def bill(kubeconfig, capsys, *more):
    assert command("bill", ["--json", *more, "--kubeconfig", str(kubeconfig)]) == 0
    return json.loads(capsys.readouterr().out)


def test_nodes_and_owners_have_their_dollars(kwok, namespace, bought, capsys):
    kubectl = [str(kwok.kubectl), "--kubeconfig", str(kwok.kubeconfig)]
    subprocess.run([*kubectl, "apply", "-k", str(RECORDER)], check=True, capture_output=True, timeout=120)
    account = kwok.service_account_kubeconfig("aaml", "aaml-recorder")
    wanted = {TYPE_LABEL: bought.name}
    api = kwok.api()
    api.request("POST", f"/api/v1/namespaces/{namespace}/pods", pod("p", cpu="450m", nodeSelector=wanted))
    until(lambda: pods(api, namespace)[0]["spec"].get("nodeName"), "the pod has its node")
    found = bill(account, capsys)
    assert found["per_hour"] == pytest.approx(bought.cheapest.price)
    assert found["by_type"][0]["type"] == bought.name
    assert found["unpriced"] == {"odd-1": 1, "no instance type": 10}, "the control plane is nobody's purchase"
    (line,) = [each for each in found["by_owner"] if each["namespace"] == namespace]
    assert (line["owner"], line["cores"]) == ("pods without an owner", 0.45)
    assert 0 < line["per_hour"] < bought.cheapest.price
    assert found["spent"] < bought.cheapest.price, "the node was created less than an hour ago"


def test_a_recording_holds_nodes_as_they_come_and_go(kwok, bought, tmp_path):
    api, events = kwok.api(), []
    with closing(Recorder.connect(kwok.kubeconfig, events.append)) as recorder:
        api.request("DELETE", "/api/v1/nodes/bill-0")

        def gone():
            recorder.pump(0.1)
            return any(isinstance(event, NodeGone) and event.name == "bill-0" for event in events)

        until(gone, "the node has gone")
        time.sleep(0.1)  # what happens at the very end of a trace is in no window
        recorder.watched()
    path = tmp_path / "trace"
    with TraceWriter(path) as writer:
        for event in map(NameHasher(b"key"), events):
            writer.write(event)
    trace = Trace.read(path)
    window = Windows(trace, Split(trace.end_s, 0.0)).window(0)
    (change,) = [each for each in window.changes if each.node is None]
    told = [*window.nodes, *(each.node for each in window.changes if each.node is not None)]
    node = [each for each in told if each.name == change.name][-1]
    assert node.allocatable["cpu"] == dict(bought.allocatable)["cpu"]
    assert PriceList.read(None).price(node) == bought.cheapest.price, "also where names are hashed"
    assert node.name != "bill-0"


def shown(log):
    """Return the last bill that is whole."""
    lines = [line for line in log.read_text().split("\n")[:-1] if line.startswith("{")]
    return json.loads(lines[-1]) if lines else {"nodes": 0, "gone": 0}


@pytest.mark.usefixtures("bought")
def test_a_node_that_goes_is_taken_off_and_stays_in_what_was_spent(kwok, tmp_path):
    log = tmp_path / "bill.log"
    arguments = ["bill", "--watch", "--every=0.2", "--json", f"--kubeconfig={kwok.kubeconfig}"]
    with Process([AAML, *arguments], log) as process:
        until(lambda: shown(log)["nodes"] == 1, "the node is billed")
        kwok.api().request("DELETE", "/api/v1/nodes/bill-0")
        until(lambda: shown(log)["gone"] == 1, "the node has gone")
        last = shown(log)
        assert (last["per_hour"], last["nodes"]) == (0, 0)
        assert last["spent"] > 0.0
        assert process.stop() == 0
