"""How sure we are, in plain English: what every answer means, and each primary comparison in one line."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from studies.cosformer2022.variants import in_words
from studies.cosformer2022.verdict import FAILS, HOLDS, NOT_RUN, NOT_TESTABLE, UNDECIDED

# outcome -> the same after one, and after several
_COUNTED = {
    HOLDS: ("holds", "hold"),
    FAILS: ("does not hold", "do not hold"),
    UNDECIDED: ("is too close to call", "are too close to call"),
    NOT_TESTABLE: ("cannot be tested at this size", "cannot be tested at this size"),
    NOT_RUN: ("has not been run", "have not been run"),
}
_INTRODUCTION = (
    "Every comparison trains two attentions on the same batches, several times with different random numbers. We call "
    "an answer sure if chance alone would give such a difference in fewer than one of twenty experiments, also after "
    "counting how many questions we ask. *Too close to call* means that the difference is smaller than our runs can "
    "show, and we say what they could have shown. *Our task cannot tell* means that the models do no better than a "
    "table of counts, or that an attention that looks at nothing does as well: then the scores say nothing about "
    "attention."
)


def counted(outcomes: Iterable[str]) -> str:
    """``2 hold, 1 has not been run``."""
    counts = Counter(outcomes)
    return ", ".join(f"{counts[word]} {words[counts[word] > 1]}" for word, words in _COUNTED.items() if counts[word])


def text(trained: Sequence[dict[str, Any]]) -> str:
    """The introduction, and a list of the primary comparisons by task."""
    by_test: dict[str, list[str]] = {}
    for entry in trained:
        if entry["primary"]:
            by_test.setdefault(entry["test"].partition(",")[0], []).extend(
                _line(entry, part) for part in entry["parts"]
            )
    tasks = [f"**{test[0].upper()}{test[1:]}**\n\n" + "\n".join(lines) for test, lines in by_test.items()]
    return "\n\n".join([_INTRODUCTION, *tasks])


def _line(entry: dict[str, Any], part: dict[str, Any]) -> str:
    first, second = in_words(part["first"]), in_words(part["second"])
    first = first[0].upper() + first[1:] if not first.startswith("cos") else first
    return f"- {first} against {second}: {_answer(entry, part)}."


def _answer(entry: dict[str, Any], part: dict[str, Any]) -> str:
    outcome = part["outcome"]
    if outcome == NOT_RUN:
        return "not run yet"
    if outcome == NOT_TESTABLE:
        return "our task cannot tell"
    if "mean" not in part:
        return "too close to call, for want of runs"
    unit, least, most = entry["unit"], *sorted((abs(part["low"]), abs(part["high"])))
    if outcome == UNDECIDED:
        return f"too close to call; {part['smallest']:.2g} {unit} would have shown"
    if outcome == HOLDS and part["kind"] == "on_par" and part["low"] < 0:
        return f"as good; at most {-part['low']:.2g} {unit} worse, where {part['margin']:g} are allowed"
    way = "better" if part["mean"] > 0 else "worse"
    return f"{way}, by {least:.2g} to {most:.2g} {unit}"
