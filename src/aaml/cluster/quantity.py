"""Kubernetes quantities ("250m", "1Gi") as exact integers and back.

Grammar and suffixes: https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/
"""

import re
from fractions import Fraction
from functools import lru_cache
from math import ceil

from aaml.errors import bad_value

CPU = "cpu"
MEMORY = "memory"
EPHEMERAL_STORAGE = "ephemeral-storage"
PODS = "pods"

_SUFFIX: dict[str, Fraction] = {
    "n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000), "": Fraction(1),
    "k": Fraction(10**3), "M": Fraction(10**6), "G": Fraction(10**9), "T": Fraction(10**12),
    "P": Fraction(10**15), "E": Fraction(10**18),
    "Ki": Fraction(2**10), "Mi": Fraction(2**20), "Gi": Fraction(2**30), "Ti": Fraction(2**40),
    "Pi": Fraction(2**50), "Ei": Fraction(2**60),
}  # fmt: skip
_PATTERN = re.compile(r"^([+-]?(?:\d+\.?\d*|\.\d+))(?:([eE][+-]?\d+)|(n|u|m|k|M|G|T|P|E|[KMGTPE]i))?$")
LARGEST = 2**50
"""The largest amount that is told apart, so that sums stay within 64 bits: a pebibyte, or a million million cores.

A node that claims more offers this much, and a pod that asks for more fits nowhere.
"""
MOST = 2**63 - 1
"""The most that Kubernetes counts. It reads a larger number as this one, but not 12E or 12e18, which overflow later."""
_MAX_EXPONENT = 30  # far above any machine; keeps "1e999999999" from eating memory


@lru_cache(maxsize=4096)
def parse_quantity(text: str, field: str = "quantity") -> Fraction:
    """Return the exact value of a quantity in its base unit (cores, bytes, count).

    Raises `UserError` naming `field` when the text is no quantity.
    """
    match = _PATTERN.match(text.strip())
    if match is None:
        raise bad_value(field, text, 'a Kubernetes quantity such as "250m", "2" or "1Gi"')
    number, exponent, suffix = match.groups()
    value = Fraction(number)
    if exponent:
        power = int(exponent[1:])
        if abs(power) > _MAX_EXPONENT:
            raise bad_value(field, text, f"a quantity with an exponent between -{_MAX_EXPONENT} and {_MAX_EXPONENT}")
        return value * Fraction(10) ** power
    value *= _SUFFIX[suffix or ""]
    return min(value, Fraction(MOST)) if suffix is None or suffix.endswith("i") else value


def amount(resource: str, quantity: str | float, field: str | None = None) -> int:
    """Return a resource quantity as the integer that AAML counts in: milli-cores for CPU, else bytes or pieces.

    Rounded up as the scheduler does (`Quantity.MilliValue`, `Quantity.Value`). Negative amounts raise `UserError`.
    """
    field = field or resource
    value = parse_quantity(str(quantity), field)
    if value < 0:
        raise bad_value(field, quantity, "a quantity that is not negative")
    return ceil(value * 1000) if resource == CPU else ceil(value)


def format_cpu(cpu_milli: int) -> str:
    """Write milli-cores as Kubernetes does: "250m", "2"."""
    return str(cpu_milli // 1000) if cpu_milli % 1000 == 0 else f"{cpu_milli}m"


def format_bytes(value_bytes: int) -> str:
    """Write bytes with the largest binary suffix that is exact: "1Gi", "512Mi", "1000"."""
    for suffix in ("Ti", "Gi", "Mi", "Ki"):
        unit = int(_SUFFIX[suffix])
        if value_bytes and value_bytes % unit == 0:
            return f"{value_bytes // unit}{suffix}"
    return str(value_bytes)


def format_amount(resource: str, value: int) -> str:
    """Write an amount of a resource, in the units of `amount`, as a quantity."""
    if resource == CPU:
        return format_cpu(value)
    return format_bytes(value) if resource in {MEMORY, EPHEMERAL_STORAGE} else str(value)
