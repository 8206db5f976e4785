"""Finding: one thing that was looked at, and how findings are shown."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from rich.text import Text

from aaml.telemetry.tables import show, table

State = Literal["ok", "missing", "broken"]
_STYLES = {"ok": "green", "missing": "yellow", "broken": "bold red"}


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    What is `missing` is only needed for its own `area`; what is `broken` is needed by every command. `mend` is the
    command that puts it right, or empty.
    """

    area: str
    name: str
    state: State
    found: str
    mend: str = ""


def broken(findings: Sequence[Finding]) -> bool:
    """Return whether something is broken that every command needs."""
    return any(finding.state == "broken" for finding in findings)


def plain(findings: Sequence[Finding]) -> dict[str, Any]:
    """Return the findings as JSON holds them."""
    return {"ok": not broken(findings), "findings": [asdict(finding) for finding in findings]}


def tell(findings: Sequence[Finding]) -> None:
    """Print a table of the findings, and below it the commands that mend what is missing or broken."""
    seen, rows = "", []
    for finding in findings:
        area, seen = ("" if finding.area == seen else finding.area), finding.area
        rows.append((area, finding.name, _state(finding.state), finding.found))
    mended = [finding for finding in findings if finding.mend]
    print()
    show(table(("for", "what", "state", "found"), rows))
    if mended:
        print()
        show(table(("to mend", "run"), [(finding.name, finding.mend) for finding in mended]))
    print()
    missing = sum(finding.state == "missing" for finding in findings)
    if broken(findings):
        print("Something that every command needs is broken: see above.")
    else:
        print(f"All that every command needs is here; {missing or 'nothing'} of the rest {_verb(missing)} missing.")


def _verb(count: int) -> str:
    return "is" if count < 2 else "are"


def _state(state: State) -> Text:
    return Text(state, style=_STYLES[state])
