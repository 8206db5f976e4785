"""The package as others install it: the wheel's core in an empty environment trains, evaluates, and has its weights."""

import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
UV = str(Path(sys.executable).with_name("uv"))
PROGRAM = """
import importlib.util, json, time
for left_out in ("jupyterlab", "supervisor", "ipywidgets", "textual", "kubernetes", "bokeh"):
    assert importlib.util.find_spec(left_out) is None, left_out
import aaml
task = aaml.task("balance", nodes=3, pods=30)
agent = aaml.train("acdqn", task, steps=200, out=f"run{time.time()}", envs=1, validation_episodes=1, teacher="none")
results = aaml.evaluate([agent, "varied-acdqn", "kube-scheduler"], task, seeds=range(1000, 1002))
print(json.dumps([aaml.__file__, sorted(results.runs["policy"].unique())]))
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """An environment of its own with the wheel and what the core needs, at the locked versions."""
    place = tmp_path_factory.mktemp("wheel")
    subprocess.run([UV, "build", "--quiet", "--wheel", "--out-dir", place, ROOT], check=True)
    (wheel,) = place.glob("*.whl")
    lock = place / "lock.txt"  # a torch without CUDA stays without it
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    lock.write_text("\n".join(line for line in lines if not line.startswith(("nvidia", "cuda", "triton"))))
    venv.create(place / "env")
    subprocess.run(
        [UV, "pip", "install", "--quiet", "--python", place / "env/bin/python", "--constraint", lock, wheel],
        check=True,
    )
    lend_bytecode(place)
    return place


def lend_bytecode(place):
    """Spare the new environment to compile what the one of the tests has compiled of the same files."""
    (packages,) = (place / "env").glob("lib/python*/site-packages")
    ours = Path(sysconfig.get_path("purelib"))
    for folder in [each for each in packages.rglob("*") if each.is_dir()]:
        compiled = ours / folder.relative_to(packages) / "__pycache__"
        if compiled.is_dir() and not (folder / "__pycache__").exists():
            shutil.copytree(compiled, folder / "__pycache__", copy_function=shutil.copy2)


def test_the_core_trains_and_judges_the_weights_that_ship(installed):
    made = subprocess.run(
        [installed / "env/bin/python", "-c", PROGRAM], cwd=installed, capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, made.stderr
    assert str(installed / "env") in made.stdout
    assert '["acdqn", "kube-scheduler", "varied-acdqn"]' in made.stdout
    assert "no report: bokeh is not installed; run: pip install 'aaml[lab]'" in made.stderr


@pytest.mark.parametrize(
    ("command", "missing"), [("cluster top", "kubernetes"), ("serve", "starlette"), ("demo", "bokeh")]
)
def test_a_command_of_an_extra_says_how_to_install_it(installed, command, missing):
    told = subprocess.run(
        [installed / "env/bin/aaml", *command.split()], cwd=installed, capture_output=True, text=True, check=False
    )
    assert told.returncode == 2
    assert told.stderr.startswith(f"aaml {command}: error: {missing} is not installed; run: pip install 'aaml[")
    assert told.stderr.count("\n") == 1
