"""Formulas become MathML when the site is built: browsers draw it themselves, so no script and no network is needed."""

import html
import re
from typing import Any

from latex2mathml.converter import convert

# cos a, not cosa: a name of a function stands off from what follows, unless that is a parenthesis
_FUNCTION = re.compile(r"(<mi>(?:cos|sin|exp|ln|log|max)</mi>)(?!<mo)")
# what pymdownx.arithmatex (generic) leaves in the page
_FORMULA = re.compile(r'<(span|div) class="arithmatex">\s*\\([\(\[])(.*?)\\[\)\]]\s*</\1>', re.DOTALL)


def on_page_content(content: str, **_: Any) -> str:
    """Called by mkdocs with the HTML of every page."""
    return _FORMULA.sub(_mathml, content)


def _mathml(match: re.Match[str]) -> str:
    display = "block" if match[2] == "[" else "inline"
    formula = convert(html.unescape(match[3]).strip(), display=display)
    return _FUNCTION.sub(r'\1<mspace width="0.167em" />', formula)
