"""What is missing is named before anything is done, and what the manifests grant is what the commands do."""

import json
from pathlib import Path

import pytest
import yaml

from aaml import cli
from aaml.commands import record
from aaml.commands.cluster import clean, nodes, simulate, top
from aaml.errors import UserError
from aaml.kube import rights
from aaml.kube.cluster import KubeCluster, LiveOptions
from aaml.kube.transport import Transport
from aaml.kube.view import KubeView
from aaml.live.run import SchedulerRun
from aaml.live.scheduler_replica import scheduler_replica
from aaml.live.settings import ReplicaSettings, SchedulerSettings
from aaml.live.source import PolicySource
from aaml.policies.registry import make_policy
from support.scripted_api import ScriptedApi, one_node, status, write_kubeconfig

REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
DEPLOY = Path(__file__).parents[3] / "deploy/kubernetes"


class Account:
    """What an account may not do, by verb and resource, as the API server answers for it."""

    def __init__(self, api: ScriptedApi) -> None:
        self.forbidden: set[str] = set()
        self.api, self.asked = api, []
        api.on("POST", REVIEWS, self.answer)

    def answer(self, body: bytes):
        of = json.loads(body)["spec"]["resourceAttributes"]
        resource = "/".join(each for each in (of["resource"], of["subresource"]) if each)
        self.asked.append((of["verb"], of["group"], resource, of["namespace"], of["name"]))
        return 201, {"status": {"allowed": f"{of['verb']} {resource}" not in self.forbidden}}


@pytest.fixture
def api():
    with one_node() as server:
        yield server


@pytest.fixture
def account(api):
    return Account(api)


@pytest.fixture
def kubeconfig(api, tmp_path):
    return write_kubeconfig(tmp_path, api.server, token="t")


def test_a_scheduler_that_may_not_bind_is_told_so_before_it_decides_anything(api, account):
    account.forbidden = {"create pods/binding", "get pods", "create events"}
    with pytest.raises(UserError) as missing:
        KubeCluster.connect("mine", server=api.server)
    assert str(missing.value) == (
        f"{api.server}: this account may not create pods/binding, get pods; "
        "`kubectl apply -k deploy/kubernetes/scheduler` of the repository makes an account that may"
    )
    assert not api.asked("GET", "/api/v1/pods")


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (status(401, "Unauthorized", "Unauthorized"), "refuses these credentials (401)"),
        (status(403, "Forbidden", 'User "system:anonymous" cannot create'), "does not know who asks"),
    ],
)
def test_credentials_that_nobody_knows_are_told_in_one_line(api, kubeconfig, capfd, answer, said):
    api.on("POST", REVIEWS, lambda _body: (answer["code"], answer))
    assert cli.run("bill", ["--kubeconfig", str(kubeconfig)]) == 2
    told = capfd.readouterr().err
    assert told.count("\n") == 1
    assert said in told


def test_what_a_scheduler_can_do_without_is_said_with_what_comes_of_it(api, account, caplog):
    caplog.set_level("INFO", "aaml")
    account.forbidden = {"delete pods", "list poddisruptionbudgets", "watch poddisruptionbudgets", "patch events"}
    KubeCluster.connect("mine", server=api.server).close()
    assert [each.message for each in caplog.records if "may not" in each.message] == [
        "this account may not patch events: kubectl describe tells nothing of its decisions",
        (
            "this account may not delete pods, list poddisruptionbudgets, watch poddisruptionbudgets: "
            "no pod gives way to a more important one"
        ),
    ]


def test_a_scheduler_of_some_namespaces_needs_to_write_in_these_alone(api, account):
    options = LiveOptions(namespaces=("shop", "web"), preemption=False)
    KubeCluster.connect("mine", server=api.server, options=options).close()
    written = {each for each in account.asked if each[0] not in {"list", "watch"} and each[2] != "persistentvolumes"}
    assert {namespace for *_, namespace, _ in written} == {"shop", "web"}
    assert ("create", "", "pods/binding", "web", "") in written


def test_who_looks_on_asks_for_nothing_but_to_read(api, account):
    KubeCluster.connect("mine", server=api.server, options=LiveOptions(dry_run=True)).close()
    KubeView(server=api.server).close()
    assert {verb for verb, *_ in account.asked} == {"list", "watch"}


def test_a_replica_that_stands_by_is_told_at_once_and_not_when_it_leads(account, kubeconfig):
    account.forbidden = {"create pods/binding"}
    settings = SchedulerSettings(kubeconfig=kubeconfig, leader_elect=True, records=False)
    run = SchedulerRun(PolicySource(lambda: make_policy("least-allocated")), settings)
    with pytest.raises(UserError, match="may not create pods/binding"):
        run.run()


def test_a_candidate_that_may_not_renew_a_lease_is_told_so(account, kubeconfig):
    account.forbidden = {"update leases"}
    missing = pytest.raises(UserError, match="may not update leases/aaml-scheduler in kube-system")
    with (
        missing,
        scheduler_replica(ReplicaSettings(leader_elect=True), lambda: None, kubeconfig=kubeconfig, profile="mine"),
    ):
        pass


