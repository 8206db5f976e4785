"""The search for formulas: what it finds, that it goes on to the bit, and that it is honest."""

import json
import math
import signal
from dataclasses import replace

import numpy as np
import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from aaml.cli import run
from aaml.errors import StoppedError, UserError
from aaml.evaluation.evaluate import evaluate
from aaml.evaluation.statistics import t_quantile
from aaml.evolve import front as fronts
from aaml.evolve.cases import training
from aaml.evolve.front import Evaluated, chosen, look, looks, undominated
from aaml.evolve.grammar import Grammar, at, put, twin
from aaml.evolve.island import Islands, training_cases
from aaml.evolve.island import evaluate as evaluate_formula
from aaml.evolve.races import EpisodeRaces, Scores, relative
from aaml.evolve.search import evolve, read_config
from aaml.evolve.settings import EvolveConfig
from aaml.policies.formula_file import save_formula
from aaml.policies.formulas.expression import FEATURES, kind, parts, walk
from aaml.policies.formulas.policy import Formula
from aaml.policies.formulas.program import assemble
from aaml.policies.formulas.text import parse, to_text
from aaml.sim.task_episodes import TaskEpisodes
from aaml.sim.tasks import find_task
from aaml.training.rollouts import TRAINING_SEEDS
from aaml.training.validation import VALIDATION_SEEDS
from support.formulas import expressions

TINY = EvolveConfig(
    nodes=(4,), pods=40, episodes=8, validation_episodes=6, population=12, islands=2, generations=4, migrate_every=2,
    size=15, tuned=1,
)  # fmt: skip
LEAST_VARIANCE = "-(pair.cpu_growth_scaled + pair.memory_growth_scaled)"


@given(expressions, expressions, st.integers(0, 10_000))
@settings(deadline=None, max_examples=100)
def test_children_are_formulas_of_the_right_types_and_not_too_large(mother, father, seed):
    grammar = Grammar(FEATURES, 40)
    child = grammar.child(mother, father, np.random.default_rng(seed))
    assert parse(to_text(child)) == parse(to_text(parse(to_text(child))))
    assert kind(child) == "n"
    assert parts(child) <= max(40, parts(mother))


@given(expressions)
@settings(deadline=None, max_examples=50)
def test_every_part_has_a_place(expression):
    for place, each in enumerate(walk(expression)):
        assert at(expression, place) is each
        assert put(expression, place, each) == expression


def test_the_twin_is_about_the_other_resource():
    assert to_text(twin(parse("pair.cpu_gap * pod.memory - node.empty"))) == "pair.memory_gap * pod.cpu - node.empty"


def bred(config, generations):
    """Return the front of a search's first island after some generations."""
    islands, cases = Islands(config, training_cases(config)), training_cases(config)
    for _ in range(generations):
        islands.tell([evaluate_formula(cases, each) for each in islands.ask()])
    return islands.fronts[0]


def test_a_short_search_finds_least_variance_again():
    config = replace(TINY, episodes=16, population=40, size=9, islands=1)
    front = bred(config, 12)
    program = assemble(parse(LEAST_VARIANCE))
    races = EpisodeRaces(config, VALIDATION_SEEDS, 16)
    known = races.play(program, range(16)).mean()
    best = min((races.play(assemble(parse(text)), range(16)).mean(), text) for text, _, _ in front)
    assert known == pytest.approx(0.0, abs=0.1)  # the rule itself, but for what it reckons of pods that ask for nothing
    assert best[0] < known + 0.1, best


@pytest.mark.slow
def test_the_same_search_is_the_same_however_it_is_cut_and_spread(tmp_path):
    whole = evolve(TINY, tmp_path / "whole", progress=False)
    kept = tmp_path / "cut/study.jsonl"
    evolve(TINY, tmp_path / "cut", stop=lambda: kept.is_file() and kept.read_bytes().count(b"\n") > 60, progress=False)
    assert 0 < generations(tmp_path / "cut") < generations(tmp_path / "whole") == 4
    again = evolve(replace(TINY, workers="2"), tmp_path / "cut", resume=True, progress=False)
    assert again == whole
    formulas = [
        [(each.number, each.state, each.values, each.user_attrs) for each in trials(tmp_path / name)]
        for name in ("whole", "cut")
    ]
    assert formulas[0] == formulas[1]


def trials(folder):
    backend = optuna.storages.journal.JournalFileBackend(str(folder / "study.jsonl"))
    return optuna.load_study(study_name="study", storage=optuna.storages.JournalStorage(backend)).trials


