"""What the image installs: run-time dependencies at the locked versions, the base image's own torch left alone."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def requirements():
    """The script that runs inside the image build, as a module."""
    spec = importlib.util.spec_from_file_location("image_requirements", ROOT / "docker" / "requirements.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


LOCK = """\
cuda-toolkit==13.2 ; sys_platform == 'linux'
nvidia-cublas==13.4
torch==2.15.0
torch-geometric==2.8
triton==3.9
"""


def test_a_base_image_with_torch_keeps_its_torch_and_cuda(requirements):
    assert requirements.constraints(LOCK, "2.10.0") == ["torch-geometric==2.8"]


def test_a_base_image_without_torch_gets_the_locked_one(requirements):
    assert requirements.constraints(LOCK, None) == LOCK.splitlines()


def test_packages_are_those_of_the_core_of_the_container_and_the_build_back_end(requirements):
    pyproject = """
[build-system]
requires = ["hatchling>=1"]
[project]
dependencies = ["torch>=2.7"]
[project.optional-dependencies]
live = ["kubernetes>=33"]
lab = ["aaml[live]", "bokeh>=3"]
container = ["aaml[lab,live]", "supervisor>=4"]
dev = ["pytest"]
"""
    needed = ["torch>=2.7", "hatchling>=1", "kubernetes>=33", "bokeh>=3", "supervisor>=4"]
    assert requirements.packages(pyproject) == needed


def test_both_files_are_written_and_a_linter_setting_does_not_change_them(requirements, tmp_path):
    pyproject = (ROOT / "pyproject.toml").read_text()
    other = tmp_path / "pyproject.toml"
    other.write_text(pyproject + "\n[tool.another]\nsetting = 1\n")
    lock = str(ROOT / "requirements.lock")
    requirements.main(str(ROOT / "pyproject.toml"), lock, str(tmp_path / "one"))
    requirements.main(str(other), lock, str(tmp_path / "two"))
    for name in ("packages.txt", "constraints.txt"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    packages = (tmp_path / "one" / "packages.txt").read_text()
    for needed in ("jupyterlab", "tensorboard", "supervisor", "torch-geometric", "hatchling"):
        assert re.search(rf"^{needed}\b", packages, re.MULTILINE)
    assert "pytest" not in packages
