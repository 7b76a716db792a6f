"""A finished run made small enough to ship: its last weights in bfloat16, its settings, the scores of just these, and a
card.

    python -m tools.ship_model RUN OUT

OUT can be used as a run's folder wherever the best weights are asked for.
"""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

from cosformer.experiment import EXPERIMENT_FILE, RESULT_FILE, load_experiment
from cosformer.models.card import model_card
from cosformer.tasks import build_task
from cosformer.train import checkpoints
from cosformer.train.engine import scores_of
from cosformer.train.run import load_model
from cosformer.train.vocabulary import load_vocabulary, save_vocabulary


def export(run: Path, out: Path) -> None:
    """Write the run's model to the folder ``out``, in place of what is there."""
    experiment = load_experiment(run)
    if not (run / RESULT_FILE).exists():
        raise FileNotFoundError(f"{run} has not finished; `cosformer resume {run}` continues it")
    result = json.loads((run / RESULT_FILE).read_text(encoding="utf-8"))
    model: Any = load_model(run, "last").bfloat16()
    fresh = out.with_name(f"{out.name}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    model.save_pretrained(fresh / "best")
    for path in (fresh / "best").glob("*.py"):
        path.unlink()  # it leads those without this package to it; whoever has this folder has the package
    task = build_task(experiment)
    save_vocabulary(load_vocabulary(run), fresh / "best", task.name, task.length)
    # rounding changed the weights: the scores are those of what is shipped, computed as it will be used
    rounded = model.float()
    result["scores"] = {name: scores_of(task, name, rounded, experiment.train.eval_batch) for name in result["scores"]}
    result["weights"] = "last, in bfloat16"
    (fresh / RESULT_FILE).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    (fresh / EXPERIMENT_FILE).write_text(experiment.to_json(), encoding="utf-8")
    card(result, experiment.note).save(fresh / "best" / "README.md")
    checkpoints.seal(fresh / "best")
    checkpoints.replace_folder(fresh, out)


def card(result: dict[str, Any], note: str) -> Any:
    """What it is, how it was made, how good it is."""
    base, scores = result["baseline"], result["scores"]
    rows = [
        f"| {name} | {s['bits_per_byte']:.3f} | {s['loss']:.3f} | {base[name]['score']:.3f} |"
        for name, s in scores.items()
    ]
    m = result["machine"]
    body = f"""{note}

Made by `{result["command"]}`: recipe `{result["recipe"]}`, attention `{result["attention"]}`, seed {result["seed"]},
{result["parameters"]:,} parameters, {result["steps"]:,} updates, {result["tokens"]:,} tokens,
{result["cpu_seconds"] / 60:.0f} minutes of processor time on one thread of {m["cpu"]}; Python {m["python"]},
torch {m["torch"]}. The data are the sources of that Python's standard library, without its tests (Python
Software Foundation License); the files are split 90/5/5 into training, validation and test. `make model`
trains and writes it again.

Scores of these weights, the last ones rounded to bfloat16, computed in float32:

| split | bits per byte | nats per byte | nats per byte by how frequent bytes are |
|---|---:|---:|---:|
{chr(10).join(rows)}

It writes text that looks like Python and means nothing. It is here to show the library at
work, not to help anybody program."""
    return model_card(
        "A small cosFormer that writes Python", body, "AutoModelForCausalLM", "linear-attention", missing=""
    )


if __name__ == "__main__":
    export(Path(sys.argv[1]), Path(sys.argv[2]))
