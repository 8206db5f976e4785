"""Saving what a policy has learned, now and then while it works."""

import logging
import time
from collections.abc import Callable

from aaml.errors import UserError
from aaml.scheduling.observation import Context
from aaml.scheduling.ports import Decision, Observer, Outcome

_LOG = logging.getLogger("aaml")


class Autosave(Observer):
    """Calls `save` after a decision once `every_s` seconds have passed since the last time.

    A file that cannot be written is logged, and tried again the next time.
    """

    def __init__(self, save: Callable[[], object], every_s: float) -> None:
        self._save, self._every_s = save, every_s
        self._saved_s = time.monotonic()

    def on_decision(self, context: Context, decision: Decision, outcome: Outcome) -> None:
        """Save when it is time."""
        del context, decision, outcome
        if time.monotonic() - self._saved_s > self._every_s:
            self._saved_s = time.monotonic()
            try:
                self._save()
            except UserError as error:  # a full disk may be emptied: pods go on being placed meanwhile
                _LOG.warning("%s; trying again in %g s", error, self._every_s)
