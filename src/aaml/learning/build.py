"""What the installed PyTorch is: its version, and the CUDA that it was built with."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aaml.extras import lazily

if TYPE_CHECKING:
    import torch
else:  # it may not load
    torch = lazily("torch")


@dataclass(frozen=True)
class TorchBuild:
    """A PyTorch that loads; `cuda` is empty where it was built without."""

    version: str
    cuda: str


def torch_build() -> TorchBuild | str:
    """Load PyTorch and say what it is, or why it does not load."""
    try:
        return TorchBuild(torch.__version__, torch.version.cuda or "")
    except (ImportError, OSError) as error:  # a library of CUDA's that is not there is an OSError
        return f"PyTorch does not load: {' '.join(str(error).split())[:200]}"