COMMANDS = {
    "top": (top, {"once": True}, "watch nodes"),
    "record": (record, {"out": Path("trace")}, "watch pods"),
    "simulate": (simulate, {"real": True}, "create deployments"),
    "clean": (clean, {}, "deletecollection pods"),
    "nodes": (nodes, {"node_count": 1, "real": True}, "create nodes"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_that_goes_to_a_cluster_names_what_is_missing(account, kubeconfig, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command, fields, right = COMMANDS[name]
    account.forbidden = {right}
    with pytest.raises(UserError, match=f"this account may not {right}"):
        command.run(command.Args(kubeconfig=kubeconfig, **fields))


@pytest.mark.parametrize("answer", [(404, status(404, "NotFound")), (403, status(403, "Forbidden")), (200, b"no JSON")])
def test_a_server_that_does_not_say_is_believed_to_grant_everything(api, answer):
    api.on("POST", REVIEWS, answer)
    rights.check(Transport(server=api.server), rights.BIND)


def test_a_server_that_is_away_is_said_to_be(api):
    api.down()
    with pytest.raises(UserError, match="no Kubernetes API answers"):
        rights.check(Transport(server=api.server), rights.BIND)


def granted(folder: str, name: str) -> set[tuple[str, str, str]]:
    """Return (verb, group, resource) of all that the roles of a folder's account grant."""
    found = set()
    for path in [DEPLOY / folder / "rbac.yaml"]:
        for role in yaml.safe_load_all(path.read_text()):
            for rule in role.get("rules", ()):
                found |= {(v, g, r) for v in rule["verbs"] for g in rule["apiGroups"] for r in rule["resources"]}
    for patch in yaml.safe_load((DEPLOY / name / "kustomization.yaml").read_text()).get("patches", ()):
        for each in yaml.safe_load(patch["patch"]) if patch["target"]["kind"] == "ClusterRole" else ():
            rule = each["value"]
            found |= {(v, g, r) for v in rule["verbs"] for g in rule["apiGroups"] for r in rule["resources"]}
    return found


@pytest.mark.parametrize(
    ("folder", "name", "asked"),
    [
        ("scheduler", "scheduler", (*rights.scheduling(preemption=False), *rights.LEASE)),
        ("scheduler", "scheduler-preemption", (*rights.scheduling(), *rights.LEASE)),
        ("shadow", "shadow", rights.scheduling(dry_run=True)),
        ("extender", "extender", rights.FILTER),
        ("extender", "extender-bind", (*rights.FILTER, *rights.BIND)),
        ("recorder", "recorder", rights.RECORD),
        ("autoscale", "autoscale", (*rights.PROVISION, *rights.LEASE)),
    ],
)
def test_a_manifest_grants_what_its_command_does_and_no_more(folder, name, asked):
    assert granted(folder, name) == {(each.verb, each.group, each.resource) for each in asked}


def words(asked: rights.Rights) -> str:
    """Return rights as the page lists them: "list, watch: nodes, pods; create: pods/binding"."""
    by_resource: dict[str, list[str]] = {}
    for each in asked:
        by_resource.setdefault(each.resource, []).append(each.verb)
    by_verbs: dict[str, list[str]] = {}
    for resource, verbs in by_resource.items():
        by_verbs.setdefault(", ".join(verbs), []).append(resource)
    return "; ".join(f"{verbs}: {', '.join(resources)}" for verbs, resources in by_verbs.items())


PAGE = {
    "`cluster top`, `lab` on a cluster": rights.LOOK,
    "`explain`, `when`": rights.QUEUE,
    "`record`": rights.RECORD,
    "`cluster top`, `lab`: the Lease of `autoscale`": rights.PROMISE,
    "`autoscale`": rights.LOOK_AT_CLAIMS,
    "`autoscale --apply`, with its Lease": (*rights.PROVISION, *rights.LEASE),
    "`schedule --dry-run`, the shadow": rights.scheduling(dry_run=True),
    "`serve`": rights.FILTER,
    "`serve --bind-verb`": rights.BIND,
    "`schedule`": rights.scheduling(preemption=False),
    "unless `--no-preemption`": rights.PREEMPT,
    "`--leader-elect`, its one Lease": rights.LEASE,
    "`cluster simulate`, `runsim`": rights.SIMULATE,
    "`cluster clean`": rights.CLEAN,
    "`cluster nodes`": rights.NODES,
    "`replay --on`": rights.REPLAY,
}


@pytest.mark.parametrize("command", PAGE)
def test_the_page_lists_what_each_command_does_on_a_cluster(command):
    asked = PAGE[command]
    needed, more = (words(tuple(each for each in asked if bool(each.without) is without)) for without in (False, True))
    text = (DEPLOY.parents[1] / "docs/rights.md").read_text()
    assert f"| {command} | {needed} | {more} |" in text