def generations(folder):
    events = EventAccumulator(str(folder))
    events.Reload()
    return len(
        {each.step for each in events.Scalars("evolve/loss")}
        if "evolve/loss" in events.Tags()["scalars"]
        else {each.step for each in events.Tensors("evolve/loss")}
    )


def test_a_search_leaves_formulas_that_are_policies_curves_and_a_page(tmp_path):
    front = evolve(TINY, tmp_path / "run", progress=False)
    assert [each.size for each in front] == sorted(each.size for each in front)
    assert len(list((tmp_path / "run/front").glob("*.formula"))) == len(front)
    results = evaluate([tmp_path / "run", "least-variance"], "balance", range(3), 4, pods=60, progress=False)
    assert set(results.frame()["policy"]) == {"run", "least-variance"}
    assert list((tmp_path / "run").glob("events.out.tfevents.*"))
    page = (tmp_path / "run/report.html").read_text()
    assert "A click on a dot" in page
    assert "Nobody has looked" in page
    content = json.loads(next((tmp_path / "run/model").glob("*.formula")).read_text())
    assert content["provenance"]["task"] == ["balance"]
    assert content["provenance"]["search_seed"] == 0


def test_a_search_on_a_task_of_ones_own_file_leaves_a_policy(tmp_path, monkeypatch, capsys):
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks/mine.py").write_text("import aaml\n\nown = aaml.task('balance')\n")
    monkeypatch.chdir(tmp_path)
    flags = ["--nodes", "4", "--pods", "40", "--episodes", "2", "--validation-episodes", "2", "--population", "8",
             "--generations", "1", "--islands", "1"]  # fmt: skip
    assert run("search formula", ["--task", "tasks/mine.py:own", *flags]) == 0
    folder = tmp_path / "runs/search-formula-tasks-mine.py-own-s0"
    assert [path.name for path in (folder / "model").iterdir()] == ["tasks-mine.py-own.formula"]
    capsys.readouterr()
    assert run("show formula", [str(folder)]) == 0
    assert "task: ['tasks/mine.py:own']" in capsys.readouterr().out


def test_a_folder_of_another_search_is_refused_in_a_line(tmp_path, capsys):
    flags = ["--nodes", "4", "--pods", "40", "--episodes", "2", "--validation-episodes", "2", "--population", "8",
             "--generations", "1", "--islands", "1", "--out", str(tmp_path / "run")]  # fmt: skip
    assert run("search formula", flags) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[0] == "on validation episodes the best formula is not known to be better than least-variance"
    measure = "mean_variance divided by that of least-variance (below 1 is better)"
    assert told[1] == f"on validation episodes, {measure} (all intervals together at 95%):"
    assert told[2].split() == ["size", "mean", "[95%", "interval]", "formula"]
    assert run("search formula", flags) == 2
    assert "go on with --resume" in capsys.readouterr().err
    assert run("search formula", [*flags, "--seed", "4", "--resume"]) == 2
    assert "seed: 4 is not accepted; expected 0, with which the search was begun" in capsys.readouterr().err
    assert run("search formula", ["--task", "balance", "compress", "--out", str(tmp_path / "new")]) == 2
    assert "tasks with the same metric" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_a_search_goes_on_with_the_settings_of_its_folder(tmp_path, capsys):
    out = ["--out", str(tmp_path / "run")]
    flags = ["--nodes", "4", "--pods", "40", "--episodes", "2", "--validation-episodes", "2", "--population", "8",
             "--islands", "1", "--seed", "3"]  # fmt: skip
    assert run("search formula", [*flags, *out, "--generations", "1"]) == 0
    assert run("search formula", [*out, "--generations", "2", "--resume"]) == 0
    assert run("search formula", [*flags, "--out", str(tmp_path / "at-once"), "--generations", "2"]) == 0
    assert json.loads((tmp_path / "run/settings.json").read_text())["generations"] == 2
    found = [json.loads((tmp_path / name / "front.json").read_text()) for name in ("run", "at-once")]
    assert found[0] == found[1]


def test_a_search_that_could_not_begin_is_not_in_the_way_of_the_next_one(tmp_path, capsys):
    flags = ["--nodes", "4", "--pods", "40", "--episodes", "2", "--validation-episodes", "2", "--population", "8",
             "--generations", "1", "--islands", "1", "--out", str(tmp_path / "run")]  # fmt: skip
    assert run("search formula", [*flags, "--start", str(tmp_path / "none.formula")]) == 2
    assert "none.formula' is not accepted; expected a file that can be read" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    assert run("search formula", flags) == 0


