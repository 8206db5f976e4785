"""Search the numbers of our rule for spot capacity and deadlines, on other series than those that evaluate it.

About three minutes on one core. The result runs by `aaml bench cant-be-late --rule FILE`.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from aaml.commands.kinds import Flag
from aaml.commands.search import going_on, stoppable
from aaml.settings import Count, Natural, Settings


@dataclass(frozen=True)
class Args(Settings):
    """`aaml search spot`."""

    out: Path = Path("models/spot-rule.json")
    """Where the numbers go, after every generation; beside it the study."""
    apart: Flag = False
    """Play nothing that the published runs of several zones play either: numbers to be evaluated on these."""
    generations: Count = 60
    """How long to search."""
    population: Annotated[int, Meta(ge=4)] = 14
    """Rules that are tried in a generation."""
    seed: Natural = 0
    """Of the search."""
    resume: Flag = False
    """Go on with a search that was cut off, from FILE.study beside --out; or search longer."""


def run(args: Args) -> int:
    """Search and say where the numbers are."""
    from dataclasses import replace

    from aaml.spot.search import SpotSearch, search

    settings = SpotSearch(args.out, args.apart, args.generations, args.population, args.seed)
    settings = replace(settings, generations=going_on(args, "generations", settings.folder))
    outcome, interruption = stoppable(
        lambda stopped: search(settings, resume=args.resume, stopped=stopped), settings.folder
    )
    if outcome is None:
        return interruption.status
    print(f"numbers: {args.out}\nnext: aaml bench cant-be-late --rule {args.out}")
    if interruption.signal:
        print(f"stopped after {outcome[1]} generations; --resume goes on")
    return interruption.status
