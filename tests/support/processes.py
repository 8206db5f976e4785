"""The `aaml` command and kube-scheduler as processes of a test, with what they said."""

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

AAML = str(Path(sys.executable).with_name("aaml"))


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def probe(port: int, path: str) -> tuple[int, str]:
    """Return what a process of this machine answers at a path: HTTP status and text."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


class Process:
    """Runs until the block ends; killed then if it does not stop."""

    def __init__(self, command: Sequence[str], log: Path, **environment: str) -> None:
        self.log = log
        self._out = log.open("wb")
        settings = {name: value for name, value in os.environ.items() if name != "KUBECONFIG"}
        self.process = subprocess.Popen(
            command, stdout=self._out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
            env=settings | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"} | environment, cwd=log.parent,
        )  # fmt: skip

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def wait_for(self, text: str, wait_s: float = 120.0) -> None:
        """Wait until the process has said something; fails when it ends before."""
        deadline = time.monotonic() + wait_s
        while text not in self.output():
            if self.process.poll() is not None:
                pytest.fail(f"ended with {self.process.returncode} before {text!r}: {self.output()[-2000:]}")
            if time.monotonic() > deadline:
                pytest.fail(f"{text!r}: not said in {wait_s:g} s: {self.output()[-2000:]}")
            time.sleep(0.1)

    def stop(self) -> int:
        """Send SIGTERM and return the exit status."""
        self.process.terminate()
        return self.process.wait(60)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.kill()
        self._out.close()
