"""The report: a self-contained HTML page of runs, benchmarks and checks, made from files by a template."""

import json
import math
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cosformer import machine
from cosformer._version import __version__
from cosformer.extras import MissingExtra
from cosformer.json_files import read_object
from cosformer.output_file import write_output
from cosformer.report import overview
from cosformer.report.charts import benchmark_charts, loss_curves
from cosformer.report.figure import Figure
from cosformer.report.heat_maps import MAPS_FILE, layer_maps
from cosformer.report.measurements import Results, number, results_of
from cosformer.report.overview import Metric, marked, metric_of, score_of, shown, status
from cosformer.report.table import Table
from cosformer.runs import Run, SeedScores, find_runs, read_runs, with_error

UNLEARNED = "* No better than a model that ignores its input."
_HERE = Path(__file__).parent
_BROKEN = (ValueError, KeyError, TypeError, AttributeError, IndexError)
_SURE, _LIKELY = 3.0, 2.0  # standard errors
_TITLES = {
    "attention": "The operator against softmax and the authors' implementation",
    "zoo": "Every attention",
    "train": "Training a language model",
    "generate": "Generation: a state instead of a cache",
    "decode": "A token of a linearized model",
    "long": "Training on long sequences",
}


class Problems(list[str]):
    """What could not be used; ``attempt`` adds to it instead of raising."""

    def attempt(self, name: str, make: Callable[[], Any], otherwise: Any = ()) -> Any:
        """What ``make`` returns, or ``otherwise`` where its file turns out broken or it cannot be drawn."""
        try:
            return make()
        except _BROKEN as error:
            self.append(f"{name} cannot be shown ({type(error).__name__}: {error})")
        except MissingExtra as error:
            words = f"the pictures cannot be drawn: {' '.join(str(error).split())}"
            self.extend([] if words in self else [words])
        return otherwise


def write_report(
    out: Path, folders: Sequence[Path], results: Path | None, tables: Callable[[Results], list[Table]]
) -> list[str]:
    """Write the page about the runs at or below ``folders`` and the JSON files in the folder ``results`` to ``out``.

    ``tables``: those of a benchmark's results. Returns what was skipped; the rest of the page stands.
    """
    # a folder that is named and holds no run is a mistake worth a line, here as when it does not exist
    runs, unread = read_runs(dict.fromkeys(path for folder in folders for path in (find_runs(folder) or [folder])))
    problems = Problems(unread)
    benches, checks = _documents(results, problems)
    attempt = problems.attempt
    sections = {
        "curves": [
            (setup.label, figures)
            for setup in overview.setups(runs)
            if (figures := attempt(setup.label, lambda setup=setup: loss_curves(setup.runs, _names(setup.runs))))
        ],
        "scores": [
            table
            for setup in overview.setups(runs)
            if (table := attempt(setup.label, lambda setup=setup: _scores(setup), None))
        ],
        "runs": _runs(runs, problems),
        "benches": [
            bench
            for name, found in benches.items()
            if (bench := attempt(name, lambda name=name, found=found: _bench(name, found, tables, problems), None))
        ],
        "maps": [
            (run.name, figures)
            for run in runs
            if run.path
            and (run.path / MAPS_FILE).is_file()
            and (figures := attempt(str(run.path / MAPS_FILE), lambda path=run.path: layer_maps(path / MAPS_FILE)))
        ],
        "checks": [
            check for name, found in checks.items() if (check := attempt(name, lambda found=found: _check(found), None))
        ],
    }
    findings = attempt("the summary of the runs", lambda: list(_findings(runs)))
    tiles = [
        *attempt("the speeds", lambda: list(_speed_tiles(benches))),
        *((check["worst"], "largest relative error of any form in float64") for check in sections["checks"]),
    ]
    origin = {"machines": _machines(runs, benches.values()), "commands": _commands(benches, checks)}
    date = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    words = {
        "lead": "What was trained and measured here.",
        "made": f"Made by cosformer {__version__} on {date} from files alone.",
    }
    summary = {"what": _what_was_run(runs) if runs else "", "findings": findings, "tiles": tiles}
    write_page(
        out, "cosFormer, measured", report=True, summary=summary, problems=problems, **sections, **origin, **words
    )
    return problems


