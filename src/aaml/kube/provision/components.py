"""The processes of a running cluster: read from kwokctl's files and ours, looked up, stopped and started one by one."""

import os
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml

from aaml.errors import UserError
from aaml.files import write_text
from aaml.kube.provision.paths import PRIVATE
from aaml.yaml_text import yaml_stream

_STOP_S = 10.0
_KWOKCTL, _ADDED = "kwok.yaml", "added.yaml"  # of one format: what kwokctl started, and what was added to it
_KIND = "KwokctlConfiguration"
# Handles of the children of this Python process: dropped ones would warn that a child outlives them.
_STARTED: list["subprocess.Popen[bytes]"] = []


@dataclass(frozen=True)
class Component:
    """One process of a cluster as kwokctl wrote it down: its command line, and where its pid and its log are."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    directory: Path

    @property
    def pid_file(self) -> Path:
        """The file with the process's id, named after the program (kwok-controller runs `kwok`)."""
        return self.directory / "pids" / f"{Path(self.command[0]).stem}.pid"

    @property
    def log_file(self) -> Path:
        """The file that both output streams go to."""
        return self.directory / "logs" / f"{Path(self.command[0]).stem}.log"

    def flag(self, name: str) -> str:
        """Return the value of a flag of the command line, "" without it."""
        return next((each.partition("=")[2] for each in self.command if each.startswith(f"--{name}=")), "")

    def process(self) -> psutil.Process | None:
        """Return the running process, None when it is stopped or when another program now has its id."""
        try:
            process = psutil.Process(int(self.pid_file.read_text(encoding="ascii")))
            # Not its arguments: they are empty for a moment after the start.
            same = Path(process.exe()) == Path(self.command[0]).resolve()
            runs = same and process.status() != psutil.STATUS_ZOMBIE
        except (FileNotFoundError, ValueError, psutil.Error):
            return None
        return process if runs else None

    def pid(self) -> int | None:
        """Return the id of the running process, None when there is none."""
        process = self.process()
        return None if process is None else process.pid

    def listens(self) -> bool:
        """Say whether the process runs and listens on a port: every part does once it has accepted its settings."""
        process = self.process()
        try:
            connections = process.net_connections("tcp") if process is not None else ()
        except psutil.NoSuchProcess:
            return False
        return any(connection.status == psutil.CONN_LISTEN for connection in connections)

    def last_words(self) -> str:
        """Return the last line of the log, for an error message."""
        try:
            lines = self.log_file.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        except FileNotFoundError:
            return "no log"
        return lines[-1][-300:] if lines else "an empty log"

    def start(self) -> int:
        """Start the process if it is stopped, detached from this one's terminal, and return its id."""
        if (pid := self.pid()) is not None:
            return pid
        _STARTED[:] = [child for child in _STARTED if child.poll() is None]
        with self.log_file.open("ab") as log:
            process = subprocess.Popen(  # noqa: S603  (the command line that kwokctl wrote, no shell)
                self.command, cwd=self.directory, env={**os.environ, **self.environment}, start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip
        _STARTED.append(process)
        self.pid_file.write_text(str(process.pid), encoding="ascii")
        return process.pid

    def stop(self, *, kill: bool = False) -> None:
        """Stop the process and wait until it is gone; `kill` as a crash does, else it may finish, for 10 s at most."""
        process = self.process()
        if process is None:
            return
        end(process, kill=kill)
        self.pid_file.unlink(missing_ok=True)


def end(process: psutil.Process, *, kill: bool) -> None:
    """End a process and wait until it is gone; without `kill` it may finish what it does, for 10 s at most.

    Raises `UserError` when it outlives even SIGKILL.
    """
    try:
        for signal in (process.kill,) if kill else (process.terminate, process.kill):
            signal()
            with suppress(psutil.TimeoutExpired):
                process.wait(_STOP_S)
                return
    except psutil.NoSuchProcess:
        return
    raise UserError(f"process {process.pid} cannot be stopped")


def kill_strays(directory: Path) -> None:
    """Kill what runs in a cluster's folder without a pid file: kwokctl may be interrupted between start and writing."""
    for process in psutil.process_iter(["cwd"]):
        if process.info["cwd"] == str(directory):
            end(process, kill=True)


def read_components(directory: Path) -> dict[str, Component]:
    """Return the components of the cluster whose files are in `directory`, in the order in which they start."""
    found: dict[str, Component] = {}
    for document in [*_documents(directory / _KWOKCTL), *_documents(directory / _ADDED)]:
        if not isinstance(document, dict) or document.get("kind") != _KIND:
            continue
        for entry in document.get("components") or ():
            environment = {variable["name"]: variable.get("value", "") for variable in entry.get("envs") or ()}
            command = (entry["binary"], *entry.get("args", ()))
            found[entry["name"]] = Component(entry["name"], command, environment, directory)
    return found


def add_component(component: Component) -> None:
    """Write down one more process of a cluster, so that it is started, stopped and shown as those of Kubernetes are."""
    entry = {
        "name": component.name,
        "binary": component.command[0],
        "args": list(component.command[1:]),
        "envs": [{"name": name, "value": value} for name, value in component.environment.items()],
    }
    file = component.directory / _ADDED
    documents = [*_documents(file), {"kind": _KIND, "components": [entry]}]
    write_text(file, yaml_stream(documents), mode=PRIVATE)


def _documents(file: Path) -> list[Any]:
    try:
        return list(yaml.safe_load_all(file.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return []
    except yaml.YAMLError as error:
        raise UserError(f"{file}: not readable as YAML; remove the cluster with `aaml cluster down`") from error
