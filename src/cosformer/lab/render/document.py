"""The frame of a page: what stands around its content, and its way to the disk in one piece."""

import os
from collections.abc import Sequence
from pathlib import Path

from cosformer.lab.render.html import Html, join, tag
from cosformer.lab.render.style import CSS


def document(title: str, body: Sequence[Html]) -> str:
    """A whole page that asks for no other file."""
    head = join(
        [
            Html('<meta charset="utf-8">'),
            Html('<meta name="viewport" content="width=device-width, initial-scale=1">'),
            Html('<meta name="color-scheme" content="light dark">'),
            Html('<link rel="icon" href="data:,">'),  # or a browser asks for one
            tag("title", title),
            tag("style", Html(CSS)),
        ]
    )
    content = f"<head>\n{head}\n</head>\n<body>\n<main>\n{join(body)}\n</main>\n</body>"
    return f'<!doctype html>\n<html lang="en">\n{content}\n</html>\n'


def write_page(out: Path, page: str) -> None:
    """In one step: whoever has the page open never sees half of it."""
    out.parent.mkdir(parents=True, exist_ok=True)
    draft = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        draft.write_text(page, encoding="utf-8")
        draft.replace(out)
    finally:
        draft.unlink(missing_ok=True)
