"""What shares and models of GPUs are worth, worked out by hand, and what the scorers see of it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aaml.cluster.objects import GpuRequest, Node, Pod
from aaml.policies.fragmentation import TypicalPod, TypicalPods, fragment_tables
from aaml.policies.gpu.arrays import devices_by_model, empty_nodes, pod_shape
from aaml.policies.gpu.features import features_of, make_scratch
from aaml.policies.gpu.learned import linear_scorer
from aaml.policies.gpu.policies import score_all
from aaml.policies.gpu.prices import cutting_prices, rest_values, scarcity
from aaml.policies.gpu_names import FEATURES


def expected(*kinds: tuple[int, int, str, int]) -> TypicalPods:
    """Return typical pods of one core: thousandths of a device, devices, model, how many."""
    made = tuple(TypicalPod(1000, milli, count, frozenset({model} - {""}), n) for milli, count, model, n in kinds)
    return TypicalPods(made, sum(kind[3] for kind in kinds))


@pytest.mark.parametrize(
    ("sizes", "demand", "prices"),
    [
        ((500,), (7,), (1 / 2,)),
        ((160, 810), (1, 3), (0, 1)),  # a share of 160 goes where one of 810 is: no device is saved without it
        ((160, 810), (7, 1), (1 / 6, 5 / 6)),  # six more on a device of their own: without one of them, or 810, less
        ((400, 600), (1, 2), (0, 1)),
        ((400, 600), (3, 1), (1 / 2, 1 / 2)),  # 600 + 400 and 400 + 400
        # 650 + 320, 3 x 320, 2 x 470, 470 + 2 x 230
        ((230, 320, 470, 650), (1, 6, 4, 4), (1 / 4, 1 / 3, 1 / 2, 2 / 3)),
    ],
)
def test_a_share_costs_what_it_takes_from_others(sizes: tuple, demand: tuple, prices: tuple) -> None:
    assert cutting_prices(sizes, demand) == pytest.approx(prices)


@given(st.dictionaries(st.integers(1, 999), st.integers(1, 50), min_size=1, max_size=12))
@settings(deadline=None, max_examples=100)
def test_no_device_holds_shares_worth_more_than_it(demand: dict[int, int]) -> None:
    """The prices of a linear program: all shares together are worth the devices they need, at least their sum."""
    sizes = tuple(sorted(demand))
    prices = cutting_prices(sizes, tuple(demand[size] for size in sizes))
    assert (prices >= -1e-9).all()
    assert all(price * (1000 // size) <= 1 + 1e-6 for size, price in zip(sizes, prices, strict=True))
    worth = sum(price * demand[size] for size, price in zip(sizes, prices, strict=True))
    assert worth >= sum(size * times for size, times in demand.items()) / 1000 - 1e-6


def test_a_rest_is_worth_the_shares_that_fit_into_it() -> None:
    tables = fragment_tables(expected((400, 1, "", 3), (600, 1, "", 1), (1000, 2, "", 5), (0, 0, "", 9)), ("", "T4"), 8)
    rests = rest_values(tables)
    assert rests[[0, 399, 400, 799, 800, 1000]].tolist() == pytest.approx([0, 0, 1 / 2, 1 / 2, 1, 1])
    assert not rest_values(fragment_tables(expected((1000, 1, "", 5)), ("", "T4"), 8)).any()


def test_demand_on_a_model_is_what_its_devices_would_get_if_pods_spread_evenly() -> None:
    """Three T4 and a P100. Half of the demand takes a T4 only: 1 / 6 of it on each T4, and 1 / 8 of it anywhere."""
    tables = fragment_tables(expected((1000, 1, "T4", 10), (1000, 1, "", 10)), ("", "P100", "T4"), 4)
    named, access, load = scarcity(tables, [0, 1, 3]).models[1:].T
    assert named == pytest.approx([0, 1 / 2])
    assert access == pytest.approx([1 / 2, 1])
    assert load == pytest.approx([1 / 2, 7 / 6])  # 4 devices x (1 / 8), 4 x (1 / 6 + 1 / 8)


def test_a_scorer_sees_what_a_share_takes_from_others() -> None:
    """Shares of 320 and 470: a third and half of a device. Beside 470 there is room for another one, or for 320."""
    nodes = [Node("n", {"cpu": 96_000, "memory": 1, "pods": 9}, gpu_model="T4", gpu_count=2)]
    arrays, models = empty_nodes(nodes)
    assert devices_by_model(arrays, len(models)).tolist() == [0, 2]
    tables = fragment_tables(expected((320, 1, "", 9), (470, 1, "", 4), (1000, 1, "", 7)), models, 2)
    scarce = scarcity(tables, [0, 2])
    scratch = make_scratch(tables, 1, 0)
    arrays.gpu[0] = 680, 530  # beside a 320 there is room for two more, or for 470

    def seen(milli: int, device: int) -> list[float]:
        shape = pod_shape(Pod("p", requests={"cpu": 1000}, gpu=GpuRequest(1, milli)), models)
        assert features_of(arrays, 0, shape, tables, scarce, scratch) == 2
        return [float(scratch.phi[device, FEATURES.index(name)]) for name in ("rest_lost", "model_load")]

    assert seen(320, 0) == pytest.approx([1 / 3, 0])
    assert seen(320, 1) == pytest.approx([1 / 2, 0])
    assert seen(470, 0) == pytest.approx([2 / 3, 0])
    assert seen(470, 1) == pytest.approx([1 / 2, 0])
    weights = np.zeros(len(FEATURES))
    weights[FEATURES.index("rest_lost")] = -1.0
    scorer = linear_scorer(weights, tables, [0, 2])
    for milli, score, device in ((320, -1 / 3, 0), (470, -1 / 2, 1)):
        shape = pod_shape(Pod("p", requests={"cpu": 1000, "memory": 1}, gpu=GpuRequest(1, milli)), models)
        scores, devices = score_all("linear", arrays, shape, tables, truncate=False, scorer=scorer)
        assert scores.tolist() == pytest.approx([score])
        assert devices.tolist() == [device]
