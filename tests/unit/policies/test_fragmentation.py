"""Fragment amounts: the published program's own test values, a hand calculation, and a plain reference."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aaml.cluster.objects import GpuRequest, Node, Pod
from aaml.policies.fragmentation import (
    TypicalPod,
    TypicalPods,
    cpu_class,
    fragment_amount,
    fragment_tables,
    measure,
    typical_pods,
    usable,
)
from aaml.policies.gpu.arrays import empty_nodes, pod_shape
from aaml.policies.gpu.features import features_of, make_scratch
from aaml.policies.gpu.prices import scarcity
from aaml.policies.gpu_names import FEATURES

MODELS = ("", "1080", "2080", "P100", "T4", "V100M16")
# The typical pods of the published program's TestNodeGpuShareFragAmountScore: CPU, GPU, devices, model, 1/10000.
PUBLISHED = [
    (6000, 465, 1, "", 933), (8000, 440, 1, "2080", 915), (8000, 475, 1, "T4", 876), (8000, 440, 1, "P100", 872),
    (2000, 465, 1, "", 868), (12000, 900, 1, "", 865), (4000, 900, 1, "", 843), (16000, 678, 1, "T4", 836),
    (8000, 500, 1, "", 829), (6000, 511, 1, "", 811), (14000, 1000, 2, "2080", 54), (4000, 1000, 1, "2080", 43),
    (32000, 1000, 2, "T4", 43), (16000, 1000, 1, "V100M16", 40), (64000, 1000, 2, "", 40), (10000, 1000, 2, "", 40),
    (11400, 1000, 1, "T4", 36), (16000, 1000, 1, "T4", 36), (4000, 1000, 2, "", 36), (14000, 1000, 2, "V100M16", 36),
    (8000, 1000, 4, "", 36), (16000, 1000, 2, "", 32), (2000, 1000, 1, "T4", 32), (6000, 1000, 1, "", 32),
    (4000, 1000, 1, "", 32), (5000, 1000, 1, "", 32), (32000, 1000, 4, "V100M16", 32), (32000, 1000, 2, "", 32),
    (24000, 1000, 8, "2080", 32), (40000, 1000, 4, "", 29), (32000, 1000, 8, "", 29), (32000, 1000, 1, "T4", 29),
    (16000, 1000, 1, "", 25), (7000, 1000, 1, "V100M16", 25), (24000, 1000, 1, "T4", 25),
]  # fmt: skip


def kinds(rows: list[tuple[int, int, int, str, int]]) -> TypicalPods:
    made = tuple(
        TypicalPod(cpu, milli, count, frozenset({model} - {""}), times) for cpu, milli, count, model, times in rows
    )
    return TypicalPods(made, sum(row[4] for row in rows))


def both_ways(typical: TypicalPods, cpu: int, gpu: list[int], model: str) -> tuple[float, float]:
    """Return F by the float sum and by the integer tables."""
    tables = fragment_tables(typical, MODELS, 8)
    array, index = np.array(gpu, dtype=np.int64), MODELS.index(model)
    sums, counts = np.zeros(max(len(tables.milli), 1), np.int64), np.zeros(max(len(tables.milli), 1), np.int64)
    measure(array, tables, sums, counts)
    exact = sum(gpu) - usable(index, cpu_class(cpu, tables), tables, sums, counts) / tables.total
    return fragment_amount(cpu, array, index, tables, np.empty(7)), exact


@pytest.mark.parametrize(
    ("gpu", "expected"),
    [([200, 1000, 1000, 500], 2566.62), ([1000] * 4, 3802.40), ([1000] * 8, 7604.80)],
)
def test_values_of_the_published_program(gpu: list[int], expected: float) -> None:
    total = sum(row[4] for row in PUBLISHED) / 10_000  # its shares do not add up to 1, ours are normalised
    for amount in both_ways(kinds(PUBLISHED), 1000, gpu, "1080"):
        assert amount * total == pytest.approx(expected, abs=0.01)


def test_a_hand_calculation() -> None:
    # 8 CPU left, devices 300 and 1000. Half of the pods are shares of 500 (they fit: the device of 300 is a fragment),
    # a quarter need two devices (1300 is a fragment), a quarter have no GPU (1300).
    typical = kinds([(4000, 500, 1, "", 2), (4000, 1000, 2, "", 1), (1000, 0, 0, "", 1)])
    for amount in both_ways(typical, 8000, [300, 1000], "T4"):
        assert amount == pytest.approx(0.5 * 300 + 0.25 * 1300 + 0.25 * 1300)


def test_typical_pods_are_the_most_frequent_until_95_percent() -> None:
    pods = [Pod(f"a{i}", requests={"cpu": 1000}) for i in range(60)]
    pods += [Pod(f"b{i}", requests={"cpu": 2000}, gpu=GpuRequest(1, 500)) for i in range(34)]
    pods += [Pod(f"c{i}", requests={"cpu": 3000}) for i in range(3)]
    pods += [Pod(f"d{i}", requests={"cpu": 4000}) for i in range(3)]
    typical = typical_pods(pods)
    assert [(kind.cpu_milli, kind.frequency) for kind in typical.kinds] == [(1000, 60), (2000, 34), (4000, 3)]
    assert typical.population == 100


def reference(typical: TypicalPods, cpu: int, gpu: list[int], model: str) -> Fraction:
    """Return F by the table of cases in the paper, in plain fractions."""
    free, result = sum(gpu), Fraction(0)
    times = sum(kind.frequency for kind in typical.kinds)
    for kind in typical.kinds:
        enough = sum(device >= kind.gpu_milli for device in gpu) >= kind.gpu_count
        fits = kind.gpu_milli > 0 and (not kind.models or model in kind.models) and enough and cpu >= kind.cpu_milli
        lost = sum(device for device in gpu if device < kind.gpu_milli) if fits else free
        result += Fraction(kind.frequency, times) * lost
    return result


rows = st.tuples(
    st.sampled_from([1000, 4000, 8000]), st.sampled_from([(0, 0), (250, 1), (500, 1), (1000, 1), (1000, 2), (1000, 4)]),
    st.sampled_from(["", "T4", "P100"]), st.integers(1, 50),
).map(lambda row: (row[0], *row[1], row[2], row[3]))  # fmt: skip


@given(
    st.lists(rows, min_size=1, max_size=12, unique_by=lambda row: row[:4]),
    st.integers(0, 10_000),
    st.lists(st.sampled_from([0, 100, 250, 500, 750, 1000]), max_size=8),
    st.sampled_from(["T4", "P100", "2080"]),
)
@settings(deadline=None, max_examples=200)
def test_both_sums_agree_with_the_plain_rules(
    made: list[tuple[int, int, int, str, int]], cpu: int, gpu: list[int], model: str
) -> None:
    typical = kinds(made)
    expected = float(reference(typical, cpu, gpu, model))
    for amount in both_ways(typical, cpu, gpu, model):
        assert amount == pytest.approx(expected, abs=1e-6)


def test_room_for_large_pods_by_hand() -> None:
    """Three small pods of half a GPU to one of 8 GPUs and 96 cores: 9.5 GPUs, 8 of them for the large one."""
    expected = kinds([(4000, 500, 1, "", 3), (96_000, 1000, 8, "", 1)])
    arrays, models = empty_nodes([Node("n", {"cpu": 128_000, "memory": 1, "pods": 9}, gpu_model="T4", gpu_count=8)])
    tables = fragment_tables(expected, models, 8)
    scratch = make_scratch(tables, 1, 0)
    names = ("placeable", "placeable_lost", "intact_lost", "room_lost")

    def seen(cpu: int, count: int, milli: int) -> list[float]:
        shape = pod_shape(Pod("p", requests={"cpu": cpu}, gpu=GpuRequest(count, milli)), models)
        features_of(arrays, 0, shape, tables, scarcity(tables, [0, 8]), scratch)
        return [float(scratch.phi[0, FEATURES.index(name)]) for name in names]

    small, large = 1.5 / 9.5, 8.0 / 9.5
    assert seen(4000, 1, 500) == pytest.approx([small, large, 1.0, 1.0 - (7 / 8) ** 2 * 124 / 128])
    assert seen(40_000, 0, 0) == pytest.approx([small, large, 40 / 128, 40 / 128])
    assert seen(96_000, 8, 1000) == pytest.approx([0.0, 1.0, 1.0, 1.0])
    arrays.gpu[0, 0], arrays.cpu[0] = 500, 124_000
    assert seen(4000, 1, 500) == pytest.approx([small, 0.0, 0.0, (7 / 8) ** 2 * 4 / 128])
