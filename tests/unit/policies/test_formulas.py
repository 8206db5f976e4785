"""Formulas: text, values, simpler forms, files."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import aaml
from aaml.cli import run
from aaml.errors import UserError
from aaml.evaluation.policies import load_policy
from aaml.insight.explain import explain
from aaml.policies.formula_file import load_formula, save_formula
from aaml.policies.formulas.expression import (
    FIRST_POD,
    NUMBERED,
    constants,
    evaluate,
    features,
    parts,
    simplify,
    terms,
    with_constants,
)
from aaml.policies.formulas.policy import Formula, FormulaPolicy
from aaml.policies.formulas.program import assemble, registers_of
from aaml.policies.formulas.text import parse, to_latex, to_python, to_text
from aaml.policies.registry import make_policy
from aaml.scheduling.cycle import SchedulingCycle
from aaml.scheduling.observation import ObservationSpec
from aaml.sim.tasks import find_task
from support.formulas import expressions, values_of_features

LEAST_VARIANCE = "-(pair.cpu_growth_scaled + pair.memory_growth_scaled)"


@given(expressions)
@settings(deadline=None)
def test_text_is_read_back_to_the_same_formula(expression):
    assert parse(to_text(expression)) == expression


@given(expressions, st.integers(0, 1000))
@settings(max_examples=300, deadline=None)
def test_a_simpler_form_is_not_longer_and_has_the_same_value(expression, seed):
    values, simpler = values_of_features(seed), simplify(expression)
    assert parts(simpler) <= parts(expression)
    assert evaluate(simpler, values) == evaluate(expression, values)


@given(expressions, st.integers(0, 1000))
@settings(max_examples=300, deadline=None)
def test_compiled_values_are_those_of_the_expression_and_always_finite(expression, seed):
    program, nodes = assemble(expression), [values_of_features(seed + k) for k in range(3)]
    for each in nodes:  # what is of the pod is the same on all nodes
        each |= {name: nodes[0][name] for name in features(expression) if NUMBERED[name] >= FIRST_POD}
    columns = np.array([[each[name] for each in nodes] for name in features(expression)], dtype=np.float32)
    compiled = registers_of(program, columns.reshape(len(features(expression)), len(nodes)))[-1]
    told = [evaluate(expression, {name: float(np.float32(x)) for name, x in each.items()}) for each in nodes]
    assert np.isfinite(compiled).all()
    assert compiled.tolist() == told


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1 / 0", 1e6), ("1 / -0.0000001", -1e6), ("-3 / 0", -3e6), ("log(0)", math.log(1e-6)), ("log(-1)", 0.0),
        ("sqrt(-4)", 2.0), ("exp(100)", math.exp(27)), ("square(1e9)", 1e12), ("1e12 * -5", -1e12),
        ("2 ** 2 if 1 < 2 else 9", 4.0), ("3 if not (1 < 2 and 2 <= 1) else 9", 3.0), ("min(3, 1, 2)", 1.0),
        ("1 - 2 - 3", -4.0), ("1 - (2 - 3)", 2.0), ("8 / 4 / 2", 1.0), ("-2 * 3", -6.0),
    ],
)  # fmt: skip
def test_operators_are_protected_as_the_docs_say(text, value):
    expression = parse(text)
    assert evaluate(expression, {}) == pytest.approx(value, rel=1e-12)
    assert registers_of(assemble(expression), np.zeros((0, 2), np.float32))[-1] == pytest.approx(value, rel=1e-12)


def test_size_counts_what_is_written():
    expression = parse("pod.cpu * 2.5 + min(pair.cpu_after, pod.cpu)")
    assert parts(expression) == 7  # three features, a number, three operators
    assert terms(expression) == 4
    assert features(expression) == ("pair.cpu_after", "pod.cpu")
    assert constants(expression) == (2.5,)
    assert to_text(with_constants(expression, iter([3.0]))) == "pod.cpu * 3.0 + min(pair.cpu_after, pod.cpu)"


@pytest.mark.parametrize(
    ("text", "simpler"),
    [
        ("pod.cpu * 0 + pair.pods", "pair.pods"), ("pod.cpu - pod.cpu", "0.0"),
        ("pod.cpu * pod.cpu", "square(pod.cpu)"),
        ("-(-pod.cpu)", "pod.cpu"), ("0 - pod.cpu", "-pod.cpu"), ("pod.cpu + -0.5", "pod.cpu - 0.5"),
        ("pod.cpu if 1 < 2 else pair.pods", "pod.cpu"), ("abs(abs(pod.cpu))", "abs(pod.cpu)"),
        ("log(-pod.cpu)", "log(pod.cpu)"), ("2 + 3 * 4", "14.0"),
        ("1e12 + 1e12", "1000000000000.0 + 1000000000000.0"),  # no constant may be that large
    ],
)  # fmt: skip
def test_what_adds_nothing_is_left_out(text, simpler):
    assert to_text(simplify(parse(text))) == simpler


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("pair.nothing + 1", "expected a feature such as pair.cpu_after"), ("x", "expected a feature"),
        ("pod.cpu +", "expected an expression"), ("pod.cpu < 1", "has a condition where a number is expected"),
        ("1 if pod.cpu else 2", "has a number where a condition is expected"), ("__import__('os')", "expected numbers"),
        ("sin(1)", "expected numbers"), ("1e400", "expected constants between"), ("pod.cpu // 2", "expected numbers"),
        ("(" * 300 + "1" + ")" * 300, "expected an expression"), (" + ".join(["1"] * 400), "at most 500"),
        ("lambda: 1", "expected numbers"), ("True", "expected numbers"),
    ],
)  # fmt: skip
def test_what_is_no_formula_is_refused_in_a_line(text, said):
    with pytest.raises(UserError, match="expression") as refused:
        parse(text)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_latex_is_maths():
    assert to_latex(parse("pod.cpu / 2 - (1 - 3e-7) * sqrt(pair.cpu_after)")) == (
        r"\frac{\mathrm{cpu}_{\mathrm{pod}}}{2} - \left(1 - 3 \cdot 10^{-7}\right) \, "
        r"\sqrt{\mathrm{cpu\_after}_{\mathrm{pair}}}"
    )


@given(expressions)
@settings(max_examples=50, deadline=None)
def test_latex_has_every_bracket_closed(expression):
    latex = to_latex(expression)
    assert latex.count("{") == latex.count("}")
    assert latex.count(r"\left") == latex.count(r"\right")
    assert latex.count(r"\begin") == latex.count(r"\end")


def _context(seed=3):
    cluster = find_task("balance").build(seed, 6)
    for _ in range(40):
        pod = cluster.next_pod(0.0)
        context = SchedulingCycle(cluster).begin(pod)
        node_index = int(np.flatnonzero(context.mask)[0])
        cluster.bind(pod, node_index)
    return SchedulingCycle(cluster).begin(cluster.next_pod(0.0))


TEXTS = (
    LEAST_VARIANCE,
    "log(pair.cpu_after / pod.memory) * 3 - exp(-pair.pods) if not pod.cpu < 0.1 else square(pair.cpu_gap) * -2",
    "0.5",
    "max(pod.cpu, pair.memory_after) + sqrt(node.empty - 3) if pair.cpu_after < 0.5 or pod.queue <= 0 else -1",
)


@pytest.mark.parametrize("text", TEXTS)
def test_python_that_is_pasted_into_a_file_scores_alike(text, tmp_path):
    context, expression = _context(), parse(text)
    (tmp_path / "mine.py").write_text(to_python(expression, "my-rule"))
    mine = make_policy(f"{tmp_path / 'mine.py'}:my_rule")
    np.testing.assert_allclose(mine.scores(context), FormulaPolicy(Formula(expression)).scores(context), rtol=1e-12)
    assert mine.act(context) == FormulaPolicy(Formula(expression)).act(context)


@pytest.mark.parametrize(
    ("stem", "name"),
    [
        ("05", "formula_05"),
        ("class", "formula_class"),
        ("np", "formula_np"),
        ("times", "formula_times"),
        ("a b", "a_b"),
    ],
)
def test_python_has_a_name_that_a_function_may_have(stem, name, tmp_path):
    """A search calls the formulas of its front 05, 07 ..."""
    context, expression = _context(), parse("pod.cpu * pair.cpu_after")
    (tmp_path / "mine.py").write_text(to_python(expression, stem))
    mine = make_policy(f"{tmp_path / 'mine.py'}:{name}")
    np.testing.assert_allclose(mine.scores(context), FormulaPolicy(Formula(expression)).scores(context), rtol=1e-12)


def test_a_file_holds_the_text_the_features_and_where_it_came_from_and_is_a_policy(tmp_path):
    path = tmp_path / "mine.formula"
    save_formula(Formula(parse(LEAST_VARIANCE), provenance={"task": "balance", "command": "by hand"}), path)
    content = json.loads(path.read_text())
    assert content["expression"] == LEAST_VARIANCE
    assert content["features"] == {"pair.cpu_growth_scaled": 1, "pair.memory_growth_scaled": 1}
    assert content["provenance"] == {"task": "balance", "command": "by hand"}
    policy = load_policy(str(path))
    assert policy.name == "mine"
    context = _context()
    assert policy.act(context) == make_policy("least-variance").act(context)


def test_what_features_are_measured_with_is_one_line_however_long(tmp_path):
    path, spec = tmp_path / "mine.formula", ObservationSpec(lookahead=3, lifetimes=True)
    save_formula(Formula(parse("pair.cpu_after"), spec), path)
    assert sum('"lookahead": 3, "lifetimes": true' in line for line in path.read_text().splitlines()) == 1
    assert load_formula(path).observation_spec == spec


def test_a_person_may_name_constants_in_the_file(tmp_path):
    path = tmp_path / "mine.formula"
    save_formula(Formula(parse("pair.cpu_after * 2")), path)
    content = json.loads(path.read_text()) | {"expression": "pair.cpu_after * weight", "constants": {"weight": -3}}
    path.write_text(json.dumps(content))
    assert str(load_formula(path)) == "pair.cpu_after * -3"


def of_band(band):
    """An observation that knows how many pods ended in a band of age."""
    return {
        "lookahead": 0, "lifetimes": False, "racks": False, "typical_pods": None,
        "expects": {"classes": [{"key": "", "around": -1, "bands": [[band, 1.0, 1.0]]}]},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"features": {"pair.cpu_after": 2}}, "version of pair.cpu_after: 2 is not accepted; expected 1"),
        ({"features": {}}, "version of pair.cpu_after: 'none' is not accepted"),
        ({"expression": "pair.cpu_afer"}, "pair.cpu_afer"),
        ({"format": "aaml-linear"}, "expected"),
        ({"constants": 3}, "constants: Expected `object`, got `int` (3)"),
        ({"observation": {}}, "observation: lacks 'typical_pods'"),
        ({"observation": of_band(100)}, "observation: says of no observation what it is (band 100 of 51)"),
        ({"observation": of_band(-1)}, "observation: says of no observation what it is (band -1 of 51)"),
        ({"observation": of_band(1.5)}, "observation: says of no observation what it is (band 1.5 of 51)"),
        (
            {"observations": {}},
            "unknown field `observations`; did you mean observation? Expected one of format, expression,",
        ),
    ],
)
def test_a_file_that_is_none_or_about_other_features_is_refused_in_a_line(tmp_path, change, said):
    path = tmp_path / "mine.formula"
    save_formula(Formula(parse("pair.cpu_after * 2")), path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(UserError, match=r"mine\.formula") as refused:
        load_formula(path)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_explain_says_what_each_term_is_worth():
    context = _context()
    policy = FormulaPolicy(Formula(parse("2 * pair.cpu_after - (pair.cpu_gap - pod.cpu)")))
    explained = explain(context, policy)
    assert list(explained.parts) == ["2 * pair.cpu_after", "pair.cpu_gap", "pod.cpu"]
    np.testing.assert_allclose(sum(explained.parts.values()), policy.scores(context))
    pairs = context.observation.pairs
    np.testing.assert_allclose(explained.parts["2 * pair.cpu_after"], 2 * pairs[:, 1], rtol=1e-6)
    assert "2 * pair.cpu_after - (pair.cpu_gap - pod.cpu)" in explained.parts_are


def test_the_command_prints_a_formula_as_text_latex_and_python(tmp_path, capsys):
    path = tmp_path / "mine.formula"
    save_formula(Formula(parse(LEAST_VARIANCE)), path)
    assert run("show formula", [str(path)]) == 0
    shown = capsys.readouterr().out
    assert LEAST_VARIANCE in shown
    assert r"\mathrm{cpu\_growth\_scaled}" in shown
    assert run("show formula", [str(path), "--form", "python"]) == 0
    compile(capsys.readouterr().out, "mine.py", "exec")


def test_a_formula_schedules(tmp_path):
    path = tmp_path / "mine.formula"
    save_formula(Formula(parse(LEAST_VARIANCE)), path)
    cluster = find_task("balance").build(1, 4, pods=30)
    stats = aaml.schedule(str(path), cluster, progress=False)
    assert stats.binds["bound"] == 30
