"""What is kept for a state is made again when its nodes change, and is never another state's."""

import gc

from aaml.cluster.per_state import PerState
from support import make


def test_something_is_made_once_until_a_node_changes():
    made = []
    names = PerState(lambda state: made.append(state.names) or tuple(state.names))
    state = make.cluster(make.nodes(2))
    state.assume(make.pod(), "n0")
    assert names(state) is names(state)
    assert len(made) == 1
    state.remove_node("n0")
    assert names(state) == ("n1",)


def test_a_fork_has_its_own_although_it_has_the_same_generation():
    names = PerState(lambda state: tuple(state.names))
    state = make.cluster(make.nodes(2))
    twin = state.fork()
    state.upsert_node(make.node("x"))
    twin.upsert_node(make.node("y"))
    assert state.topology_generation == twin.topology_generation
    assert (names(state), names(twin)) == (("n0", "n1", "x"), ("n0", "n1", "y"))


def test_a_state_is_not_kept_alive():
    names = PerState(lambda state: tuple(state.names))
    names(make.cluster(make.nodes(2)))
    gc.collect()
    assert len(names._kept) == 0
