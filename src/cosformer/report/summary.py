"""What the page says first: what was run, what is best, by how much, and how sure that is; then the numbers to remember."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence

from cosformer.report.html import Html, details, join, paragraph, tag
from cosformer.report.material import Material
from cosformer.report.measurements import number
from cosformer.report.overview import Metric, grouped, metric_of, score_of, setups, status
from cosformer.runs import Run, Sample, with_error

_AT_ONCE = 8  # sentences that are not folded away
_SURE, _LIKELY = 3.0, 2.0  # standard errors


def summary(material: Material) -> Html:
    said = material.guarded("the summary of the runs", lambda: list(_sentences(material.runs)))
    listed = [tag("li", sentence) for sentence in said]
    parts = [paragraph(_what_was_run(material.runs))] if material.runs else []
    parts += [tag("ul", *listed[:_AT_ONCE], class_="findings")] if listed else []
    if rest := listed[_AT_ONCE:]:
        parts.append(details(f"{len(rest)} more", tag("ul", *rest, class_="findings")))
    tiles: list[Html] = []
    for make in (_speed_tiles, _exactness_tiles):
        found = material.guarded("a number of the summary", lambda make=make: list(make(material)))
        tiles += [tag("div", tag("b", value), tag("span", words), class_="tile") for value, words in found]
    parts += [tag("div", *tiles, class_="tiles")] if tiles else []
    return join(parts) if parts else paragraph("Nothing was measured or trained yet: not run.")


def _what_was_run(runs: Sequence[Run]) -> str:
    counts = Counter(map(status, runs))
    order = ("finished", "diverged", "running", "stopped", "killed", "failed")
    words = ", ".join(f"{counts[x]} {x}" for x in (*order, *(x for x in counts if x not in order)) if counts[x])
    recipes, names = dict.fromkeys(run.recipe for run in runs), dict.fromkeys(run.attention for run in runs)
    hours = sum(run.seconds or 0.0 for run in runs) / 3600
    took = f" {hours:.1f} hours in all." if hours >= 1 else f" {max(1, round(60 * hours))} min in all." if hours else ""
    return f"{_count(len(runs), 'run')} of {_count(len(recipes), 'recipe')} with {_count(len(names), 'attention')}: {words}.{took}"


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def _sentences(runs: Sequence[Run]) -> Iterator[Html]:
    """One for each setup with a score."""
    for setup in setups(runs):
        scored = [run for run in setup.runs if run.finished]
        metric = next(filter(None, map(metric_of, scored)), None)
        if metric is not None:
            yield Html(f"{tag('b', setup.label)}: {tag('span', _finding(scored, metric))}")


def _finding(scored: Sequence[Run], metric: Metric) -> str:
    samples = ranked(scored, metric)
    best, *others = samples
    unit, split = metric.unit, scored[0].evaluation
    lost = "" if best.learned else ", no better than a model that ignores its input"
    first = f"{best.name} reaches {_value(best, metric)} {unit} on the {split} split ({_seeds(best)}){lost}"
    if not others:
        return f"{first}; no other attention was run here."
    second = others[0]
    gap = abs(best.mean - second.mean)
    if not gap:
        return f"{first}; {second.name} reaches the same."
    error = math.hypot(best.error, second.error)
    by = metric.text(gap) if math.isnan(error) else with_error(gap, error)
    ahead = f"{by} {unit} better than {second.name} ({_value(second, metric)}, {_seeds(second)})"
    rest = f" {_count(len(others) - 1, 'other')} behind." if len(others) > 1 else ""
    return f"{first}, {ahead}: {_how_sure(gap, error)}.{rest}"


def ranked(runs: Sequence[Run], metric: Metric) -> list[Sample]:
    """The attentions with their scores over seeds, the best mean first."""
    found = []
    for name, of_name in grouped((run for run in runs if score_of(run, metric) is not None), "attention").items():
        values = tuple(score_of(run, metric) or 0.0 for run in of_name)
        found.append(Sample(name, values, sum(run.learned.get(run.evaluation, True) for run in of_name)))
    return sorted(found, key=lambda sample: sample.mean, reverse=metric.higher_is_better)


def _value(sample: Sample, metric: Metric) -> str:
    return metric.text(sample.mean) if math.isnan(sample.error) else with_error(sample.mean, sample.error)


def _seeds(sample: Sample) -> str:
    return "one seed" if len(sample.values) == 1 else f"{len(sample.values)} seeds"


def _how_sure(gap: float, error: float) -> str:
    """In words, by the seeds' standard error."""
    if math.isnan(error):
        return "not known how sure, as seeds alone may differ by this much; train more of them"
    if not error or gap >= _SURE * error:
        return "clearly more than the seeds differ" if error else "the seeds do not differ at all"
    if gap >= _LIKELY * error:
        return f"{gap / error:.1f} standard errors, likely but not certain"
    return f"{gap / error:.1f} standard errors, which chance explains as well"


def _speed_tiles(material: Material) -> Iterator[tuple[str, str]]:
    operator = material.benches.get("attention.json")
    for mode in ("causal", "non-causal"):
        found = operator.find(kind="forward", mode=mode, baseline="sdpa", unit="times faster") if operator else []
        if found:
            longest = max(found, key=lambda m: m.length or 0)
            words = f"faster than softmax, {mode}, {longest.length:,} tokens (median of pairs)"
            yield f"{number(longest.value or 0)}×", words


def _exactness_tiles(material: Material) -> Iterator[tuple[str, str]]:
    for check in material.checks.values():
        worst = max((f["output"] for f in check["exactness"] if f["dtype"] == "float64"), default=math.nan)
        yield _scientific(worst), "largest relative error of any form in float64"


def _scientific(value: float) -> str:
    """2e-15 as 2×10⁻¹⁵."""
    mantissa, _, exponent = f"{value:.0e}".partition("e")
    raised = str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")) if exponent else ""
    return f"{mantissa}×10{raised}" if raised else mantissa
