"""`python -m aaml` is the `aaml` command."""

from aaml.cli import main

main()
