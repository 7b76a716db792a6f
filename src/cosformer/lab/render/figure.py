"""What every drawing function returns: the picture, and words for those who do not see it."""

import base64
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Figure:
    """``data``: the bytes of an SVG or PNG. ``alt``: what it shows, in words and numbers. ``caption``: what to look for."""

    name: str
    data: bytes
    kind: str  # "svg" or "png"
    alt: str
    caption: str

    @property
    def uri(self) -> str:
        """The picture as a data: address, for a page that needs no other file."""
        mime = {"svg": "image/svg+xml", "png": "image/png"}[self.kind]
        return f"data:{mime};base64,{base64.b64encode(self.data).decode()}"

    def save(self, folder: Path) -> Path:
        """Write it as ``folder/name.kind``."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.name}.{self.kind}"
        path.write_bytes(self.data)
        return path
