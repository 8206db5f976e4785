"""No thread ends unheard: all are started in one place, and an error in any of them is heard by who needs to know."""

import ast
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from aaml import threads
from aaml.chaos.proxy import Proxy
from aaml.chaos.supervised import Supervised
from aaml.cluster.objects import Pod
from aaml.kube.binder import Binder, BindJob
from aaml.kube.cluster import KubeCluster, LiveOptions
from aaml.kube.events import EventWriter
from aaml.kube.evictor import Evictor
from aaml.kube.lease import LeaderLease, LeaseOptions
from aaml.kube.provision.nodes import create_nodes
from aaml.kube.submit import KubeSink
from aaml.kube.transport import Transport
from aaml.scheduling.ports import Decision
from aaml.scheduling.preemption import Preemption
from support import make
from support.kwok import until
from support.scripted_api import one_node

SOURCE = Path(threads.__file__).parent


class Strange(Exception):  # noqa: N818
    """An error that nobody expects."""


def strange(*_args, **_options):
    raise Strange("of no kind that is caught")


# ---- the place -------------------------------------------------------------------------------------------------------


def test_what_a_thread_raises_goes_to_who_is_to_hear_of_it():
    heard = threading.Event(), []
    threads.start(strange, "one", lambda error: (heard[1].append(error), heard[0].set()))
    assert heard[0].wait(10)
    assert str(heard[1][0]) == "thread 'one' ended: Strange: of no kind that is caught"
    assert isinstance(heard[1][0].__cause__, Strange)


