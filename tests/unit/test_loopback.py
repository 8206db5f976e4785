"""Nothing listens beyond this machine unless somebody says so: the default of every address that can be set."""

import dataclasses
import typing
from pathlib import Path

import yaml

from aaml.commands.table import COMMANDS, module_of

ROOT = Path(__file__).parents[2]


def classes(kind, seen):
    """Add a settings class with the classes of its fields and of their alternatives."""
    for part in (kind, *typing.get_args(kind)):
        if part is not kind:
            classes(part, seen)
        if dataclasses.is_dataclass(part) and part not in seen:
            seen.add(part)
            for hint in typing.get_type_hints(part).values():
                classes(hint, seen)
    return seen


def addresses():
    for command in COMMANDS:
        for kind in classes(module_of(command).Args, set()):
            for field in dataclasses.fields(kind):
                if field.name in {"host", "address", "bind"} or field.name.endswith(("_host", "_address", "_bind")):
                    yield command, kind.__name__, field.name, field.default


def test_every_default_address_is_loopback():
    found = list(addresses())
    assert {("schedule", "health_host"), ("serve", "host")} <= {(command, name) for command, _, name, _ in found}
    assert {default for *_, default in found} == {"127.0.0.1"}


def test_the_stack_publishes_on_loopback_alone():
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    published = [port for service in services.values() for port in service.get("ports", ())]
    assert len(published) == 2
    assert all(port.startswith("127.0.0.1:") for port in published)
