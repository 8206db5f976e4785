"""The core of the package, its extras, and what is said where one is missing."""

import importlib
import re
import sys
import tomllib
from pathlib import Path

import pytest

import aaml
from aaml import cli
from aaml.extras import EXTRAS, lazily

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

    args = importlib.import_module("aaml.commands.show.policies").Args
    assert cli.execute(args, handler, [], "aaml cluster top", None) == 2
    assert (
        capsys.readouterr().err
        == f"aaml cluster top: error: {module} is not installed; run: pip install 'aaml[{extra}]'\n"
    )


def test_a_module_that_no_extra_brings_is_a_defect_and_shows_its_traceback():
    def handler(_settings):
        raise ModuleNotFoundError("No module named 'aaml.nothing'", name="aaml.nothing")

    args = importlib.import_module("aaml.commands.show.policies").Args
    with pytest.raises(ModuleNotFoundError):
        cli.execute(args, handler, [], "aaml cluster top", None)


def test_a_program_that_needs_an_extra_is_told_which_in_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    with pytest.raises(aaml.UserError) as told:
        aaml.connect()
    assert str(told.value) == "kubernetes is not installed; run: pip install 'aaml[live]'"


def test_a_module_of_ours_that_needs_an_extra_says_so_when_it_is_first_used(monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    monkeypatch.delitem(sys.modules, "aaml.serve.metrics", raising=False)
    metrics = lazily("aaml.serve.metrics")
    with pytest.raises(aaml.UserError, match=r"^prometheus_client is not installed; run: pip install 'aaml\[live\]'$"):
        _ = metrics.Metrics


def test_a_lazy_module_gives_what_the_module_has(monkeypatch):
    monkeypatch.delitem(sys.modules, "aaml.workload.gorand", raising=False)
    lazy = lazily("aaml.workload.gorand")
    assert "aaml.workload.gorand" not in sys.modules
    with pytest.raises(AttributeError, match="nothing_of_it"):
        _ = lazy.nothing_of_it
    assert lazy.__name__ == sys.modules["aaml.workload.gorand"].__name__
