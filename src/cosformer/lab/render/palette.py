"""The one place for colours: told apart by every kind of eye, and at least 3:1 against white and against a dark page."""

# after Okabe and Ito: those of their colours that stand out on white as well as on black, some a little darker or lighter
_COLOURS = ("#1a7fc1", "#d55e00", "#009e73", "#c26a9a", "#8a6fd1", "#a67c00", "#7d8590", "#2a93a8")
# a second sign beside the colour: dashes of a line
_DASHES = ((), (7, 3), (2, 3), (9, 3, 2, 3), (4, 2), (1, 2), (12, 4), (6, 2, 1, 2))

_GREY = 6

# attentions that are often seen together always look the same
_FIXED = {"cosformer": 0, "softmax": 1, "sdpa": 1, "relu": 2, "leaky_relu": 3, "authors' code": 3, "identity": 4}

INK, RULE = "#59616c", "#8b949e"  # text; thin lines, which do for either page. figures.mplstyle has both, too
DARK = {INK: "#a9b2bd"}  # a colour of a light page -> on a dark one
POSITIVE, NEGATIVE = (26, 127, 193), (213, 94, 0)  # ends of the heat maps' scale, red, green, blue


def styles(names: list[str]) -> dict[str, tuple[str, tuple[int, ...]]]:
    """(colour, dashes) for each of ``names``: the same name looks the same in every figure where it has a fixed look. More
    names than looks: all that have none of their own are grey, so that no two seem related; their labels tell them apart."""
    used = {_FIXED[n] for n in names if n in _FIXED}
    free = [i for i in range(len(_COLOURS)) if i not in used]
    others = [n for n in names if n not in _FIXED]
    given = dict(zip(others, free if len(others) <= len(free) else [_GREY] * len(others), strict=False))
    return {name: (_COLOURS[i], _DASHES[i]) for name in names for i in [_FIXED.get(name, given.get(name, _GREY))]}
