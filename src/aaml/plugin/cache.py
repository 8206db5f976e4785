"""What the cache keeps of plugins, which are 75 MB each: those that were used last."""

import os
import shutil
from contextlib import suppress
from pathlib import Path

from aaml.folders import state_dir

KEPT = 10
"""So many programs, and as many exported folders, stay; and those that a cluster of this machine needs."""


def used(folder: Path) -> None:
    """Note that a folder of the cache is used now."""
    with suppress(OSError):
        os.utime(folder)


def prune(found: "list[Path]") -> None:
    """Delete the folders of the cache that were used longest ago, but for those that are kept."""
    times = {}
    for each in found:
        with suppress(OSError):  # another process deletes, too
            times[each] = each.stat().st_mtime_ns
    old = sorted(times, key=lambda each: times[each], reverse=True)[KEPT:]
    if old:
        named = _named_by_clusters()
        for each in old:
            if each.name not in named:
                shutil.rmtree(each, ignore_errors=True)


def _named_by_clusters() -> str:
    """Return what clusters of this machine need: where the links to their programs lead, and their configurations."""
    texts = []
    for cluster in (state_dir() / "clusters").glob("*/"):
        with suppress(OSError):  # it is taken down right now
            texts += [str(each.readlink()) for each in (cluster / "bin").iterdir() if each.is_symlink()]
            texts += [each.read_text(encoding="utf-8", errors="replace") for each in cluster.glob("*.yaml")]
    return "\n".join(texts)
