"""The processes of a running cluster: read from kwokctl's files, looked up, stopped and started one by one."""

import os
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from aaml.errors import UserError

_LOOK_EVERY_S = 0.05
_STOP_S = 10.0


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

    def pid(self) -> int | None:
        """Return the id of the running process, None when it is stopped or when another program now has that id."""
        try:
            pid = int(self.pid_file.read_text(encoding="ascii"))
        except (FileNotFoundError, ValueError):
            return None
        return pid if _runs(pid, self.command[0]) else None

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
        with self.log_file.open("ab") as log:
            process = subprocess.Popen(  # noqa: S603  (the command line that kwokctl wrote, no shell)
                self.command, cwd=self.directory, env={**os.environ, **self.environment}, start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip
        _STARTED[process.pid] = process
        self.pid_file.write_text(str(process.pid), encoding="ascii")
        return process.pid

    def stop(self, *, kill: bool = False) -> None:
        """Stop the process and wait until it is gone; `kill` as a crash does, else it may finish, for 10 s at most."""
        pid = self.pid()
        if pid is None:
            return
        os.kill(pid, signal.SIGKILL if kill else signal.SIGTERM)
        if not self._gone(pid, _STOP_S):
            os.kill(pid, signal.SIGKILL)
            if not self._gone(pid, _STOP_S):
                raise UserError(f"{self.name}: process {pid} cannot be stopped")
        self.pid_file.unlink(missing_ok=True)

    def _gone(self, pid: int, wait_s: float) -> bool:
        deadline = time.monotonic() + wait_s
        while time.monotonic() < deadline:
            if not _runs(pid, self.command[0]):
                if (child := _STARTED.pop(pid, None)) is not None:
                    child.wait()
                return True
            time.sleep(_LOOK_EVERY_S)
        return False


# Children of this Python process have to be waited for, or they stay as zombies; kwokctl's are init's to reap.
_STARTED: dict[int, "subprocess.Popen[bytes]"] = {}


def _runs(pid: int, program: str) -> bool:
    """Say whether process `pid` is alive, no zombie, and runs `program`: ids are given out again."""
    proc = Path("/proc") / str(pid)
    if not Path("/proc/self").exists():
        return _runs_by_ps(pid, program)
    try:
        state = (proc / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0]
        arguments = (proc / "cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z" and arguments[0] == os.fsencode(program)


def _runs_by_ps(pid: int, program: str) -> bool:
    query = ["ps", "-o", "stat=,args=", "-p", str(pid)]
    answer = subprocess.run(query, capture_output=True, text=True, check=False)  # noqa: S603  (no shell)
    state, _, arguments = answer.stdout.strip().partition(" ")
    return bool(state) and not state.startswith("Z") and arguments.strip().startswith(program)


def kill_strays(directory: Path) -> None:
    """Kill what runs in a cluster's folder without a pid file: kwokctl may be interrupted between start and writing."""
    for entry in Path("/proc").glob("[0-9]*/cwd"):
        try:
            if entry.readlink() == directory:
                os.kill(int(entry.parent.name), signal.SIGKILL)
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # it has ended meanwhile, or belongs to somebody else


def read_components(directory: Path) -> dict[str, Component]:
    """Return the components of the cluster whose files are in `directory`, in the order in which they start."""
    file = directory / "kwok.yaml"
    try:
        documents = list(yaml.safe_load_all(file.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return {}
    except yaml.YAMLError as error:
        raise UserError(f"{file}: not readable as YAML; remove the cluster with `aaml cluster down`") from error
    found: dict[str, Component] = {}
    for document in documents:
        if not isinstance(document, dict) or document.get("kind") != "KwokctlConfiguration":
            continue
        for entry in document.get("components") or ():
            environment = {variable["name"]: variable.get("value", "") for variable in entry.get("envs") or ()}
            command = (entry["binary"], *entry.get("args", ()))
            found[entry["name"]] = Component(entry["name"], command, environment, directory)
    return found
