"""The setting `--workers`: how many processes of this machine, or which Ray cluster."""

import os
from dataclasses import dataclass

from aaml.errors import bad_value


@dataclass(frozen=True, slots=True)
class Workers:
    """Processes of this machine (1: this one), or a Ray cluster by address ("local": one started for the while)."""

    processes: int = 1
    ray: str = ""


def parse_workers(value: int | str) -> Workers:
    """Read a number of processes, "ray" (RAY_ADDRESS, or else a local one) or "ray:HOST:PORT". Raises `UserError`."""
    kind, colon, address = str(value).partition(":")
    if kind == "ray":
        host, _, port = address.rpartition(":")
        if not colon:
            return Workers(ray=os.environ.get("RAY_ADDRESS") or "local")
        if host and "/" not in host and port.isdigit() and 0 < int(port) < 1 << 16:
            return Workers(ray=address)
    elif not colon and kind.isdigit() and int(kind) > 0:
        return Workers(processes=int(kind))
    raise bad_value("workers", value, "a number of processes from 1, ray, or ray:HOST:PORT")
