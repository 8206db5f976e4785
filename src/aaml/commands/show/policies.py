"""List the named policies and rewards, your own of a file among them."""

from dataclasses import dataclass
from pathlib import Path

from aaml.commands.kinds import Flag
from aaml.settings import Settings


@dataclass(frozen=True)
class Args(Settings):
    """`aaml show policies`."""

    file: tuple[Path, ...] = ()
    """Python files with own policies and rewards (`@register_policy("name")`, `@register_reward("name")`)"""
    json: Flag = False
    """print the names as JSON"""


def run(args: Args) -> int:
    """Print the names."""
    import json

    from aaml.own_files import load_file
    from aaml.policies.registry import POLICIES, reward_names

    for path in args.file:
        load_file(path, "file")
    if args.json:
        print(json.dumps({"policies": POLICIES.names(), "rewards": reward_names()}, indent=2))
        return 0
    print(f"policies: {', '.join(POLICIES.names())}; FILE.py:NAME, or kube-scheduler:FILE.yaml")
    print(f"rewards:  {', '.join(reward_names())}; or FILE.py:NAME; or sums such as balance=1,fragmentation=0.5")
    return 0