def write_maps(out: Path, title: str, tokens: Sequence[str], figures: Mapping[str, Figure]) -> None:
    """A page of attention maps. ``figures``: heading -> the maps below it. ``tokens``: what the model read."""
    lead = (
        "Where each head looks: queries down, keys across, blue for positive weights, orange for negative, clear "
        "for zero."
    )
    maps = [(heading, [figure]) for heading, figure in figures.items()]
    write_page(out, "Attention maps", lead=lead, what=title, tokens=tokens, maps=maps)


def write_page(out: Path, title: str, **content: Any) -> None:
    """Fill the template. In one step: whoever has the page open never sees half of it."""
    from jinja2 import Environment, FileSystemLoader

    jinja = Environment(loader=FileSystemLoader(_HERE), autoescape=True, trim_blocks=True, lstrip_blocks=True)
    text = jinja.get_template("page.html.jinja").render(title=title, **content)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_output(out, text)


def _documents(folder: Path | None, problems: Problems) -> tuple[dict[str, Results], dict[str, dict[str, Any]]]:
    """The results of benchmarks and of `cosformer check --json` among the JSON files in ``folder``, by file name."""
    benches, checks = {}, {}
    if folder is not None and not folder.is_dir():
        problems.append(f"{folder} is no folder of results")
    for path in sorted(folder.glob("*.json")) if folder else ():
        document = read_object(path, problems, required=True)
        if document is None:
            continue
        if isinstance(document.get("exactness"), list):
            checks[path.name] = document
            continue
        try:
            benches[path.name] = results_of(document)
        except ValueError as error:
            problems.append(f"{path} cannot be used: {error}")
    order = list(_TITLES)
    place = {name: order.index(x.benchmark) if x.benchmark in order else len(order) for name, x in benches.items()}
    return {name: benches[name] for name in sorted(benches, key=lambda name: place[name])}, checks


# --- the summary


def _what_was_run(runs: Sequence[Run]) -> str:
    counts = Counter(map(status, runs))
    words = ", ".join(f"{count} {name}" for name, count in counts.most_common())
    recipes, names = len({run.recipe for run in runs}), len({run.attention for run in runs})
    hours = sum(run.seconds or 0.0 for run in runs) / 3600
    took = f" {hours:.1f} hours in all." if hours >= 1 else f" {max(1, round(60 * hours))} min in all." if hours else ""
    return (
        f"{_count(len(runs), 'run')} of {_count(recipes, 'recipe')} with {_count(names, 'attention')}: {words}.{took}"
    )


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def _names(runs: Iterable[Run]) -> list[str]:
    return list(dict.fromkeys(run.attention for run in runs))


def _findings(runs: Sequence[Run]) -> Iterator[tuple[str, str]]:
    """(setup, what came out) for each setup with a score."""
    for setup in overview.setups(runs):
        samples, metric = _ranked(setup.runs)
        if metric is None:
            continue
        best, *others = samples
        split = next(run.evaluation for run in setup.runs if run.finished)
        lost = "" if best.learned else ", no better than a model that ignores its input"
        first = f"{best.name} reaches {_value(best, metric)} {metric.unit} on the {split} split ({_seeds(best)}){lost}"
        if not others:
            yield setup.label, f"{first}; no other attention was run here."
            continue
        second, error = others[0], math.hypot(best.error, others[0].error)
        gap = abs(best.mean - second.mean)
        by = metric.text(gap) if math.isnan(error) else with_error(gap, error)
        ahead = (
            f"{by} {metric.unit} better than {second.name} ({_value(second, metric)}, {_seeds(second)}): "
            f"{_how_sure(gap, error)}"
        )
        rest = f" {_count(len(others) - 1, 'other')} behind." if len(others) > 1 else ""
        yield setup.label, f"{first}, {ahead}.{rest}" if gap else f"{first}; {second.name} reaches the same."


def _ranked(runs: Sequence[Run]) -> tuple[list[SeedScores], Metric | None]:
    """The attentions of one setup with their scores over seeds, best mean first; metric None if none finished."""
    scored = [run for run in runs if run.finished]
    metric = next(filter(None, map(metric_of, scored)), None)
    if metric is None:
        return [], None
    found = []
    for name, of_name in overview.grouped(scored, "attention").items():
        values = tuple(score for run in of_name if (score := score_of(run, metric)) is not None)
        if values:
            found.append(SeedScores(name, values, sum(run.learned.get(run.evaluation, True) for run in of_name)))
    return sorted(found, key=lambda scores: scores.mean, reverse=metric.higher_is_better), metric


