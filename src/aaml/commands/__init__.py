"""The sub-commands of `aaml`: each module has `Args` (a frozen dataclass, the flags) and `run(args)`."""
