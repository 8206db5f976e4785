"""What a cluster looked like over a while, as small pictures: a row a node, a column a moment, darker where fuller."""

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image

_MOST_MOMENTS, _MOST_ROWS = 300, 100
_HEIGHT = 160  # pixels that few nodes are drawn on
_COLOURS = np.array([[0xF3, 0xF6, 0xFA], [0xA9, 0xCB, 0xE3], [0x3F, 0x83, 0xBD], [0x0B, 0x3C, 0x6F]], dtype=float)
RESOURCES = ("CPU", "memory")


@dataclass(frozen=True, slots=True)
class PngImage:
    """A PNG file in memory."""

    png: bytes
    width: int
    height: int


class Timelapse:
    """Keeps the use of nodes at moments, of many every second, fourth ... one: 300 to 600 at most.

    Where a row of the picture stands for k nodes, it keeps one moment in k at first: between two a row hardly changes.
    It begins anew when nodes come or go.
    """

    def __init__(self) -> None:
        self._moments: list[npt.NDArray[np.float32]] = []
        self._every = 1
        self._seen = 0

    def see(self, look: Callable[[], npt.NDArray[np.floating]]) -> None:
        """Take a moment where it is to be kept.

        `look` returns [N, 2], the fractions of CPU and memory that are requested, which are copied.
        """
        if self._seen % self._every == 0:
            use = np.array(look(), dtype=np.float32)
            if self._moments and self._moments[0].shape != use.shape:
                self.forget()
            if not self._moments:
                self._every = max(1, len(use) // _MOST_ROWS)
            self._moments.append(use)
            if len(self._moments) >= 2 * _MOST_MOMENTS:
                del self._moments[1::2]
                self._every *= 2
        self._seen += 1

    def forget(self) -> None:
        """Begin anew."""
        self._moments, self._every, self._seen = [], 1, 0

    def pictures(self) -> Mapping[str, PngImage]:
        """Return a picture of each of `RESOURCES`, none where nothing was seen."""
        if not self._moments or not len(self._moments[0]):
            return {}
        use = np.stack(self._moments, axis=1)  # [N, T, 2]
        return {name: heat_map(use[:, :, place]) for place, name in enumerate(RESOURCES)}


def heat_map(use: npt.NDArray[np.floating]) -> PngImage:
    """Draw fractions [N, T], light for 0 and dark for 1; of more than 100 rows, means of as many blocks."""
    if len(use) > _MOST_ROWS:
        edges = np.linspace(0, len(use), _MOST_ROWS + 1).astype(int)
        use = np.add.reduceat(use, edges[:-1]) / np.diff(edges)[:, None]
    places = np.linspace(0.0, 1.0, len(_COLOURS))
    image = np.stack([np.interp(use, places, _COLOURS[:, channel]) for channel in range(3)], axis=-1).astype(np.uint8)
    image = image.repeat(max(2, _HEIGHT // len(use)), axis=0).repeat(2, axis=1)
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG")
    height, width = image.shape[:2]
    return PngImage(buffer.getvalue(), width, height)