def _value(scores: SeedScores, metric: Metric) -> str:
    return metric.text(scores.mean) if math.isnan(scores.error) else with_error(scores.mean, scores.error)


def _seeds(scores: SeedScores) -> str:
    return "one seed" if len(scores.values) == 1 else f"{len(scores.values)} seeds"


def _how_sure(gap: float, error: float) -> str:
    """In words, by the seeds' standard error."""
    if math.isnan(error):
        return "not known how sure, as seeds alone may differ by this much; train more of them"
    if not error:
        return "the seeds do not differ at all"
    if gap >= _SURE * error:
        return "clearly more than the seeds differ"
    return (
        f"{gap / error:.1f} standard errors, "
        f"{'likely but not certain' if gap >= _LIKELY * error else 'which chance explains as well'}"
    )


def _speed_tiles(benches: Mapping[str, Results]) -> Iterator[tuple[str, str]]:
    operator = next((found for found in benches.values() if found.benchmark == "attention"), None)
    for mode in ("causal", "non-causal"):
        found = operator.find(kind="forward", mode=mode, baseline="sdpa", unit="times faster") if operator else []
        if found:
            longest = max(found, key=lambda m: m.length or 0)
            yield (
                f"{number(longest.value or 0)}×",
                f"faster than softmax, {mode}, {longest.length:,} tokens (median of pairs)",
            )


# --- runs


def _scores(setup: overview.Setup) -> Table | None:
    """Attentions of a setup, the best first; None where fewer than two have a score."""
    samples, metric = _ranked(setup.runs)
    if metric is None or len(samples) < 2:
        return None
    rows = [
        [x.name, _value(x, metric) + ("" if x.learned else "*"), f"{len(x.values)}", f"{x.learned} of {len(x.values)}"]
        for x in samples
    ]
    return Table(setup.label, ["attention", f"{metric.unit}, mean ± standard error", "seeds", "learned"], rows)


def _runs(runs: Sequence[Run], problems: Problems) -> dict[str, Any]:
    """One table a recipe with the settings that differ, the broken ones apart, and each run in full."""
    sound = overview.grouped((run for run in runs if not run.broken), "recipe")
    made = {
        recipe: problems.attempt(recipe, lambda chosen=chosen: _run_table(chosen), None)
        for recipe, chosen in sound.items()
    }
    tables = [(recipe, *table) for recipe, table in made.items() if table]
    broken = [_broken_row(run) for run in runs if run.broken]
    return {
        "tables": tables,
        "broken": broken,
        "each": problems.attempt("the settings of a run", lambda: list(map(_whole, runs))),
    }


def _run_table(chosen: Sequence[Run]) -> tuple[list[str], list[list[Any]], str]:
    """Header, rows with the best first, and a note; a column for each setting that tells these runs apart. A cell is
    text, or text and the number that it is sorted by."""
    names = list(dict.fromkeys(name for setup in overview.setups(chosen) for name in setup.values))
    metric = next(filter(None, map(metric_of, chosen)), None)
    splits = {run.evaluation for run in chosen if run.scores}
    unit = ", ".join(filter(None, (metric.unit if metric else "score", splits.pop() if len(splits) == 1 else "")))
    header = ["run", "attention", *map(overview.short, names), "seed", unit, "status", "updates", "minutes"]
    rows = []
    for run in chosen:
        own = overview.settings(run.experiment) if run.experiment else {}
        score = score_of(run, metric) if metric else None
        star = "" if run.learned.get(run.evaluation, True) else "*"
        said = "-" if score is None or metric is None else f"{metric.text(score)}{star}"
        settings = [(shown(own.get(name)), own.get(name)) for name in names]
        minutes = "" if run.seconds is None else f"{run.seconds / 60:.1f}"
        cells = [
            run.name,
            run.attention,
            *settings,
            f"{run.seed}",
            (said, score),
            marked(run),
            _updates(run),
            (minutes, run.seconds),
        ]
        rows.append((score, cells))
    sign = -1 if metric and metric.higher_is_better else 1
    rows.sort(key=lambda row: math.inf if row[0] is None else sign * row[0])
    note = "" if all(run.learned.get(run.evaluation, True) for run in chosen) else UNLEARNED
    return header, [cells for _, cells in rows], note


