"""TensorBoard itself, serving a folder of curves to a test."""

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve the curves of a folder on loopback; yields the address."""
    flags = ["--logdir", str(folder), "--port", "0", "--host", "127.0.0.1", "--load_fast", "false"]
    process = subprocess.Popen([sys.executable, "-m", "tensorboard.main", *flags], stderr=subprocess.PIPE, text=True)
    try:
        found = (re.search(r"http://\S+", line) for line in process.stderr)
        yield next(match.group(0) for match in found if match)
    finally:
        process.terminate()
        process.communicate()
