"""Distilling a network: formulas that choose as it does, on states that it visits."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from aaml.cli import run
from aaml.errors import UserError
from aaml.evaluation.policies import load
from aaml.evolve.distil import Copying, VisitedStates, distil
from aaml.evolve.distil_settings import DistilConfig
from aaml.evolve.search import evolve
from aaml.evolve.settings import EvolveConfig
from aaml.policies.formulas.policy import Formula, FormulaPolicy
from aaml.policies.formulas.program import assemble
from aaml.policies.formulas.text import parse
from aaml.scheduling.observation import ObservationSpec
from aaml.scheduling.play import play
from aaml.sim.tasks import find_task

MODEL = Path(__file__).parents[3] / "models/Actor_acdqn_balance_s0.pth"
TINY = DistilConfig(
    nodes=(4,), pods=60, states=80, rounds=2, generations=3, population=16, size=11, tuned=1, validation_episodes=4
)


def test_states_are_those_that_the_driver_visits_with_what_the_network_would_choose():
    packing = FormulaPolicy(Formula(parse("pair.cpu_after")), "packing")
    spreading = FormulaPolicy(Formula(parse("-pair.cpu_after")), "spreading")
    states = []
    cluster = find_task("balance").build(1, 4, pods=40)
    play(cluster, VisitedStates(packing, spreading, ObservationSpec(), 1, states))
    assert len(states) == cluster.metrics()["bound"]
    for observation, row in states:  # the network's choice where the driver has been
        after = np.where(observation.mask, observation.pairs[:, 1], np.inf)
        assert row == after.argmin()
    assert sum(observation.nodes[:, 8].sum() for observation, _ in states) > len(states)  # nodes are left empty


def test_a_formula_agrees_with_itself_and_not_with_its_opposite():
    policy = FormulaPolicy(Formula(parse("-pair.cpu_after")))
    states = []
    play(find_task("balance").build(1, 4, pods=40), VisitedStates(policy, policy, ObservationSpec(), 2, states))
    copying = Copying(states)
    assert copying.race(assemble(parse("1 - 3 * pair.cpu_after"))).loss == 0.0
    assert copying.race(assemble(parse("pair.cpu_after"))).loss > 0.7


@pytest.mark.slow
def test_a_network_becomes_formulas_with_agreement_and_metric_beside_it(tmp_path):
    result = distil(MODEL, TINY, tmp_path, progress=False)
    assert len(result.network) == 4
    agreements = [each.agreement for each in result.front]
    assert agreements == sorted(agreements)
    assert 0.2 < agreements[-1] <= 1.0  # of four nodes
    files = sorted((tmp_path / "front").glob("*.formula"))
    assert len(files) == len(result.front)
    content = json.loads(files[-1].read_text())
    assert content["provenance"]["distilled_from"] == str(MODEL)
    assert load(files[-1]).name == files[-1].stem
    assert "What Actor_acdqn_balance_s0 has learned" in (tmp_path / "report.html").read_text()
    stale = tmp_path / "again" / "front" / "99.formula"
    stale.parent.mkdir(parents=True)
    stale.write_bytes(files[-1].read_bytes())
    again = distil(MODEL, TINY, tmp_path / "again", progress=False)
    assert again == result
    assert not stale.exists(), "formulas of an earlier distillation are none of this one"
    with pytest.raises(UserError, match="holds a study already"):
        evolve(EvolveConfig(), tmp_path / "again")


@pytest.mark.slow
def test_a_distillation_that_was_stopped_goes_on_to_the_same(tmp_path):
    whole = distil(MODEL, TINY, tmp_path / "whole", progress=False)
    kept = tmp_path / "cut" / "study.jsonl"

    def stop():
        return kept.is_file() and kept.read_bytes().count(b"\n") > 40

    cut = distil(MODEL, TINY, tmp_path / "cut", stop=stop, progress=False)
    assert cut.front, "the best so far are kept"
    again = distil(MODEL, TINY, tmp_path / "cut", resume=True, progress=False)
    assert (again.network, [each.losses for each in again.front]) == (
        whole.network, [each.losses for each in whole.front]
    )  # fmt: skip
    assert (whole.look.number, again.look.number) == (1, 2), "what it had come to when it was stopped was seen too"
    assert again.interval.high > whole.interval.high
    with pytest.raises(UserError, match="belongs to a study with another seed"):
        distil(MODEL, replace(TINY, seed=1), tmp_path / "cut", resume=True, progress=False)


def test_formulas_of_something_else_are_not_written_over(tmp_path):
    (tmp_path / "front.json").write_text("[]")
    with pytest.raises(UserError, match=r"front.json is there already; choose another --out"):
        distil(MODEL, TINY, tmp_path)


def test_the_command_prints_the_front(tmp_path, capsys):
    flags = ["--nodes", "4", "--pods", "40", "--states", "40", "--rounds", "1", "--generations", "1",
             "--population", "8", "--validation-episodes", "2", "--out", str(tmp_path)]  # fmt: skip
    assert run("search network", [str(MODEL), *flags]) == 0
    said = capsys.readouterr().out
    assert "the network itself" in said
    assert "size" in said
    assert run("search network", ["nothing.pth", *flags]) == 2
    assert "a model file that exists" in capsys.readouterr().err
