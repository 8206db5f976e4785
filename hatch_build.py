"""Adds the weights that ship to the wheel: what `models/zoo.toml` lists, and no runs of your own."""

import tomllib
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ShippedModels(BuildHookInterface[Any]):
    """Puts the listed files, the critics beside the actors, and the list itself into `aaml/models`."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Name the files to hatch; an editable installation reads them from the checkout."""
        if version == "editable":
            return
        folder = Path(self.root, "models")
        files = [entry["file"] for entry in tomllib.loads((folder / "zoo.toml").read_text("utf-8")).values()]
        critics = [file.replace("Actor_", "Critic_") for file in files if file.startswith("Actor_")]
        for file in ("zoo.toml", *files, *critics):
            build_data["force_include"][str(folder / file)] = f"aaml/models/{file}"
