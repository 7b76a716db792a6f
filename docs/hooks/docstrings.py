"""Arguments in our docstrings stand one to a line, `name: what it does`; the reference shows them as a list."""

import re
from typing import Any

from griffe import Extension, Object

_ARGUMENT = re.compile(r"^([a-z_]\w*(?:(?:, | and )[a-z_]\w*)*): (?=\S)")


class ArgumentLists(Extension):
    """Called by griffe, which reads the sources for mkdocstrings."""

    def on_instance(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = as_lists(obj.docstring.value)


def as_lists(text: str) -> str:
    """``text`` with every paragraph that starts with an argument turned into a list."""
    paragraphs = text.split("\n\n")
    return "\n\n".join(_as_list(part) if _ARGUMENT.match(part) else part for part in paragraphs)


def _as_list(paragraph: str) -> str:
    lines = []
    for line in paragraph.splitlines():
        lines.append(_ARGUMENT.sub(r"- **`\1`**: ", line) if _ARGUMENT.match(line) else f"  {line.strip()}")
    return "\n".join(lines)
