"""Traces of spot capacity: zones of 2022 every ten minutes, zones of 2023 every 195 seconds with prices.

The archives are in the folder that the environment variable `AAML_SPOT` names, by default `data/spot` under the working
directory, where `aaml trace fetch spot` puts them. They are those of Frontier-CS (MIT): windows of twelve days of eight
zones and devices, which Wu et al. probed for *Can't Be Late* (NSDI 2024), and windows of 45 days of nine zones.
"""

import hashlib
import json
import os
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from aaml.errors import UserError

_REPOSITORY = "https://raw.githubusercontent.com/FrontierCS/Frontier-CS/main/research/problems"
ONE_ZONE, ZONES = "frontier_cs_single_real_traces.tar.gz", "frontier_cs_multi_real_traces.tar.gz"
URLS = {
    f"{_REPOSITORY}/cant_be_late/common/real_traces.tar.gz": ONE_ZONE,
    f"{_REPOSITORY}/cant_be_late_multi/common/real_traces.tar.gz": ZONES,
}
"""Where the archives are published, and what they are called here: both have one name there."""
SHA256 = {
    ONE_ZONE: "95d73bd1849e904643800686a90762a2c176e32166a271b0cbe267e20bb5fc61",
    ZONES: "f82ec52ddc704339768aa9d08f8ab6e41ba0ca9de576ce063b140da4eef4b5be",
}
DEFAULT_FOLDER = Path("data/spot")
_FOLDER_2022 = "overhead=0.02/real/"  # the windows are the same in the folders of all restart overheads
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Window:
    """Some days of a zone: `up` bool [T], whether spot capacity was there at each tick.

    `start` is its first tick, counted from the zone's (2022) or all zones' (2023) first one. `dollars_per_hour` is what
    an instance cost at its first tick; 0 where that is not known.
    """

    start: int
    up: BoolArray
    dollars_per_hour: float = 0.0


def archive(name: str) -> Path:
    """Return one of the archives. Raises `UserError`, with the command that gets it, where it is not there whole."""
    path = Path(os.environ.get("AAML_SPOT") or DEFAULT_FOLDER) / name
    if not path.is_file():
        raise UserError(f"{name} is not in {path.parent}: get it with `aaml trace fetch spot`, or set AAML_SPOT")
    if hashlib.sha256(path.read_bytes()).hexdigest() != SHA256[name]:
        raise UserError(f"{path}: its SHA-256 is not that of the published file; `aaml trace fetch spot` mends it")
    return path.resolve()


def windows_2022() -> Mapping[str, tuple[Window, ...]]:
    """Return the windows of 554 ticks of ten minutes by zone and device, in the order of their files' names."""
    return _windows_2022(archive(ONE_ZONE))


def windows_2023() -> Mapping[str, tuple[Window, ...]]:
    """Return the windows of 1,107 ticks of 195 seconds by zone, in the order of their numbers."""
    return _windows_2023(archive(ZONES))


@cache
def _windows_2022(path: Path) -> Mapping[str, tuple[Window, ...]]:
    found: dict[str, list[tuple[str, Window]]] = {}
    for name, content in _files(path, _FOLDER_2022):
        zone, _, _, file = name.rsplit("/", 3)
        window = Window(content["metadata"]["start_time"], np.array(content["data"]) == 0)
        found.setdefault(zone.rpartition("/")[2], []).append((file, window))
    return {zone: tuple(each for _, each in sorted(files, key=lambda file: file[0])) for zone, files in found.items()}


@cache
def _windows_2023(path: Path) -> Mapping[str, tuple[Window, ...]]:
    files = list(_files(path, ""))
    times = [datetime.fromisoformat(content["metadata"]["start_time"]) for _, content in files]
    found: dict[str, dict[int, Window]] = {}
    for (name, content), time in zip(files, times, strict=True):
        start = round((time - min(times)).total_seconds() / content["metadata"]["gap_seconds"])
        _, zone, file = name.rsplit("/", 2)
        window = Window(start, np.array(content["data"]) == 0, content["prices"][0])
        found.setdefault(zone, {})[int(file.removesuffix(".json"))] = window
    return {zone: tuple(windows[number] for number in sorted(windows)) for zone, windows in found.items()}


def _files(path: Path, part: str) -> Iterator[tuple[str, Any]]:
    """Yield the names and contents of an archive's JSON files whose folders have `part` in their name."""
    with tarfile.open(path) as opened:
        for member in opened:
            folder, _, name = member.name.rpartition("/")
            file = opened.extractfile(member) if part in folder and name.endswith(".json") else None
            if file is not None and not name.startswith("."):
                yield member.name, json.load(file)
