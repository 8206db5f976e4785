"""One definition of a setting: the field is the flag, the key of a file, the record and the row of a table."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from aaml.commands import evaluate, learn, schedule, train
from aaml.commands.flags import parse
from aaml.commands.search import training
from aaml.commands.table import COMMANDS, module_of
from aaml.errors import UserError
from aaml.learning.config import AGENTS, LIVE, ActorCritic, Dqn, Linear, QTable, read_agent
from aaml.nodes.node_policy import Promise
from aaml.settings import Count, Fraction, Positive, Settings, changed, plain, rows
from aaml.training.settings import TrainConfig

FAMILY = [*AGENTS.values(), *LIVE.values()]


@dataclass(frozen=True)
class Oven(Settings):
    """A class of settings."""

    loaves: Count = 2
    """how many
    are baked"""
    heat: Fraction = 0.5
    """of the most"""
    flour: Literal["rye", "oat"] = "rye"
    """what they are made of"""
    minutes: tuple[Positive, ...] = ()
    """of each turn"""
    recipe: Path | None = None
    """a file"""
    steam: bool = False
    """let it in"""


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"loaves": 0}, "loaves: 0 is not accepted; expected a whole number of at least 1"),
        ({"loaves": True}, "loaves: True is not accepted; expected a whole number of at least 1"),
        ({"loaves": 1.5}, "loaves: 1.5 is not accepted; expected a whole number of at least 1"),
        ({"heat": 1.5}, "heat: 1.5 is not accepted; expected a number between 0 and 1"),
        ({"heat": float("nan")}, "heat: nan is not accepted; expected a number between 0 and 1"),
        ({"flour": "wood"}, "flour: 'wood' is not accepted; expected one of oat, rye"),
        ({"minutes": [3, -1]}, "minutes: -1 is not accepted; expected a list, each a number above 0"),
        ({"minutes": [float("inf")]}, "minutes: [inf] is not accepted; expected a list, each a number above 0"),
        ({"steam": "yes"}, "steam: 'yes' is not accepted; expected true or false"),
        ({"recipe": 3}, "recipe: 3 is not accepted; expected a path or none"),
    ],
)
def test_the_type_of_a_field_says_what_it_takes(values, message):
    with pytest.raises(UserError) as error:
        Oven(**values)
    assert str(error.value) == message


def test_what_is_taken_has_the_type_of_its_field():
    oven = Oven(np.int64(3), 1, minutes=[1, 2.5], recipe="bread.txt")
    assert oven == Oven(3, 1.0, "rye", (1.0, 2.5), Path("bread.txt"))
    assert [type(value) for value in (oven.loaves, oven.heat, oven.minutes)] == [int, float, tuple]


def test_none_is_taken_where_it_is_named_as_accepted():
    assert Promise(wait_p99_s="none", wait_mean_s=None, evictions_per_pod_hour=0.5) == Promise(None, None, 0.5)
    with pytest.raises(UserError, match="expected a number above 0 or none"):
        Promise(wait_p99_s="never")
    assert Oven(recipe="none").recipe == Path("none"), "a file may have that name"


@pytest.mark.parametrize("argv", [["--wait-p99-s", "none"], ["--wait_p99_s=none"], ["--wait-p99-s", "None"], []])
def test_none_is_taken_of_a_flag_where_it_is_named_as_accepted(argv):
    assert parse(Promise(wait_p99_s=45.0), [*argv, "--wait-mean-s=5"], "aaml", None) == Promise(
        None if argv else 45.0, 5.0
    )


def test_a_setting_is_a_row_of_name_default_range_and_help():
    first, second, *_ = rows(Oven)
    assert (first.name, first.value, first.accepted) == ("loaves", 2, "a whole number of at least 1")
    assert (first.help, second.range) == ("how many are baked", "between 0 and 1")
    assert next(iter(rows(Oven(5)))).value == 5


def test_text_of_a_file_is_read_by_the_type_of_the_setting():
    told = {"loaves": "7", "heat": "1e-1", "minutes": 4, "recipe": "b.txt", "steam": "true"}
    assert changed(Oven(), told) == Oven(7, 0.1, "rye", (4.0,), Path("b.txt"), steam=True)
    assert plain(changed(Oven(), told)) == {
        "loaves": 7, "heat": 0.1, "flour": "rye", "minutes": [4.0], "recipe": "b.txt", "steam": True,
    }  # fmt: skip
    with pytest.raises(
        UserError, match=r"^setting: 'loafs' is not accepted; did you mean loaves\? Expected one of loaves"
    ):
        changed(Oven(), {"loafs": 1})


COMMANDS_ARGS = [module_of(name).Args for name in COMMANDS]


def test_every_command_is_told_by_settings():
    others = {args.__module__ for args in COMMANDS_ARGS if not issubclass(args, Settings)}
    assert others == {schedule.__name__, learn.__name__}  # which have commands of their own


@pytest.mark.parametrize(
    "settings",
    [
        schedule.LEARNED["gnn"], learn.LEARNED["gnn"], *FAMILY, schedule.PolicyArgs,
        *(args for args in COMMANDS_ARGS if issubclass(args, Settings)),
    ],
)  # fmt: skip
def test_every_setting_says_what_it_is_for_and_no_two_have_the_same_name(settings):
    found = rows(settings)
    assert [row.name for row in found if not row.help and row.name not in UNTOLD] == []
    assert len({row.name for row in found}) == len(found)


UNTOLD: set[str] = set()


def test_no_setting_of_an_agent_is_one_of_the_training_too():
    training = {field.name for field in fields(TrainConfig)} | {"candidates", "samples", "horizon"}
    for agent in FAMILY:
        assert not training & {row.name for row in rows(agent)}


def test_an_agent_goes_by_its_name():
    assert (Dqn(encoder="gnn").name, Dqn().name, ActorCritic().name) == ("gnn", "dqn", "acdqn")
    for name, agent in [*AGENTS.items(), *LIVE.items()]:
        assert agent.name == name


def test_a_live_agent_starts_as_its_command_always_has():
    dqn, gnn, actor_critic = LIVE["dqn"], LIVE["gnn"], LIVE["acgnn"]
    assert (dqn.gamma, dqn.learning_rate, dqn.init_epsi, dqn.epsi_decay, dqn.batch_size) == (0.99, 0.001, 1, 0.995, 200)
    assert (gnn.buffer_size, gnn.update_frequency, gnn.target_update_frequency) == (1000, 20, 40)
    assert (actor_critic.gamma, actor_critic.ent_coef, actor_critic.n_epochs) == (0.95, 0.01, 1)


def test_exploration_falls_to_its_least_in_half_of_a_training():
    agent = Dqn(init_epsi=0.5, min_epsi=0.125).for_steps(40)  # a quarter in 20 decisions
    assert agent.epsi_decay**20 == pytest.approx(0.25)
    assert Dqn(epsi_decay=0.9).for_steps(40).epsi_decay == 0.9
    assert QTable().for_steps(100).epsi_decay ** 100 == pytest.approx(0.05)


def test_the_header_of_an_older_model_is_read_without_the_other_learners_settings():
    old = {"learning_rate": 0.01, "actor_learning_rate": 0.02, "horizon": 7, "epochs": 2, "init_epsi": 1.0}
    assert read_agent("acgnn", old) == ActorCritic("gnn", learning_rate=0.02, segment=7, n_epochs=2)
    assert read_agent("dqn", old) == Dqn(learning_rate=0.01, init_epsi=1.0)
    with pytest.raises(UserError, match="agent: 'linear'"):
        read_agent("linear", {})


def test_a_population_holds_its_elite():
    with pytest.raises(UserError, match="elite: 20 is not accepted; expected at most the population, which is 10"):
        Linear(population=10, elite=20)


# ---- the command line ------------------------------------------------------------------------------------------------


def told(*argv, settings=train.Args):
    return parse(settings, [str(each) for each in argv], "aaml train", None)


def file(tmp_path, text):
    (tmp_path / "f.yaml").write_text(text)
    return tmp_path / "f.yaml"


def test_flags_of_the_agent_stand_beside_those_of_the_training():
    training = told("--agent", "acgnn", "--actor_learning_rate", "3e-4", "--steps", "5", "--horizon", "9").training
    assert training.agent == ActorCritic("gnn", learning_rate=3e-4)
    assert (training.steps, training.search.horizon) == (5, 9)
    assert told("--learning-rate", "1e-4").training.agent == Dqn("gnn", learning_rate=1e-4)
    with pytest.raises(UserError, match="--buffer_size"):
        told("--agent", "acdqn", "--buffer_size", "100")


def test_defaults_count_less_than_the_file_and_the_file_less_than_the_flags(tmp_path):
    path = file(tmp_path, "agent: dqn\nsteps: 7\nlearning_rate: 1e-4\nnodes: [3, 4]\nworkers: 2\n")
    training = told("--config", path, "--steps", "5").training
    assert training == TrainConfig(agent=Dqn(learning_rate=1e-4), steps=5, nodes=(3, 4), workers="2", seed=0, envs=8)
    assert told(f"--config={path}", "--agent", "gnn").training.agent == Dqn("gnn", learning_rate=1e-4)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("steps: many", "steps: 'many' is not accepted; expected a whole number of at least 0"),
        ("steps: [1]", "steps: [1] is not accepted; expected a whole number of at least 0"),
        ("nodes: three", "nodes: 'three' is not accepted; expected a list, each a whole number of at least 1"),
        ("gamma: 2", "gamma: 2 is not accepted; expected a number between 0 and 1"),
        ("agent: 3", "agent: 3 is not accepted; expected one of gnn, dqn, acdqn, acgnn, qtable, linear"),
        ("agent: [gnn]", "agent: ['gnn'] is not accepted; expected one of gnn, dqn, acdqn, acgnn, qtable, linear"),
        ("workers: 0", "workers: '0' is not accepted; expected a number of processes from 1, ray, or ray:HOST:PORT"),
        ("search: 4", "setting: 'search' is not accepted; did you mean teacher? Expected one of agent, "),
        ("lr: 0.1", "setting: 'lr' is not accepted; did you mean learning_rate? Expected one of agent, "),
        ("encoder: gnn", "setting: 'encoder' is not accepted; did you mean nodes? Expected one of agent, "),
        ("- steps", "expected settings as NAME: VALUE"),
        ("{", "is not YAML"),
    ],
)
def test_a_mistake_in_a_file_is_one_line(tmp_path, text, message):
    with pytest.raises(UserError) as error:
        told("--config", file(tmp_path, text))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_sweep_is_told_in_a_file_what_its_flags_say(tmp_path):
    path = file(tmp_path, "agent: dqn\nspace: {gamma: 0..0.9, scale_rewards: [true, false]}\nn_step: 2\ntrials: 3\n")
    args = told("--config", path, "--trials", "4", settings=training.Args)
    assert args.sweep.space == ("gamma=0..0.9", "scale_rewards=true,false")
    assert (args.sweep.trials, args.sweep.training.agent, args.sweep.training.steps) == (4, Dqn(n_step=2), 800_000)


def test_the_record_of_a_run_reads_as_the_run():
    config = TrainConfig(ActorCritic(clip_range=0.3), nodes=(3, 4), trace="default", method="expert")
    assert changed(TrainConfig(), plain(config)) == config


def test_a_hyperparameter_that_is_unset_has_the_default_of_the_method():
    assert Dqn(learning_rate=3e-4).learning_rate == 3e-4
    by = {method: TrainConfig(Dqn(n_step=2), method=method).resolved.agent for method in ("group", "rewards")}
    assert (by["group"].gamma, by["group"].batch_size, by["group"].learning_rate, by["group"].n_step) == (
        0.99, 1024, 1e-3, 2,
    )  # fmt: skip
    assert (by["rewards"].gamma, by["rewards"].batch_size, by["rewards"].learning_rate) == (0.5, 128, 5e-4)
    assert TrainConfig(Dqn(gamma=0.9), method="rewards").resolved.agent.gamma == 0.9
    for agent in FAMILY:
        for method in ("group", "rewards", "live") if isinstance(agent, Dqn | ActorCritic) else ():
            left = {row.name for row in rows(agent.resolved(method)) if row.value is None}
            # Of the length of a training, as the actor's, and no limit.
            assert left <= {"epsi_decay", "critic_learning_rate", "target_kl"}


@pytest.mark.parametrize("style", ["--actor_learning_rate 1e-5", "--actor-learning-rate=1e-5", "--learning_rate 1e-5"])
def test_the_scripts_names_of_settings_are_read(style):
    agent = told("--agent", "dqn", "--replay_buffer_size", "64", "--hidden_layers", "8", *style.split()).training.agent
    assert agent == Dqn(buffer_size=64, hidden_size=8, learning_rate=1e-5)


def test_a_training_may_draw_a_size_twice_as_often_and_an_evaluation_counts_each_once():
    assert told("--nodes", 10, 10, 40).training.nodes == (10, 10, 40)
    with pytest.raises(UserError, match=r"nodes: \[10, 10, 40\] is not accepted; expected each once"):
        told("--nodes", 10, 10, 40, settings=evaluate.Args)
