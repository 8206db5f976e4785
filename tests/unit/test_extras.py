"""The core of the package, its extras, and what is said where one is missing."""

import importlib
import re
import tomllib
from pathlib import Path

import pytest

from aaml import cli
from aaml.extras import EXTRAS

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRA = PROJECT["optional-dependencies"]


def names(lines):
    return {re.split(r"[<>=\[]", line)[0].replace("-", "_").lower() for line in lines if not line.startswith("aaml[")}


def test_every_package_of_an_extra_is_said_to_be_in_it():
    brought = {name: extra for extra in EXTRA if extra not in {"dev", "all"} for name in names(EXTRA[extra])}
    assert brought == dict(EXTRAS)


def test_the_core_needs_no_cluster_no_notebooks_and_no_pages():
    assert not names(PROJECT["dependencies"]) & set(EXTRAS)


def test_developers_and_the_image_have_everything():
    assert EXTRA["all"] == ["aaml[container,ray,solver]"]
    assert "aaml[all]" in EXTRA["dev"]


@pytest.mark.parametrize(("module", "extra"), [("kubernetes", "live"), ("bokeh", "lab"), ("ray", "ray")])
def test_a_command_without_its_extra_says_which_in_one_line(module, extra, capsys):
    def handler(_settings):
        raise ModuleNotFoundError(f"No module named '{module}.sub'", name=f"{module}.sub")

    args = importlib.import_module("aaml.commands.policies").Args
    assert cli.execute(args, handler, [], "aaml top", None) == 2
    assert capsys.readouterr().err == f"aaml top: error: {module} is not installed; run: pip install 'aaml[{extra}]'\n"


def test_a_module_that_no_extra_brings_is_a_defect_and_shows_its_traceback():
    def handler(_settings):
        raise ModuleNotFoundError("No module named 'aaml.nothing'", name="aaml.nothing")

    args = importlib.import_module("aaml.commands.policies").Args
    with pytest.raises(ModuleNotFoundError):
        cli.execute(args, handler, [], "aaml top", None)