def test_a_search_that_is_stopped_in_its_first_generation_says_that_nothing_is_kept(tmp_path, monkeypatch, capsys):
    def interrupted(*_, stop, **__):
        signal.raise_signal(signal.SIGINT)
        assert stop()
        raise StoppedError

    monkeypatch.setattr("aaml.evolve.search.evolve", interrupted)
    assert run("search formula", ["--out", str(tmp_path)]) == 128 + signal.SIGINT
    assert capsys.readouterr().out == "stopped: nothing is written\n"


def test_losses_are_those_of_the_policy_beside_the_reference_on_the_same_arrivals():
    races = EpisodeRaces(TINY, 7000, 4)
    losses = races.play(assemble(parse("-pair.cpu_after")), [2, 0])
    task = find_task("balance")
    frame = evaluate(["least-variance"], task, [7000, 7002], 4, pods=TINY.pods, progress=False).frame()
    assert races.reference[[0, 2]].tolist() == frame["mean_variance"].tolist()
    assert losses.shape == (2,)
    assert relative(task, 2.0, 1.0) == pytest.approx(math.log(2.0))
    assert relative(find_task("compress"), 0.3, 0.5) == pytest.approx(0.2)


def test_formulas_of_several_tasks_are_judged_on_all_of_them():
    config = replace(TINY, task=("balance", "varied"), nodes=(4, 5))
    races = EpisodeRaces(config, 7000, 8)
    assert [(task, nodes) for task, _, nodes in races.episodes[:4]] == [(0, 4), (0, 5), (1, 4), (1, 5)]
    program = assemble(parse(LEAST_VARIANCE))
    assert races.play(program, range(8)).tolist() == [races.play(program, [k])[0] for k in range(8)]


def test_what_chooses_alike_in_all_probe_states_is_the_same_formula():
    probes = EpisodeRaces(TINY, 7000, 4).probes
    one, same, other = (
        probes.signature(assemble(parse(text)))
        for text in ("-pair.cpu_after", "3 - 2 * pair.cpu_after", "pair.cpu_after")
    )
    assert one == same != other


def test_a_formula_of_the_front_loses_the_terms_that_change_no_choice(tmp_path):
    start = tmp_path / "start.formula"
    text = "3 * (pod.cpu - pair.cpu_growth_scaled) - pair.memory_growth_scaled * 3 + 0.5"
    save_formula(Formula(parse(text)), start)
    found = {text for text, _, _ in bred(replace(TINY, start=(start,), population=4, islands=1), 1)}
    assert "3.0 * -pair.cpu_growth_scaled - pair.memory_growth_scaled * 3.0" in found
    assert all("pod.cpu" not in each for each in found)


class _Scripted(EpisodeRaces):
    """Losses as they are told."""

    def __init__(self, losses):
        self.count, self._losses = len(losses), np.array(losses)

    def play(self, _program, numbers):
        return self._losses[list(numbers)]


def test_there_are_states_to_ask_about_however_many_and_short_the_episodes_are():
    races = EpisodeRaces(EvolveConfig(task=("balance",), nodes=(3,), pods=2), TRAINING_SEEDS, 600)
    (choices,) = {len(races.probes.choices(assemble(parse(text)))) for text in ("pair.cpu_after", "-pair.cpu_after")}
    assert choices == 300, "each fourth of 1,200 decisions"


def test_a_race_is_lost_early_by_what_is_clearly_worse_and_by_nothing_else():
    rng = np.random.default_rng(0)
    arrivals = rng.normal(0.0, 1.0, 64)  # what the arrivals do to all formulas
    best = Scores(float(arrivals.mean()), tuple(arrivals))
    worse = _Scripted(arrivals + 0.1 + rng.normal(0.0, 0.02, 64)).race(None, best)
    assert len(worse.losses) == 8
    assert worse.loss == pytest.approx(best.loss + 0.1, abs=0.03)
    level = _Scripted(arrivals + rng.normal(0.0, 0.02, 64)).race(None, best)
    assert len(level.losses) == 64
    lost = sum(len(_Scripted(arrivals + rng.normal(0.0, 0.1, 64)).race(None, best).losses) < 64 for _ in range(300))
    assert lost <= 300 * 0.08  # 5% at most, and what 300 draws add to that


