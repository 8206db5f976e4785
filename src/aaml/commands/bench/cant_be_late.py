"""The published benchmark of spot capacity and deadlines: play policies over its cases, as published and never late.

Wu et al., NSDI 2024, as ADRS and Frontier-CS score it: 48 hours of work, spot or on-demand, a deadline. The published
evaluator does not look whether a job is late; the column *never late* has the score where none may be.
"""

from dataclasses import dataclass
from pathlib import Path

from aaml.outputs import writes
from aaml.settings import Settings


@dataclass(frozen=True)
class Args(Settings):
    """`aaml bench cant-be-late`."""

    cases: tuple[str, ...] = ()
    """leaderboard, nine-zones, or of Frontier-CS such as high-tight-large; all when none is given"""
    policy: tuple[str, ...] = ()
    """policies by name; all when none is given"""
    rule: Path | None = None
    """numbers for restart-budget, as `aaml search spot` writes them; those that ship when not given"""
    out: Path | None = None
    """folder for results.csv: a row for each policy on each set of cases"""


@writes(folder="out")
def run(args: Args) -> int:
    """Play, keep and tell."""
    from aaml.spot.bench import carry_out, check_folder, keep, parse_cases, parse_policies, tell
    from aaml.spot.policies import read_rule

    names = parse_cases(args.cases)
    policies = parse_policies(args.policy, None if args.rule is None else read_rule(args.rule))
    if args.out is not None:
        check_folder(args.out, names, policies)
    for found in carry_out(names, policies):
        tell(found)
        if args.out is not None:
            kept = keep(found, args.out)  # at once: all sets of cases take minutes
    if args.out is not None:
        print(f"wrote {kept}")
    return 0
