"""The state of a random generator as plain values, read back."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from aaml.errors import UserError


def generator_of(state: Mapping[str, Any], where: str) -> np.random.Generator:
    """Return the generator whose `bit_generator.state` this was. Raises `UserError` for what is none."""
    generator: Any = np.random.PCG64()
    try:
        generator.state = state
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise UserError(f"{where}: is not the state of a random generator") from error
    return np.random.Generator(generator)
