"""Which columns of a table hold what: named by options, or found by their usual names."""

from collections.abc import Sequence

from cosformer.suggest import unknown

_TEXT = ("text", "sentence", "review", "content", "document", "body", "comment", "message", "tweet", "abstract")
_LABEL = ("label", "class", "category", "sentiment", "target", "y")
# what a row teaches -> role -> usual names, in lower case, most telling first
USUAL: dict[str, dict[str, tuple[str, ...]]] = {
    "class": {"text": _TEXT, "label": _LABEL},
    "number": {"text": _TEXT, "label": ("score", "rating", "value", "number", *_LABEL)},
    "classes": {"text": _TEXT, "label": ("labels", "classes", "tags", "categories", *_LABEL)},
    "tags": {"text": ("words", "tokens", *_TEXT), "label": ("tags", "ner_tags", "pos_tags", "labels", *_LABEL)},
    "text": {
        "text": ("source", "src", "input", "article", *_TEXT),
        "label": ("target", "tgt", "output", "summary", "translation", "label"),
    },
}
FIRST = ("text1", "sentence1", "question1", "premise", "first", "a")
SECOND = ("text2", "sentence2", "question2", "hypothesis", "second", "b")
SPLIT = ("split", "subset")
TIME = ("time", "timestamp", "datetime", "date", "step")


def choose_columns(
    file: str, columns: Sequence[str], asked: dict[str, str | None], *, target: str, pairs: bool
) -> dict[str, str]:
    """Column by role: the one ``asked`` for, else the one with a usual name, else, of a single one that is left, that
    one. Split and group may stay open."""
    usual = dict(USUAL[target]) | {"split": SPLIT}
    if pairs:
        usual |= {"text": (*FIRST, *usual["text"]), "second": SECOND}
    needed = [role for role in ("text", "second", "label") if role in usual]
    chosen = {role: named(file, columns, name) for role, name in asked.items() if name is not None}
    chosen = choose(columns, chosen, usual)
    for role in needed:
        free = [name for name in columns if name not in chosen.values()]
        if role in chosen:
            continue
        if len(free) != 1:
            raise ValueError(
                f"{file}: which column is the {role}? It has {', '.join(columns)}; say so with the option {role},"
                f" as --data.options.{role} {free[0] if free else 'NAME'}"
            )
        chosen[role] = free[0]
    return chosen


def choose(columns: Sequence[str], chosen: dict[str, str], usual: dict[str, tuple[str, ...]]) -> dict[str, str]:
    """``chosen``, and for the roles that are open the columns with a usual name that are left."""
    chosen = dict(chosen)
    for role, names in usual.items():
        free = [name for name in columns if name not in chosen.values()]
        found = [name for known in names for name in free if name.lower() == known]
        if role not in chosen and found:
            chosen[role] = found[0]
    return chosen


def named(file: str, columns: Sequence[str], name: str) -> str:
    if name not in columns:
        raise ValueError(f"{file}: {unknown('column', name, columns)}")
    return name
