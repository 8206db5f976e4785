"""What is told again and again is told now and then: at first, and again after a while for as long as it is so."""

import logging
from collections.abc import Collection
from math import inf

log = logging.getLogger(__name__)

AGAIN_S = 900.0


class Telling:
    """Logs lines by a key, each key once in `again_s`; what stops being so may be told at once when it is so again."""

    def __init__(self, again_s: float = AGAIN_S) -> None:
        self._again_s = again_s
        self._told_s: dict[object, float] = {}

    def tell(self, key: object, text: str, now_s: float, level: int = logging.WARNING) -> None:
        """Log a line unless its key was told a short while ago."""
        if now_s - self._told_s.get(key, -inf) >= self._again_s:
            self._told_s = {each: at_s for each, at_s in self._told_s.items() if now_s - at_s < self._again_s}
            self._told_s[key] = now_s
            log.log(level, text)

    def keep(self, keys: Collection[object]) -> None:
        """Forget all keys but these."""
        self._told_s = {key: at_s for key, at_s in self._told_s.items() if key in keys}
