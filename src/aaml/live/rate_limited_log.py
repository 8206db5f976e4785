"""A log of lasting conditions: each is logged when it begins, and again now and then for as long as it lasts."""

import logging
from collections.abc import Collection
from math import inf

log = logging.getLogger(__name__)

AGAIN_S = 900.0


class RateLimitedLog:
    """Logs each key at most once in `again_s` seconds. A key that `keep` dropped is logged at once again."""

    def __init__(self, again_s: float = AGAIN_S) -> None:
        self._again_s = again_s
        self._logged_s: dict[object, float] = {}

    def log(self, key: object, text: str, now_s: float, level: int = logging.WARNING) -> None:
        """Log a line unless its key was logged less than `again_s` ago."""
        if now_s - self._logged_s.get(key, -inf) >= self._again_s:
            self._logged_s = {each: at_s for each, at_s in self._logged_s.items() if now_s - at_s < self._again_s}
            self._logged_s[key] = now_s
            log.log(level, text)

    def keep(self, keys: Collection[object]) -> None:
        """Drop all keys but these."""
        self._logged_s = {key: at_s for key, at_s in self._logged_s.items() if key in keys}
