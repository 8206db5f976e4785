"""The scripts' flags are those people know, their help is light, and their mistakes are one line."""

import subprocess
import sys
from pathlib import Path

import pytest

from aaml.commands import record, schedule
from aaml.commands.cluster import nodes, simulate
from aaml.commands.flags import parse
from aaml.errors import UserError
from aaml.learning.config import SCRIPT_NAMES

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted(path.name for path in (ROOT / "scripts").glob("*.py"))
HEAVY = {"torch", "torch_geometric", "numba", "kubernetes", "pandas", "tensorboard", "matplotlib", "networkx"}

VALUE = {
    "hidden_layers": 32, "init_epsi": 1.0, "epsi_decay": 0.995, "gamma": 0.99, "learning_rate": 0.001,
    "batch_size": 200, "progress": False, "log_scrolling": False, "use_heuristic": False,
}  # fmt: skip
ACTOR_CRITIC = {
    "hidden_layers": 32, "gamma": 0.95, "actor_learning_rate": 0.001, "critic_learning_rate": 0.001, "progress": False,
    "log_scrolling": False,
}  # fmt: skip
LEARNED = schedule.LEARNED
DEFAULTS = [
    (
        LEARNED["dqn"],
        VALUE | {"replay_buffer_size": 2000, "update_frequency": 25, "target_update_frequency": 50},
    ),
    (
        LEARNED["gnn"],
        VALUE | {"replay_buffer_size": 1000, "update_frequency": 20, "target_update_frequency": 40},
    ),
    (LEARNED["acdqn"], ACTOR_CRITIC),
    (LEARNED["acgnn"], ACTOR_CRITIC),
    (
        simulate.Args,
        {"cpu_load": 0.2, "mem_load": 0.2, "pod_load": 0.2, "cluster_resets": 2, "scheduler_name": "custom-scheduler"},
    ),
    (record.Args, {"scheduler_name": "default-scheduler"}),
]


def run(script, *flags, folder=ROOT, stdin=subprocess.DEVNULL):
    command = [sys.executable, str(ROOT / "scripts" / script), *flags]
    return subprocess.run(command, cwd=folder, stdin=stdin, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize(("settings", "expected"), DEFAULTS)
def test_flags_and_defaults_are_those_of_the_platform_we_grow_from(settings, expected):
    parsed = parse(settings, [], "script", None)
    given = {**vars(parsed), **vars(getattr(parsed, "agent", parsed))}
    given |= {old: given[new] for old, new in SCRIPT_NAMES.items() if new in given and old not in given}
    assert {name: given.get(name, "missing") for name in expected} == expected


@pytest.mark.parametrize("style", ["--hidden_layers", "--hidden-layers"])
def test_flags_are_taken_with_dashes_and_underscores(style):
    assert parse(schedule.LEARNED["dqn"], [style, "64"], "script", None).agent.hidden_size == 64


@pytest.mark.parametrize("script", SCRIPTS)
def test_help_needs_none_of_the_heavy_libraries(script):
    code = (
        "import runpy, sys\n"
        f"sys.argv = [{script!r}, '--help']\n"
        f"try: runpy.run_path({str(ROOT / 'scripts' / script)!r}, run_name='__main__')\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        f"print('HEAVY', sorted({HEAVY!r} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stderr
    assert "usage: " in result.stdout
    assert result.stdout.splitlines()[-1] == "HEAVY []"


def test_help_shows_the_flags_with_underscores():
    text = run("scheduler_dqn.py", "--help").stdout
    for flag in (
        "--buffer_size",
        "--target_update_frequency",
        "--use_heuristic",
        "--log_scrolling",
        "--dry_run",
    ):
        assert flag in text


NO_CLUSTER = """
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "http://127.0.0.1:9"}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
users: [{name: u, user: {}}]
current-context: x
"""


@pytest.mark.parametrize(
    "script",
    ["scheduler_dqn.py", "workload_deployment_simulator.py", "scheduler_record.py", "kinfo.py", "cleanup_cluster.py"],
)
def test_no_cluster_is_one_line(tmp_path, script):
    (tmp_path / "config").write_text(NO_CLUSTER)
    flags = ["--once"] if script == "kinfo.py" else []
    result = run(script, "--kubeconfig", str(tmp_path / "config"), *flags, folder=tmp_path)
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith(f"{script}: error: ")
    assert "http://127.0.0.1:9" in last


def test_a_kubeconfig_that_is_not_there_is_named(tmp_path):
    result = run("kinfo.py", "--once", "--kubeconfig", "nowhere.yaml", folder=tmp_path)
    assert (result.returncode, result.stderr.strip()) == (
        2, "kinfo.py: error: kubeconfig: 'nowhere.yaml' does not exist",
    )  # fmt: skip


@pytest.mark.parametrize("content", [b"", b"not a model", b"PK\x03\x04 half a zip"])
def test_a_model_that_is_none_is_one_line_and_nothing_is_written(tmp_path, content):
    (tmp_path / "DQN_Model_x.pth").write_bytes(content)
    result = run("scheduler_dqn.py", "--cluster", "sim", "--model", "DQN_Model_x.pth", folder=tmp_path)
    assert result.returncode == 2
    assert result.stderr.strip().splitlines()[-1].startswith("scheduler_dqn.py: error: model DQN_Model_x.pth: ")
    assert "Traceback" not in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["DQN_Model_x.pth"]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--playback", "bad.csv"], ["bad.csv, line 3, column pod_count", "'x'"]),
        (["--shapes", "bad.csv"], ["bad.csv, line 3", "column name"]),
        (["--playback", "none.csv"], ["none.csv: cannot be read"]),
        (["--cpu_load", "2"], ["cpu_load: 2.0", "at most 1"]),
        (["--cluster_resets", "-1"], ["cluster_resets: -1"]),
        (["--sim_policy", "magic"], ["policy: 'magic'", "kube-scheduler"]),
    ],
)
def test_a_wrong_flag_or_file_of_the_simulator_is_one_line(tmp_path, flags, words):
    header = "name,pod_count,cpu_request,cpu_limit,mem_request,mem_limit,action"
    (tmp_path / "bad.csv").write_text(
        f"{header}\nweb,1,1,,1Gi,,create\nW!,x,1,,1Gi,,create\n".replace("W!,x", "web2,x")
    )
    if "--shapes" in flags:
        (tmp_path / "bad.csv").write_text("name,weight\nweb,1\nW!,1\n")
    result = run("workload_deployment_simulator.py", "--cluster", "sim", *flags, folder=tmp_path)
    assert result.returncode == 2, result.stderr
    last = result.stderr.strip().splitlines()[-1]
    assert "Traceback" not in result.stderr
    for word in words:
        assert word in last


def test_the_number_of_nodes_is_asked_for_at_a_terminal_only(tmp_path):
    result = run("create_nodes.py", folder=tmp_path)
    assert (result.returncode, result.stderr.strip()) == (
        2, "create_nodes.py: error: node_count: is missing; give --node_count N (it is only asked for at a terminal)",
    )  # fmt: skip


def test_the_prompt_for_nodes_checks_the_answer(monkeypatch):
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda _question: "ten")
    with pytest.raises(UserError, match="'ten' is not accepted"):
        nodes.run(nodes.Args())


def test_the_aliases_scripts_are_all_there():
    assert set(SCRIPTS) >= {
        "actorcritic_dqn.py", "actorcritic_gnn.py", "cleanup_cluster.py", "create_nodes.py", "kinfo.py",
        "scheduler_dqn.py", "scheduler_gnn.py", "scheduler_record.py", "workload_deployment_simulator.py",
    }  # fmt: skip