def _updates(run: Run) -> tuple[str, int]:
    done = overview.last_step(run)
    of = f" of {run.experiment.train.steps:,}" if run.experiment and not run.finished else ""
    return f"{done:,}{of}" if done or of else "", done


def _broken_row(run: Run) -> list[str]:
    saved = overview.saved_step(run)
    reason = " ".join((run.reason or "it does not say why").split())
    on_disk = "no checkpoint" if saved is None else f"checkpoint {saved:,}"
    which = [run.name, run.recipe, run.attention, f"{run.seed}", marked(run)]
    return [*which, f"{_updates(run)[0]}, {on_disk}", reason if len(reason) <= 90 else f"{reason[:89]}…"]


def _whole(run: Run) -> dict[str, Any]:
    """The command, where it lies, the scores and every setting."""
    own = overview.settings(run.experiment) if run.experiment else {}
    where = [overview.without_folder(str(run.path or "")), f"commit {run.commit}" if run.commit else "", run.date or ""]
    return {
        "title": f"{run.name}: {run.recipe}, {run.attention}, seed {run.seed}",
        "command": machine.without_folders(shlex.split(run.command)),
        "notes": [
            *filter(
                None, [", ".join(filter(None, where)), f"{marked(run)}: {run.reason}" if run.reason else "", run.note]
            )
        ],
        "scores": [
            [f"{split}, {name}", f"{x:.5g}"] for split, found in run.scores.items() for name, x in found.items()
        ],
        "settings": [
            [x, json.dumps(overview.without_folder(own[x]), ensure_ascii=False)]
            for x in own
            if x not in ("note", "recipe")
        ],
    }


# --- what was measured


def _bench(name: str, results: Results, tables: Callable[[Results], list[Table]], problems: Problems) -> dict[str, Any]:
    title = _TITLES.get(results.benchmark) if name == f"{results.benchmark}.json" else None
    figures = problems.attempt(name, lambda: benchmark_charts(results))
    return {
        "title": title or name.removesuffix(".json"),
        "figures": figures,
        "tables": tables(results),
        "source": results.source,
    }


def _check(check: dict[str, Any]) -> dict[str, Any]:
    """What `cosformer check --json` found: whether every form is within its limit, the worst error, and all of them."""
    findings = check["exactness"]
    worst = {
        dtype: max(f["output"] for f in findings if f["dtype"] == dtype)
        for dtype in dict.fromkeys(f["dtype"] for f in findings)
    }
    rows = [
        [
            f["form"],
            f["backend"],
            f["dtype"],
            f"{f['output']:.0e}",
            f"{f['gradient']:.0e}",
            "yes" if f["passed"] else "no",
        ]
        for f in findings
    ]
    passed = all(f["passed"] for f in findings)
    words = ", ".join(f"{value:.0e} in {dtype}" for dtype, value in worst.items())
    verdict = "Every form is within its limit" if passed else "NOT every form is within its limit"
    return {
        "verdict": f"{verdict}: the linear form is the definition, rearranged. Largest relative error of an output: "
        f"{words}.",
        "worst": f"{worst.get('float64', math.nan):.0e}",
        "header": ["form", "backend", "dtype", "output", "gradient", "within its limit"],
        "rows": rows,
    }


def _machines(runs: Sequence[Run], benches: Iterable[Results]) -> list[dict[str, str]]:
    """Each machine once, without what changes from minute to minute."""
    machines = [dict(x) for x in [*(found.machine for found in benches), *(run.machine for run in runs)] if x]
    lean = [
        {k: shown(v) for k, v in x.items() if k not in ("load", "threads") and not isinstance(v, dict)}
        for x in machines
    ]
    once = [x for i, x in enumerate(lean) if x not in lean[:i]]
    return [x for x in once if not any(x.items() < other.items() for other in once)]


def _commands(benches: Mapping[str, Results], checks: Mapping[str, Any]) -> list[str]:
    """What was measured with; a run's command stands with the run."""
    found = ["cosformer check --json"] if checks else []
    return list(dict.fromkeys([*found, *(results.command for results in benches.values())]))
