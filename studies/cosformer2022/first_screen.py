"""The first screen of results.md: five sentences and a table of the main claims, in plain English."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cosformer.report.table import Table
from cosformer.runs import Run
from studies.cosformer2022 import paper
from studies.cosformer2022.verdict import FAILS, HOLDS, NOT_RUN, NOT_TESTABLE, UNDECIDED

_SURE = {
    HOLDS: "yes",
    FAILS: "yes",
    UNDECIDED: "no, too close to call",
    NOT_TESTABLE: "no, our task cannot tell",
    NOT_RUN: "not run",
}
_OURS = {HOLDS: "yes", FAILS: "no", UNDECIDED: "unclear", NOT_TESTABLE: "unclear", NOT_RUN: "not run"}
_UNKNOWN = "We do not know yet."


@dataclass(frozen=True)
class _Headline:
    """One row: the claim of the ledger's entry ``key`` as a question, the paper's answer, and what ours means for a
    reader if the claim holds or fails."""

    key: str
    question: str
    paper: str
    holds: str
    fails: str


_HEADLINES = (
    _Headline(
        "lm",
        "As good as softmax in language models?",
        "yes: perplexity {cosformer[test]:g} against {softmax[test]:g}".format_map(paper.TABLE2),
        "Use it for long texts without losing quality.",
        "Plain cosFormer costs quality; try `multiscale`, or mix in softmax layers.",
    ),
    _Headline(
        "mlm",
        "As good as softmax in masked language models?",
        "yes: a comparable or lower loss (figure 4)",
        "Pre-train encoders with it.",
        "Pre-train with softmax if the texts are short enough.",
    ),
    _Headline(
        "parity",
        "Do decays, a convolution and a gate reach the best softmax?",
        "not in the paper",
        "Use `multiscale` with `short_convolution=4` and `output_gate=True`.",
        "Linear attention still costs some quality.",
    ),
    _Headline(
        "finetune",
        "As good as softmax after fine-tuning?",
        "nearly: {cosformer[SST-2]:g} against {softmax[SST-2]:g} % on SST-2".format_map(paper.TABLE3),
        "Classify with it.",
        "Expect to lose accuracy.",
    ),
    _Headline(
        "reweighting-lm",
        "Does the cosine help?",
        "yes (table 6)",
        "Prefer `cosformer` to `relu`.",
        "`relu` is enough, and cheaper.",
    ),
    _Headline(
        "pathfinder",
        "As good as softmax on Pathfinder, of the Long Range Arena?",
        "nearly: {cosformer[pathfinder]:g} against {softmax[pathfinder]:g} % (table 4)".format_map(paper.TABLE4),
        "It keeps up where distance matters.",
        "Softmax finds long paths better.",
    ),
    _Headline(
        "linear-time",
        "Does time grow linearly?",
        "yes (section 3)",
        "Twice the length takes twice the time.",
        "Measure it on your machine first.",
    ),
    _Headline(
        "speed-order",
        "Faster and slower than the same attentions?",
        "table 5",
        "The paper's order of speed is a good guide.",
        "Our kernels order the attentions differently; measure yours with `cosformer bench`.",
    ),
)


def table(found: dict[str, Any]) -> str:
    """At most eight rows: claim, paper, ours, sure?, what it means."""
    entries = {entry["key"]: entry for entry in found["claims"]}
    rows = []
    for line in _HEADLINES:
        entry = entries.get(line.key, {"outcome": NOT_RUN})
        outcome = entry["outcome"]
        meaning = {HOLDS: line.holds, FAILS: line.fails}.get(outcome, _UNKNOWN)
        ours = f"{_OURS[outcome]}{_effect(entry)}"
        rows.append([line.question, line.paper, ours, _SURE[outcome], meaning])
    header = ["question", "the paper", "our small models", "sure?", "what it means for you"]
    return Table("", header, rows, numeric=False).markdown


def sentences(found: dict[str, Any], lines: Sequence[Run], planned: int) -> list[str]:
    """Five sentences that need no knowledge of the protocol."""
    outcomes = {entry["key"]: entry for entry in found["claims"]}
    hours = sum(line.cpu_seconds or 0.0 for line in lines) / 3600
    return [
        f"We trained small models on two CPU cores to test the paper's claims: {len(lines)} of {planned} planned "
        f"runs are done, {hours:.1f} hours of one core in all.",
        _sentence(outcomes["lm"], "In language models, cosFormer {}."),
        _sentence(outcomes["mlm"], "In masked language models, cosFormer {}."),
        _speed(outcomes),
        "The models are small, so none of this proves or refutes what the paper found on eight A100 GPUs"
        + _not_run(outcomes)
        + ".",
    ]


def _sentence(entry: dict[str, Any], frame: str) -> str:
    words = {
        HOLDS: "predicts as well as softmax",
        FAILS: "predicts worse than softmax",
        UNDECIDED: "and softmax are too close to call",
        NOT_TESTABLE: "and softmax cannot be told apart by our task",
        NOT_RUN: "has not been compared with softmax",
    }
    return frame.format(words[entry["outcome"]] + _effect(entry))


def _effect(entry: dict[str, Any]) -> str:
    """The size of the difference, if one judged comparison decides the claim."""
    parts = entry.get("parts", [])
    if len(parts) != 1 or "mean" not in parts[0] or entry["outcome"] not in (HOLDS, FAILS):
        return ""
    mean = parts[0]["mean"]
    return f" (by {abs(mean):.2g} {entry['unit']})"


def _speed(outcomes: dict[str, dict[str, Any]]) -> str:
    linear = [name for name in ("time", "memory") if outcomes.get(f"linear-{name}", {}).get("outcome") == HOLDS]
    if not linear:
        return "Its time and memory have not been measured or do not grow linearly here."
    missing = "" if len(linear) == 2 else f", but linear {'memory' if linear == ['time'] else 'time'} was not confirmed"
    return f"Its {' and '.join(linear)} grow{'s' * (len(linear) == 1)} linearly with the length{missing}."


def _not_run(outcomes: dict[str, dict[str, Any]]) -> str:
    names = {"pathfinder": "Pathfinder", "listops": "ListOps", "recall-16": "recall"}
    missing = [name for key, name in names.items() if outcomes[key]["outcome"] == NOT_RUN]
    *first, last = missing or [""]
    together = f"{', '.join(first)} and {last}" if first else last
    return f"; {together} {'have' if first else 'has'} not been run" if missing else ""
