"""Add rack and server labels to node lists: see `create_hierarchical_yamls.py --help`."""

import sys

from aaml.cli import run

if __name__ == "__main__":
    sys.exit(run("trace topology", sys.argv[1:], prog="create_hierarchical_yamls.py"))
