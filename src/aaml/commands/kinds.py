"""Kinds of flags that many commands have."""

from typing import Annotated

import tyro

Flag = Annotated[bool, tyro.conf.FlagCreatePairsOff]
"""A switch that is off until it is named; it has no --no-... of its own."""
