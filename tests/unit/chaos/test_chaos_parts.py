"""The tools that break things do break them, and the judge finds what is wrong."""

import socket
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace

import pytest

from aaml.chaos.clock import WRONG, check_states
from aaml.chaos.faults import FAULTS
from aaml.chaos.proxy import Proxy
from aaml.chaos.runs import ChaosRun, append, chosen, missing, read, summary
from aaml.chaos.settings import ChaosSettings, SoakSettings
from aaml.chaos.soak import Sample, _come_and_go, grown
from aaml.chaos.supervised import Supervised
from aaml.chaos.workload import overfull, shape_for
from aaml.cli import run as aaml
from aaml.errors import UserError
from aaml.kube.cluster import KubeCluster
from support import make
from support.kwok import until


@pytest.fixture
def echo():
    """A server on loopback that sends back what it gets; yields its port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve(connection):
            with connection, suppress(OSError):
                while piece := connection.recv(1 << 16):
                    connection.sendall(piece)

        def accept():
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=serve, args=(connection,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


def connected(proxy):
    near = socket.create_connection(("127.0.0.1", proxy.port), timeout=30.0)
    near.sendall(b"hello")
    assert near.recv(5) == b"hello"
    return near


def test_a_proxy_hands_on_cuts_and_recovers(echo):
    with Proxy(echo) as proxy:
        near = connected(proxy)
        proxy.mode = "cut"
        assert near.recv(5) == b""
        with socket.create_connection(("127.0.0.1", proxy.port), timeout=30.0) as refused:
            assert refused.recv(5) == b""
        proxy.mode = "pass"
        connected(proxy).close()


def test_a_proxy_resets(echo):
    with Proxy(echo) as proxy:
        near = connected(proxy)
        proxy.reset()
        with pytest.raises(ConnectionResetError):
            near.recv(5)


@pytest.mark.parametrize("mode", ["pass", "slow", "silent"])
def test_a_proxy_is_done_with_connections_that_it_broke_off(echo, mode):
    before = set(threading.enumerate())

    def carrying():
        return [thread for thread in set(threading.enumerate()) - before if thread.name == "proxied"]

    with Proxy(echo) as proxy:
        held = [connected(proxy) for _ in range(3)]
        assert len(carrying()) == len(held)
        proxy.mode = mode
        proxy.reset()
        until(lambda: not carrying(), "the end of what carried them")


def test_a_silent_proxy_holds_back_what_it_hands_on_later(echo):
    with Proxy(echo) as proxy:
        near = connected(proxy)
        proxy.mode = "silent"
        time.sleep(0.2)  # it may still be waiting for something to hand on
        near.sendall(b"later")
        near.settimeout(0.5)
        with pytest.raises(TimeoutError):
            near.recv(5)
        proxy.mode = "pass"
        near.settimeout(30.0)
        assert near.recv(5) == b"later"


def test_a_supervised_process_is_started_again_until_it_is_stopped(tmp_path):
    command = [sys.executable, "-uc", "import time; print('up'); time.sleep(600)"]
    with Supervised(command, tmp_path, tmp_path / "log") as process:
        until(lambda: process.output() == "up\n", "the first start")
        first = process.pid
        process.kill()
        until(lambda: process.output() == "up\nup\n", "the second start")
        assert (process.restarts, process.pid != first) == (1, True)
    assert (process.pid, process.status) == (0, -15)


def node(name, **allocatable):
    return {"metadata": {"name": name}, "status": {"allocatable": allocatable}}


def pod(node, cpu, memory="0", phase="Running"):
    requests = {"requests": {"cpu": cpu, "memory": memory}}
    return {"spec": {"nodeName": node, "containers": [{"resources": requests}]}, "status": {"phase": phase}}


def test_nodes_over_their_allocatable_by_hand():
    nodes = [
        node("full", cpu="1", memory="1Gi", pods="2"),
        node("cpu", cpu="999m", memory="1Gi", pods="9"),
        node("memory", cpu="9", memory="1023Mi", pods="9"),
        node("count", cpu="9", memory="9Gi", pods="1"),
        node("ended", cpu="500m", memory="1Gi", pods="1"),
    ]
    pods = [pod(each["metadata"]["name"], "500m", "512Mi") for each in nodes[:4] for _ in range(2)]
    pods += [pod("ended", "500m"), pod("ended", "500m", phase="Succeeded"), pod("", "64")]
    assert overfull(nodes, pods) == ["cpu", "memory", "count"]


def test_the_pods_of_a_run_fill_three_fifths_of_its_cluster_and_fit_on_fewer_nodes():
    """2,000 pods ask for 187.5m in the mean: 375 cores. 20 nodes of 31.25 + 0.4 cores are 633: 59%."""
    shape = shape_for(2000, 20)
    assert (shape.cpu, shape.pods) == ("31650m", 300)


def test_a_row_sums_up_all_runs_of_a_fault():
    runs = [
        ChaosRun("a", 10, 1, 0, 2.0, 0),
        ChaosRun("b", 10, 0, 0, 9.0, 0),
        ChaosRun("a", 10, 0, 2, 4.0, 1, ("no model",)),
    ]
    first, second = summary(runs)
    assert (first.fault, first.runs, first.lost, first.doubled, first.wrong_runs) == ("a", 2, 1, 2, 1)
    assert (first.median_s, first.longest_s) == (3.0, 4.0)
    assert (second.fault, second.runs, second.wrong_runs) == ("b", 1, 0)


def test_runs_that_are_in_the_file_are_not_made_again(tmp_path):
    path, two = tmp_path / "runs.csv", ChaosSettings(runs=2, faults=("nothing", "disk-full"))
    assert read(path) == []
    assert [fault.name for fault in missing(two, [])] == ["nothing", "disk-full"] * 2
    done = ChaosRun("nothing", 2000, 0, 0, 0.25, 1, ("no model,\nnone",))
    append(path, done, two)
    append(path, replace(done, fault="other"), ChaosSettings(scheduler="gnn"))
    assert read(path, two) == [replace(done, wrong=("no model, none",))]
    assert len(read(path)) == 2
    assert [fault.name for fault in missing(two, read(path, two))] == ["disk-full", "nothing", "disk-full"]
    path.write_text("a,b\n1,2\n")
    with pytest.raises(UserError, match=r"runs\.csv: holds no runs of `aaml bench chaos`"):
        read(path, two)
    with pytest.raises(UserError, match="other columns"):
        append(path, done, two)


def test_settings_name_the_faults_that_there_are():
    assert [each.name for each in chosen(ChaosSettings(faults=("disk-full",)))] == ["disk-full"]
    assert len(chosen(ChaosSettings())) == len(FAULTS)
    inside = {each.name for each in chosen(ChaosSettings(scheduler="plugin:varied-acdqn"))}
    assert set(FAULTS) - inside == {"learner-killed", "disk-full", "clock-stepped"}, "what kube-scheduler has not"
    assert all(each.about for each in FAULTS.values())
    with pytest.raises(UserError, match=r"faults: 'flood' is not accepted; expected one of nothing, "):
        chosen(ChaosSettings(faults=("flood",)))
    with pytest.raises(UserError, match="nodes: 4"):
        ChaosSettings(nodes=4)


def test_a_stepped_clock_is_that_of_leases_and_events(tmp_path):
    """In a process of its own, for the clock of this one stays as it is."""
    from support.processes import Process

    file, log = tmp_path / "clock", tmp_path / "log"
    program = (
        "import sys; from pathlib import Path; from datetime import UTC, datetime; "
        "from aaml.chaos.clock import step_by; from aaml.kube import events, lease; "
        "file = Path(sys.argv[1]); step_by(file); file.write_text('3600'); "
        "print(round((lease.datetime.now(UTC) - datetime.now(UTC)).total_seconds() / 60), 'minutes')"
    )
    with Process([sys.executable, "-c", program, str(file)], log) as process:
        assert process.process.wait(120) == 0
    assert log.read_text() == "60 minutes\n"


def test_a_scheduler_whose_state_is_wrong_says_so_and_ends(monkeypatch):
    """A pod's CPU is taken away behind the state's back: the next pod is not decided on."""
    for name in ("next_pod", "close"):
        monkeypatch.setattr(KubeCluster, name, lambda *_: None)
    check_states()
    cluster = KubeCluster.__new__(KubeCluster)
    cluster._attempt = None
    cluster._state = make.cluster([make.node("n")], n=[make.pod("p")])
    cluster.next_pod(0.0)
    cluster.close()
    cluster.state.requested[0, 0] = 0
    with pytest.raises(AssertionError, match=f"^{WRONG} requested amounts differ from the sum over placed pods$"):
        cluster.close()


def test_the_command_lists_what_happens(capsys):
    assert aaml("bench chaos", ["--list"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert len(listed) == 2 + len(FAULTS)
    assert any(
        line.startswith("etcd-killed") and "etcd is killed and started again after 3 s" in line for line in listed
    )


class SlowServer:
    """Pods that are not created before somebody says so."""

    def __init__(self):
        self.workload, self.asked, self.gate = self, 0, threading.Event()

    def create(self, indices):
        self.asked += len(indices)
        self.gate.wait(30.0)


def test_a_soak_does_not_ask_for_more_than_the_server_keeps_up_with_nor_after_its_end():
    server, ended = SlowServer(), threading.Event()
    coming = threading.Thread(target=_come_and_go, args=(server, SoakSettings(rate=1e9), ended))
    coming.start()
    until(lambda: server.asked == 16, "sixteen requests at once")
    ended.set()
    server.gate.set()
    coming.join(30.0)
    assert not coming.is_alive()
    assert server.asked <= 17  # one more was on its way


def sample(seconds, memory):
    return Sample(seconds, 0, 0, memory, 10, 5, 0.01, 0.02, None, 0)


def test_growth_is_that_of_the_last_quarter_over_the_second():
    """The first two samples are those of a program that loads; then 100 and 110, and in the end 150 and 170."""
    samples = [sample(number, memory) for number, memory in enumerate([10, 20, 100, 110, 120, 130, 150, 170])]
    assert grown(samples, "memory_mib") == pytest.approx(160 / 105)
    assert grown(samples, "handles") == 1.0
