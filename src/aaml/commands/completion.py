"""Print what lets a shell complete the commands of `aaml`, their flags, and the names of policies, tasks and models.

bash   source <(aaml completion bash)      in ~/.bashrc
zsh    source <(aaml completion zsh)       in ~/.zshrc, after compinit
fish   aaml completion fish | source       in ~/.config/fish/config.fish
"""

from dataclasses import dataclass
from typing import Literal

import tyro

from aaml.settings import Settings


@dataclass(frozen=True)
class Args(Settings):
    """`aaml completion`."""

    shell: tyro.conf.Positional[Literal["bash", "zsh", "fish"]]
    """bash, zsh or fish"""


def run(args: Args) -> int:
    """Print the script."""
    from argcomplete.shell_integration import shellcode

    print(shellcode(["aaml"], shell=args.shell).strip())
    return 0
