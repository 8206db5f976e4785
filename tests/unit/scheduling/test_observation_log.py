"""Sights that are kept as what changed come back as they were, here and in a twin."""

import pickle

import numpy as np
import pytest

from aaml.cluster.objects import GpuRequest
from aaml.scheduling.observation import Context
from aaml.scheduling.observation_log import WHOLE_EVERY, ObservationLog, Recaller
from support import make


def history(log, count=3 * WHOLE_EVERY, seed=0):
    """Decide `count` times on nodes with and without GPUs, one of which comes late; return what was observed."""
    rng = np.random.default_rng(seed)
    state = make.cluster([*make.nodes(4), make.node("gpu", gpus=2)])
    seen = []
    for number in range(count):
        if number == count // 2:
            state.upsert_node(make.node("late"))
        gpu = GpuRequest(1, 300) if number % 5 == 0 else GpuRequest()
        pod = make.pod(f"p{number}", cpu=int(rng.integers(1, 60)), gpu=gpu, owner=f"web-{number % 3}")
        context = Context(state, pod, rng.random(len(state)) < 0.8, queue_length=number)
        assert log.write(context.raw_observation) == number
        seen.append(context.observation)
        state.assume(pod, "gpu" if gpu.count else state.names[rng.integers(len(state))])
    return seen


def same(recalled, seen):
    return all(
        np.array_equal(getattr(recalled, name), getattr(seen, name)) for name in ("nodes", "pairs", "pod", "mask")
    ) and np.array_equal(recalled.graph.edge_index, seen.graph.edge_index)


def test_every_sight_comes_back_as_it_was_at_its_decision():
    log = ObservationLog()
    seen = history(log)
    assert all(same(log.read(number).observation(), each) for number, each in enumerate(seen))


def test_a_twin_that_is_told_in_parts_recalls_the_same():
    log, twin = ObservationLog(), ObservationLog()
    seen = history(log)
    for start in range(0, len(seen), 7):
        twin.take(log.entries(start)[:7])
    twin.graphs.update(log.graphs)
    recaller = Recaller(twin, nodes=20)
    assert all(same(recaller.recall(number), each) for number, each in reversed(list(enumerate(seen))))
    assert recaller.recall(3) is recaller.recall(3)
    assert recaller.recall(None) is None


def test_what_is_forgotten_is_gone_and_the_rest_stays():
    log = ObservationLog()
    seen = history(log)
    log.forget(WHOLE_EVERY + 3)
    assert len(log) == len(seen) - WHOLE_EVERY
    assert all(same(log.read(number).observation(), seen[number]) for number in range(WHOLE_EVERY, len(seen)))
    with pytest.raises(IndexError, match="observation 2 is not kept"):
        log.read(2)
    assert len(log.entries(0)) == len(log)


def test_a_change_of_one_node_takes_a_thousandth_of_the_whole():
    log = ObservationLog()
    state = make.cluster(make.nodes(1000))
    for number in range(2):
        pod = make.pod(f"p{number}", cpu=100)
        log.write(Context(state, pod, np.ones(1000, dtype=bool)).raw_observation)
        state.assume(pod, "n7")
    change = [each for each in log.entries(1)[0].arrays if each is not None]
    assert log.entries(0)[0].whole
    assert sum(len(each.places) for each in change) <= 4


def test_what_stays_as_it_is_on_a_large_cluster_is_kept_once():
    log, twin = ObservationLog(), ObservationLog()
    state = make.cluster(make.nodes(1000))
    for number in range(3 * WHOLE_EVERY):
        pod = make.pod(f"p{number}", cpu=100)
        log.write(Context(state, pod, np.ones(1000, dtype=bool)).raw_observation)
        state.assume(pod, f"n{number}")
        twin.take(pickle.loads(pickle.dumps(log.entries(number))))
    for each in (log, twin):
        kept = {id(array): array.nbytes for entry in each.entries(0) if entry.whole for array in entry.arrays}
        first = sum(array.nbytes for array in each.entries(0)[0].arrays)
        requested = state.requested.nbytes
        assert sum(kept.values()) < first + 2 * requested + 1000