def test_the_front_holds_what_no_shorter_formula_beats_and_the_chosen_one_is_short():
    rng = np.random.default_rng(1)
    common = rng.normal(0.0, 0.3, 20)

    def evaluated(text, loss, noise):
        return Evaluated(text, loss, tuple(common + loss + rng.normal(0.0, noise, 20)))

    one, two, three = (
        evaluated("pod.cpu", 0.5, 0.0),
        evaluated("-pod.cpu", 0.0, 0.001),
        evaluated("pod.cpu + 1", -1e-4, 0.01),
    )
    worse = evaluated("pod.cpu + 2 + pod.memory", 0.4, 0.0)
    assert undominated([worse, two, one]) == [one, two]
    assert chosen([one, two, three, worse]) == two


def test_looks_at_sealed_episodes_are_counted_and_make_intervals_wider(tmp_path, monkeypatch):
    first = []

    class Seen(EpisodeRaces):
        def __init__(self, config, first_seed, count):
            first.append(first_seed)
            super().__init__(config, first_seed, count)

    monkeypatch.setattr(fronts, "EpisodeRaces", Seen)
    widths = []
    for number in (1, 2, 3):
        (seen,), count = look(TINY, tmp_path, "-pair.cpu_after", 12)
        assert (seen.task, seen.nodes) == ("balance", 4)
        assert count == looks(tmp_path) == number
        widths.append(seen.loss.high - seen.loss.low)
    assert first == [50_000] * 3
    assert widths[0] < widths[1] < widths[2]
    # Bonferroni: of three looks each interval is one of 1 - 0.05 / 3; Hall's part may only make it wider
    assert widths[2] / widths[0] >= 0.9 * t_quantile(1 - 0.05 / 3, 11) / t_quantile(0.95, 11)


def test_a_search_never_plays_episodes_that_it_is_judged_on(monkeypatch):
    seen = set()
    monkeypatch.setattr("aaml.evolve.races.TaskEpisodes.plan", _noting(seen))
    Islands(TINY, training(TINY)).ask()
    assert seen
    assert min(seen) >= TRAINING_SEEDS > VALIDATION_SEEDS + 10_000


def _noting(seen):
    plan = TaskEpisodes.plan

    def noted(self, seed, nodes=None):
        seen.add(seed)
        return plan(self, seed, nodes)

    return noted


def test_a_look_is_told_by_the_command(tmp_path, capsys):
    flags = ["--nodes", "4", "--pods", "40", "--episodes", "2", "--validation-episodes", "2", "--population", "8",
             "--generations", "1", "--islands", "1", "--out", str(tmp_path / "run")]  # fmt: skip
    assert run("search formula", flags) == 0
    capsys.readouterr()
    assert run("search formula", ["--out", str(tmp_path / "run"), "--look", "5", "--resume"]) == 2
    assert "nothing with --look" in capsys.readouterr().err
    assert run("search formula", ["--out", str(tmp_path / "run"), "--look", "5", "--nodes", "4", "6"]) == 0
    said = capsys.readouterr().out
    assert "balance, 4 nodes: " in said
    assert "balance, 6 nodes: " in said
    assert "looks at the leaderboard's episodes" in said
    assert "run: 2; intervals are Bonferroni's" in said
    with pytest.raises(UserError, match="holds no search"):
        read_config(tmp_path / "none")


def test_a_run_of_the_leaderboard_counts_as_looks_of_a_formula_that_lies_in_its_search(tmp_path, monkeypatch):
    search, board = tmp_path / "search", ["--task", "balance", "--nodes", "10", "37", "--out", str(tmp_path)]
    save_formula(Formula(parse("-pair.cpu_after")), search / "front" / "02.formula")
    save_formula(Formula(parse("-pair.cpu_after")), tmp_path / "elsewhere" / "02.formula")
    (search / "study.jsonl").write_text("")
    monkeypatch.setattr("aaml.evaluation.leaderboard.run.carry_out", lambda _jobs, **_more: iter(()))  # plays nothing
    for policy in (
        f"ours={search / 'front' / '02.formula'}",
        f"ours={tmp_path / 'elsewhere' / '02.formula'}",
        "random",
    ):
        assert run("bench leaderboard", [*board, "--policy", policy]) == 0
    lines = [json.loads(line) for line in (search / "looks.jsonl").read_text().splitlines()]
    assert [(line["formula"], line["task"], line["nodes"], line["first_seed"]) for line in lines] == [
        ("-pair.cpu_after", "balance", nodes, 50_000) for nodes in (10, 37)
    ]
    assert looks(search) == 2
