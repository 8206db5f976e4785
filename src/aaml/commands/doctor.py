"""Say what this machine has and what is missing for what, with the command that mends each.

Exit status 1 where something is broken that every command needs; what only one kind of work needs (a live cluster,
Docker, traces, the browser of the tests) may be missing.
"""

from dataclasses import dataclass

from aaml.settings import Settings


@dataclass(frozen=True)
class Args(Settings):
    """`aaml doctor`."""

    json: bool = False
    """print JSON"""


def run(args: Args) -> int:
    """Examine the machine and print what was found."""
    import json

    from rich.console import Console

    from aaml.doctor.checks import examine
    from aaml.doctor.finding import broken, plain, tell

    with Console(stderr=True).status("looking") as status:
        findings = examine(lambda area: status.update(f"looking at {area}"))
    if args.json:
        print(json.dumps(plain(findings), indent=2))
    else:
        tell(findings)
    return int(broken(findings))