@pytest.mark.parametrize("raised", ["Exception", "SystemExit", "KeyboardInterrupt", "MemoryError"])
def test_where_nobody_can_go_on_without_it_the_process_ends_with_a_line_and_status_1(raised):
    program = f"""
import time
from aaml import threads
def work():
    raise {raised}("odd")
threads.start(work, "one", threads.end_process)
time.sleep(60)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1] == f"aaml.threads.ThreadError: thread 'one' ended: {raised}: odd"


def test_an_error_in_hearing_of_an_error_ends_the_process_too(monkeypatch):
    ended, told = threading.Event(), []
    monkeypatch.setattr(threads, "end_process", lambda error: (told.append(error), ended.set()))
    threads.start(strange, "one", lambda _error: 1 / 0)
    assert ended.wait(10)
    assert str(told[0]) == "thread 'one' ended: ZeroDivisionError: division by zero"


def test_work_in_the_background_gives_its_result_or_raises_where_it_is_waited_for():
    assert threads.Background(lambda: 7, "seven").result() == 7
    failing = threads.Background(strange, "failing")
    assert failing.wait(10)
    for ask in (failing.check, failing.result):
        with pytest.raises(Strange):
            ask()
    with pytest.raises(Strange), threads.Background(strange, "failing"):
        pass
    with pytest.raises(KeyError), threads.Background(strange, "failing"):
        raise KeyError  # the block's own error comes first
    go_on = threading.Event()
    with threads.Background(lambda: go_on.wait(10), "waiting") as waiting:
        assert waiting.running
        waiting.check()
        assert not waiting.wait(0.01)
        go_on.set()


def test_a_pool_raises_what_nobody_asked_for_at_the_end_of_its_block():
    with pytest.raises(Strange), threads.ThreadPool(2, "pool") as pool:
        pool.submit(strange)
    with pytest.raises(Strange), threads.ThreadPool(2, "pool") as pool:
        list(pool.map(strange, range(3)))
    with threads.ThreadPool(2, "pool") as pool:
        assert list(pool.map(str, range(3))) == ["0", "1", "2"]
        pool.check()
    with pytest.raises(KeyError), threads.ThreadPool(2, "pool") as pool:  # noqa: PT012
        pool.submit(strange)
        raise KeyError


# ---- every thread that there is --------------------------------------------------------------------------------------

MAKERS = {
    "Thread", "Timer", "start_new_thread", "ThreadPoolExecutor", "ThreadingHTTPServer", "ThreadingMixIn", "to_thread",
    "run_in_executor", "run_in_threadpool", "run_worker", "call_later",
}  # fmt: skip
AWAITED = {
    ("lab/server.py", "run_in_threadpool"): "awaited by the request that asked",
    ("serve/app.py", "run_in_threadpool"): "awaited by the request that asked",
    ("chaos/webhook.py", "ThreadingHTTPServer"): "its errors are raised at the end of the block",
}
OURS = {"start", "Background", "ThreadPool"}


def called(tree: ast.AST) -> list[str]:
    """Return the names of what a module calls or derives from."""
    names = []
    for each in ast.walk(tree):
        made = [each.func] if isinstance(each, ast.Call) else each.bases if isinstance(each, ast.ClassDef) else []
        names += [
            of.attr if isinstance(of, ast.Attribute) else of.id
            for of in made
            if isinstance(of, ast.Attribute | ast.Name)
        ]
    return names


def modules():
    for path in sorted(SOURCE.rglob("*.py")):
        if path != Path(threads.__file__):
            yield str(path.relative_to(SOURCE)), ast.parse(path.read_text())


def test_no_thread_is_started_anywhere_else():
    found = {(name, each) for name, tree in modules() for each in called(tree) if each in MAKERS}
    assert found == set(AWAITED)


def starts() -> dict[str, int]:
    """Return how many threads each module starts by `aaml.threads`, by the calls in its text."""
    found = {}
    for name, tree in modules():
        imported = set()
        for each in ast.walk(tree):
            if isinstance(each, ast.ImportFrom) and each.module == "aaml.threads":
                imported |= {alias.name for alias in each.names}
        count = 0
        for each in ast.walk(tree):
            if isinstance(each, ast.Call):
                of = each.func
                whole = isinstance(of, ast.Attribute) and isinstance(of.value, ast.Name) and of.value.id == "threads"
                count += (whole and of.attr in OURS) or (isinstance(of, ast.Name) and of.id in imported & OURS)
        if count:
            found[name] = count
    return found


TRIED: dict[str, list] = {}
"""By module: the tests that inject an error into each thread that it starts, here or elsewhere (by name)."""


def tries(module: str):
    """Say that a test injects an error into a thread that a module starts."""

    def mark(test):
        TRIED.setdefault(module, []).append(test.__name__)
        return test

    return mark


ELSEWHERE = {
    "live/learner.py": ["unit/live/test_learner.py::test_an_error_in_learning_is_raised_where_decisions_are_made"],
    "kube/rights.py": ["unit/kube/test_rights.py::test_a_server_that_is_away_is_said_to_be"],
}


def test_an_error_is_injected_into_every_thread_that_there_is():
    tried = {name: [*TRIED.get(name, ()), *ELSEWHERE.get(name, ())] for name in {*TRIED, *ELSEWHERE}}
    assert {name: len(tests) for name, tests in tried.items()} == starts()
    for tests in ELSEWHERE.values():
        for each in tests:
            path, _, name = each.partition("::")
            assert f"def {name}(" in (Path(__file__).parents[1] / path).read_text()


@pytest.fixture
def api():
    with one_node() as server:
        yield server


@pytest.fixture
def ended(monkeypatch):
    """What ended the process, which goes on here."""
    told = []
    monkeypatch.setattr(threads, "end_process", told.append)
    return told


def transport(api):
    return Transport(server=api.server)


@tries("kube/reflector.py")
def test_reflector(api, monkeypatch):
    monkeypatch.setattr("aaml.kube.reflector.Reflector._list", strange)
    with pytest.raises(threads.ThreadError, match="Strange"):
        KubeCluster.connect("mine", server=api.server, options=LiveOptions(preemption=False))


@tries("kube/jobs.py")
def test_job_threads(api, monkeypatch):
    """A job ends with the error, and the thread goes on; those of the evictor and the binder."""
    done = []
    evictor = Evictor(transport(api), "mine", None, done.append)
    monkeypatch.setattr(evictor, "_patch_status", strange)
    victim = Pod("victim", uid="u-v")
    evictor.submit(Pod("p", uid="u-p"), Preemption("n1", (victim,), ()))
    evictor.submit(Pod("q", uid="u-q"), Preemption("n1", (victim,), ()))
    until(lambda: len(done) == 2, "what became of both")
    assert {each.error for each in done} == {"Strange: of no kind that is caught"}
    evictor.close(10)
    binder = Binder(transport(api), done.append, at_once=1)
    monkeypatch.setattr(binder, "bind", strange)
    binder.submit(BindJob(Pod("p", uid="u-p"), "n1"))  # the script answers 404
    until(lambda: len(done) == 3, "what became of the bind")
    assert (done[2].status, done[2].message) == ("failed", "Strange: of no kind that is caught")
    binder.close(10)


@tries("kube/events.py")
def test_event_writer(api, monkeypatch, caplog):
    writer = EventWriter(transport(api), "mine", lambda _uid: True)
    monkeypatch.setattr(writer, "_remember", strange)
    writer.failed(Pod("p", uid="u-p"), "full")
    until(lambda: "an error of ours" in caplog.text, "the line")
    until(lambda: not writer._busy, "the end of it")
    assert all(thread.is_alive() for thread in writer._threads)
    writer.close(10)


@tries("kube/async_writes.py")
def test_async_writes(api, monkeypatch):
    """A write ends one way or the other, and so does the next one."""
    at, ends = transport(api), []
    queue = at.write_queue(1)
    monkeypatch.setattr(at._writer, "_start", strange)
    for _ in range(2):
        queue.post("/x", dict, ends.append)
        until(lambda: not len(queue), "the end of the request")
    assert len(ends) == 2
    at.close()


LEASE = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/aaml-scheduler"


def leads(api, lost):
    api.on_list(LEASE, {"metadata": {"name": "aaml-scheduler"}, "spec": {"holderIdentity": "me"}})
    api.on("PUT", LEASE, (200, {}))
    lease = LeaderLease(transport(api), "me", LeaseOptions(duration_s=2.0, renew_deadline_s=1.0, retry_s=0.05))
    assert lease.acquire(lambda: False, lost.set)
    return lease


@tries("kube/lease.py")
def test_lease_renewing(api, monkeypatch):
    lost = threading.Event()
    lease = leads(api, lost)
    monkeypatch.setattr(lease, "attempt", strange)
    assert lost.wait(10)


@tries("kube/lease.py")
def test_lease_deadline(api, monkeypatch):
    lost = threading.Event()
    monkeypatch.setattr("aaml.kube.lease.LeaderLease._keep_time", strange)
    leads(api, lost)
    assert lost.wait(10)


@tries("kube/provision/nodes.py")
def test_nodes_that_are_created(api, monkeypatch):
    monkeypatch.setattr("aaml.kube.provision.nodes.node_to_json", strange)
    with pytest.raises(Strange):
        create_nodes(transport(api), [make.node()], progress=False)


@tries("kube/submit.py")
def test_deployments_that_are_created(api, monkeypatch):
    from aaml.kube.watcher import ClusterWatch

    monkeypatch.setattr("aaml.kube.submit.manifest", strange)
    sink = KubeSink(ClusterWatch(transport(api)), "mine")
    with pytest.raises(Strange):
        sink.create([SimpleNamespace(name="d")])
    sink.close()


@tries("serve/health.py")
def test_probes(ended, monkeypatch):
    from aaml.serve.health import HealthServer, create_probe_app
    from aaml.serve.metrics import Metrics

    app = create_probe_app(Metrics().text, lambda: "", lambda: "")
    with HealthServer("127.0.0.1", 0, app) as server:
        monkeypatch.setattr(server._server, "on_tick", strange)
        until(lambda: ended, "the end of the process")
    assert "thread 'health' ended: Strange" in str(ended[0])


@tries("live/fallback.py")
def test_a_policy_that_is_asked_aside(ended):
    """Whatever it raises, even what ends a program, is an answer like another; the fallback decides."""
    from aaml.live.fallback import with_fallback
    from aaml.policies.registry import make_policy

    class Exits:
        name = "exits"

        def act(self, _context):
            sys.exit("out of my own policy")

    guarded = with_fallback(Exits(), make_policy("least-allocated"), deadline_s=30.0)
    for _ in range(2):
        decision = guarded.act(make.context(make.cluster(make.nodes(2)), make.pod()))
        assert isinstance(decision, Decision)
    assert not ended


@tries("live/in_process.py")
def test_a_policy_of_an_in_process_cluster(monkeypatch):
    from aaml.live.in_process import background_policy, in_process_cluster

    monkeypatch.setattr("aaml.live.scheduler.play", strange)
    with pytest.raises(Strange), background_policy(in_process_cluster(2), "least-allocated"):
        pass


@tries("live/workload.py")
def test_a_workload_beside_its_scheduler(monkeypatch):
    from aaml.live.in_process import in_process_cluster
    from aaml.live.workload import run_together

    cluster = in_process_cluster(2)
    scheduler = SimpleNamespace(policy=None, run=lambda: until(lambda: cluster.exhausted, "the end of the workload"))
    simulator = SimpleNamespace(run=strange, stop=lambda: None)
    with pytest.raises(Strange):
        run_together(scheduler, simulator, cluster)


@tries("live/replay.py")
def test_a_scheduler_of_a_replay(monkeypatch):
    from aaml.live import replay

    does = {name: lambda *_args: None for name in ("start", "pump", "watched", "close", "stop")}
    stand_in = SimpleNamespace(connect=lambda *_args, **_options: stand_in, run=strange, **does)
    for name in ("KubeCluster", "Recorder", "Transport", "Scheduler"):
        monkeypatch.setattr(replay, name, stand_in if name == "KubeCluster" else lambda *_args, **_options: stand_in)
    monkeypatch.setattr(replay, "clear", lambda _api: None)
    playing = replay._Playing(None, None, SimpleNamespace(index=0, length_s=60.0), 1.0)
    monkeypatch.setattr(playing, "_prepare", lambda: None)
    with pytest.raises(Strange):
        playing.run(SimpleNamespace(name="least-allocated"), progress=False)


@tries("live/replay.py")
def test_pods_that_a_replay_begins_with(monkeypatch):
    from aaml.live import replay

    window = SimpleNamespace(
        running=[SimpleNamespace(pod=make.pod())], others=[], arrivals=[], nodes=[], changes=[], removed=[]
    )
    for name in ("add_namespace", "create_nodes", "wait_schedulable"):
        monkeypatch.setattr(replay, name, lambda *_args, **_options: None)
    playing = replay._Playing(None, None, window, 1.0)
    monkeypatch.setattr(playing, "_create", strange)
    with pytest.raises(Strange):
        playing._prepare()


@tries("lab/watched.py")
def test_a_live_cluster_in_the_lab(monkeypatch):
    from aaml.lab.library import Library
    from aaml.lab.watched import ClusterReplay

    class Watch:
        state, pending, pods, why = make.cluster([make.node()]), 0, {}, {}
        transport = None
        pump = staticmethod(strange)

        @classmethod
        def connect(cls, *_args, **_options):
            return cls()

        def wake(self):
            """Nobody waits."""

        close = wake

    monkeypatch.setattr("aaml.lab.watched.ClusterWatch", Watch)
    monkeypatch.setattr("aaml.lab.watched.LatestPromise", lambda _transport: SimpleNamespace(text=str))
    library = Library()
    library.watched = ClusterReplay(None)
    until(lambda: not library.watched._following.running, "its end")
    with pytest.raises(Strange):
        library.check()  # which the server does once a second
    library.close()


@tries("lab/library.py")
def test_a_replay_that_is_played_for_the_lab(monkeypatch):
    """What a policy raises is said on the page; an error of ours ends the lab."""
    from aaml.lab.library import Library

    library = Library()
    library._players.submit(strange)
    library._players.shutdown()
    with pytest.raises(Strange):
        library.check()


@tries("telemetry/ktop.py")
def test_ktop(monkeypatch):
    from aaml.live.table import KubeInfo
    from aaml.telemetry.ktop import Ktop

    run = Ktop.run
    monkeypatch.setattr(Ktop, "run", lambda app: run(app, headless=True))
    info = KubeInfo()
    monkeypatch.setattr(info, "_run", lambda _server: None)
    with pytest.raises(threads.ThreadError, match="thread 'ktop' ended: Strange"):
        info._screen(SimpleNamespace(look=strange), 1.0)


@tries("optimum/solving.py")
def test_the_solver_of_a_bound(monkeypatch):
    from ortools.sat.python import cp_model

    from aaml.optimum.placement import GOALS, best_placement

    monkeypatch.setattr(cp_model.CpSolver, "solve", strange)
    with pytest.raises(Strange):
        best_placement([make.node()], [make.pod()], next(iter(GOALS)))


@tries("episodes/batch.py")
def test_episodes_side_by_side():
    from aaml.episodes.batch import ThreadPool

    with pytest.raises(Strange):
        ThreadPool(1, "batch").submit(strange).result()


@tries("perf/cluster.py")
def test_objects_of_the_benchmark():
    from aaml.perf.cluster import PerfCluster, ThreadPool

    cluster = object.__new__(PerfCluster)
    cluster._pool = ThreadPool(2, "arena")
    with pytest.raises(Strange):
        cluster.together(strange, 3)
    cluster._pool.shutdown()


@tries("perf/player.py")
def test_what_goes_on_beside_the_benchmark():
    from aaml.perf.player import ScenarioPlayer

    player = ScenarioPlayer(None, lambda: None, 1.0)
    with pytest.raises(Strange), player._in_background():
        player._start(strange)


@tries("chaos/proxy.py")
@pytest.mark.parametrize("method", ["_accept"])
def test_the_proxy_that_accepts(monkeypatch, method):
    monkeypatch.setattr(Proxy, method, strange)
    with pytest.raises(threads.ThreadError, match="thread 'proxy' ended: Strange"), Proxy(1) as proxy:
        until(lambda: proxy._failed, "the error")


@tries("chaos/proxy.py")
def test_the_proxy_that_carries(api, monkeypatch):
    import socket

    monkeypatch.setattr(Proxy, "_carry", strange)
    with pytest.raises(threads.ThreadError, match="thread 'proxied' ended: Strange"), Proxy(api.port) as proxy:  # noqa: PT012
        socket.create_connection(("127.0.0.1", proxy.port)).close()
        until(lambda: proxy._failed, "the error")


@tries("chaos/webhook.py")
def test_the_webhook(monkeypatch, tmp_path):
    from aaml.chaos import webhook

    monkeypatch.setattr(webhook.ThreadingHTTPServer, "serve_forever", strange)
    monkeypatch.setattr(webhook.ThreadingHTTPServer, "shutdown", lambda _self: None)
    monkeypatch.setattr(webhook, "_configuration", lambda *_: {})
    monkeypatch.setattr(webhook.ssl, "SSLContext", lambda _kind: SimpleNamespace(
        load_cert_chain=lambda *_: None, wrap_socket=lambda listener, server_side: listener))  # fmt: skip
    (tmp_path / "ca.crt").write_bytes(b"")
    quiet = SimpleNamespace(request=lambda *_args, **_options: None)
    with pytest.raises(Strange), webhook.refusing_binds(quiet, tmp_path, [webhook.Refusal(409, "Conflict")]):
        pass


@tries("chaos/supervised.py")
def test_who_starts_a_process_again(tmp_path, monkeypatch):
    supervised = Supervised([sys.executable, "-c", "pass"], tmp_path, tmp_path / "log")
    with pytest.raises(Strange), supervised:  # noqa: PT012
        monkeypatch.setattr(supervised, "_start", strange)
        until(lambda: not supervised._supervising.running, "its end")


def workload(monkeypatch, **methods):
    from aaml.chaos.workload import ChaosWorkload

    made = object.__new__(ChaosWorkload)
    for name, method in methods.items():
        monkeypatch.setattr(made, name, method, raising=False)
    return made


@tries("chaos/workload.py")
def test_pods_that_chaos_creates(monkeypatch):
    with pytest.raises(Strange):
        workload(monkeypatch, _create=strange).create(range(3))


@tries("chaos/workload.py")
def test_pods_that_chaos_deletes(monkeypatch):
    with pytest.raises(Strange):
        workload(monkeypatch, _delete=strange).delete(["a"])


@pytest.fixture
def site(monkeypatch):
    """A site of chaos without a cluster, whose pods cannot be created."""
    made = SimpleNamespace(
        workload=SimpleNamespace(create=strange, bound=lambda: 1000, pods=list, first_bind_after=lambda _s: 1.0),
        wait=lambda *_: None, ready=lambda *_: True, wrong_states=list,
        scheduler=SimpleNamespace(pid=0, children=strange, restarts=0, stop=lambda: 0),
        folder=Path("/nowhere"),
    )  # fmt: skip

    class Around:
        def __init__(self, *_args, **_options):
            """Nothing is started."""

        def __enter__(self):
            return made

        def __exit__(self, *_):
            """Nothing is left."""

    for module in ("runs", "soak"):
        monkeypatch.setattr(f"aaml.chaos.{module}.Site", Around)
    return made


@tries("chaos/runs.py")
def test_pods_that_come_while_a_fault_strikes(site):
    from aaml.chaos.runs import run_fault
    from aaml.chaos.settings import ChaosSettings

    fault = SimpleNamespace(name="nothing", replicas=1, strike=lambda _site: time.sleep(0.5))
    site.workload.create = lambda indices: None if isinstance(indices, list) else strange()
    with pytest.raises(Strange):
        run_fault(None, fault, ChaosSettings(pods=4))


@tries("chaos/soak.py")
@tries("chaos/soak.py")
def test_pods_that_come_and_go_in_a_soak(site, monkeypatch):
    from aaml.chaos import soak
    from aaml.chaos.settings import SoakSettings

    monkeypatch.setattr(soak, "_look", lambda *_: None)
    with pytest.raises(Strange):
        soak.soak(None, SoakSettings(minutes=1.0, every_s=0.05, rate=100.0), lambda _sample: None)


@tries("chaos/soak.py")
def test_who_kills_the_learners_of_a_soak(site, monkeypatch):
    from aaml.chaos import soak
    from aaml.chaos.settings import SoakSettings

    site.workload.create = lambda _indices: None
    site.workload.delete = lambda _names: None
    monkeypatch.setattr(soak, "_look", lambda *_: None)
    with pytest.raises(Strange):
        soak.soak(None, SoakSettings(minutes=0.02, every_s=0.05, run="without-learner"), lambda _sample: None)
