"""docker/aliases.sh in a real interactive bash, and its names as commands without a shell."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = {
    "rundqn": "scheduler_dqn.py",
    "rungnn": "scheduler_gnn.py",
    "runacdqn": "actorcritic_dqn.py",
    "runacgnn": "actorcritic_gnn.py",
    "runsim": "workload_deployment_simulator.py",
    "ktop": "kinfo.py",
    "cleancluster": "cleanup_cluster.py",
}
KUBECTL = {
    "k": "",
    "kg": "get",
    "kgp": "get pods",
    "kgn": "get nodes",
    "kge": "get events --sort-by=.lastTimestamp",
    "kd": "describe",
    "kdp": "describe pod",
    "kdel": "delete",
    "kl": "logs",
}
ECHO = '#!/bin/sh\necho "RAN $0 $*"\n'


def program(path):
    """A program that says how it was called."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(ECHO)
    path.chmod(0o755)
    return path


def interactive(aliases, lines, path):
    """What an interactive bash prints that starts outside the clone and has sourced the aliases."""
    script = "\n".join([f"source '{aliases}'", *lines, "exit", ""])
    environ = {"PATH": path, "HOME": "/nonexistent", "PS1": ""}
    command = ["/bin/bash", "--norc", "--noprofile", "-i"]
    answer = subprocess.run(
        command, input=script, env=environ, capture_output=True, text=True, check=True, cwd="/", timeout=60
    )
    return answer.stdout.splitlines()


@pytest.fixture
def clone(tmp_path):
    """A clone in a folder with a blank and a quote in its name."""
    clone = tmp_path / "it's a clone"
    (clone / "docker").mkdir(parents=True)
    (clone / "docker" / "aliases.sh").write_text((ROOT / "docker" / "aliases.sh").read_text())
    shutil.copytree(ROOT / "docker" / "bin", clone / "docker" / "bin", symlinks=True)
    # bash has to read the quote too
    link = tmp_path / "aliases.sh"
    link.write_text(f'source "{clone}/docker/aliases.sh"\n')
    return clone


def source(clone):
    return clone.parent / "aliases.sh"


def test_in_a_clone_the_scripts_run_by_its_own_python(clone):
    python = program(clone / ".venv" / "bin" / "python")
    output = interactive(source(clone), [f"{name} --flag 'one two'" for name in SCRIPTS], "/usr/bin:/bin")
    assert output == [f"RAN {python} {clone}/scripts/{script} --flag one two" for script in SCRIPTS.values()]


def test_in_the_container_the_scripts_run_by_the_only_python(clone, tmp_path):
    python = program(tmp_path / "bin" / "python3")
    output = interactive(source(clone), list(SCRIPTS), f"{python.parent}:/usr/bin:/bin")
    assert output == [f"RAN {python} {clone}/scripts/{script}" for script in SCRIPTS.values()]


def test_kubectl_has_its_short_names(clone, tmp_path):
    kubectl = program(tmp_path / "bin" / "kubectl")
    output = interactive(source(clone), [f"{name} web" for name in KUBECTL], f"{kubectl.parent}:/usr/bin:/bin")
    assert output == [f"RAN {kubectl} {words} web".replace("  ", " ") for words in KUBECTL.values()]


def test_without_kubectl_the_one_of_the_cluster_is_taken(clone, tmp_path):
    aaml = program(clone / ".venv" / "bin" / "aaml")
    (tmp_path / "bin").mkdir()
    for name in ("bash", "dirname"):
        (tmp_path / "bin" / name).symlink_to(f"/bin/{name}")
    output = interactive(source(clone), ["kgp -A"], str(tmp_path / "bin"))
    assert output == [f"RAN {aaml} cluster kubectl -- get pods -A"]


def test_every_name_is_a_command_of_its_own_as_the_container_runs_it(clone, tmp_path):
    """`docker compose exec pytorch-container rundqn` has no shell that knows an alias."""
    assert {file.name for file in (ROOT / "docker" / "bin").iterdir()} == {*SCRIPTS, *KUBECTL, "aliases"}
    python = program(tmp_path / "bin" / "python3")
    environ = {"PATH": f"{clone}/docker/bin:{python.parent}:/usr/bin:/bin"}
    answer = subprocess.run(["/usr/bin/env", "rundqn", "-h"], env=environ, capture_output=True, text=True, check=True)
    assert answer.stdout == f"RAN {python} {clone}/scripts/scheduler_dqn.py -h\n"
    dockerfile = (ROOT / "docker" / "Dockerfile").read_text()
    assert "PATH=/home/appuser/aaml/docker/bin:$PATH" in dockerfile


def test_aliases_lists_all_of_them(clone):
    output = interactive(source(clone), ["aliases"], os.environ["PATH"])
    assert [line.split()[0] for line in output] == [*SCRIPTS, *KUBECTL, "aliases"]
    assert all(len(line.split()) > 1 for line in output)


def test_the_aliases_name_scripts_that_exist():
    missing = [script for script in SCRIPTS.values() if not (ROOT / "scripts" / script).is_file()]
    assert missing == []
