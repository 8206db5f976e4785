"""Quantities: values from the Kubernetes documentation, and round trips."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaml.cluster.quantity import amount, format_amount, parse_quantity
from aaml.errors import UserError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("128974848", 128974848), ("129e6", 129_000_000), ("129M", 129_000_000), ("123Mi", 128974848),
        ("128974848000m", 128974848), ("0.5", Fraction(1, 2)), ("100m", Fraction(1, 10)), (".5Gi", 2**29),
        ("1E", 10**18), ("1e3", 1000), ("2Ei", 2**61), ("100n", Fraction(1, 10**7)), ("12E2", 1200),
    ],
)  # fmt: skip
def test_values_from_the_documentation(text: str, value: Fraction) -> None:
    assert parse_quantity(text) == value


def test_cpu_counts_in_milli_and_rounds_up() -> None:
    assert amount("cpu", "1.5") == 1500
    assert amount("cpu", "100u") == 1  # Quantity.MilliValue rounds up
    assert amount("memory", "1.5Gi") == 1610612736
    assert amount("memory", "100m") == 1
    assert amount("nvidia.com/gpu", 2) == 2


@pytest.mark.parametrize("text", ["", "1g", "one", "1 Gi", "0x10", "1e99999999", "--1", "1Gi5", "∞"])
def test_what_is_no_quantity_is_refused_by_name(text: str) -> None:
    with pytest.raises(UserError, match=r"requests\.cpu"):
        parse_quantity(text, "requests.cpu")


def test_negative_amounts_are_refused() -> None:
    with pytest.raises(UserError, match=r"memory: .-1Gi.*not negative"):
        amount("memory", "-1Gi")


@given(st.sampled_from(["cpu", "memory", "ephemeral-storage", "example.com/foo"]), st.integers(0, 2**60))
def test_writing_and_reading_give_the_same_amount(resource: str, value: int) -> None:
    assert amount(resource, format_amount(resource, value)) == value
