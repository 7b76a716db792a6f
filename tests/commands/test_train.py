"""``cosformer train``, ``resume``, ``eval`` and ``runs``: what a user types, with the engine played by a few lines."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import cosformer.train
from cosformer.cli import main
from cosformer.commands.options import docstrings, option
from cosformer.commands.train import default_folder, parse
from cosformer.experiment import DataConfig, Experiment, ModelConfig, TrainConfig, from_json
from cosformer.recipes import recipe

NAME = "lm-stdlib-small"
RESULT = {
    "score": "loss",
    "scores": {"valid": {"loss": 2.0, "error": 0.01, "perplexity": 7.389}},
    "baseline": {"valid": {"name": "unigram", "score": 3.0, "error": 0.01}},
    "learned": {"valid": True},
    "steps": 4,
    "parameters": 1234,
    "seconds": 61.0,
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COSFORMER_HOME", str(tmp_path / "home"))
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def engine(monkeypatch) -> dict[str, Any]:
    """Plays the engine: notes how it was called, and answers with ``engine["answer"]``."""
    seen: dict[str, Any] = {"answer": RESULT}

    def answer() -> Any:
        if isinstance(seen["answer"], BaseException):
            raise seen["answer"]
        return seen["answer"]

    def train(experiment: Experiment, run: Path, *, quiet: bool) -> Any:
        seen.update(call="train", experiment=experiment, run=run, quiet=quiet)
        run.mkdir(parents=True)
        (run / "experiment.json").write_text(experiment.to_json())
        return answer()

    def resume(run: Path, **options: Any) -> Any:
        seen.update(call="resume", run=run, **options)
        return answer()

    def evaluate_with_confusions(run: Path, names: list[str] | None, which: str | None) -> Any:
        seen.update(call="eval", run=run, names=names, which=which)
        return answer()["scores"], {}

    for function in (train, resume, evaluate_with_confusions):
        monkeypatch.setattr(cosformer.train, function.__name__, function)
    return seen


# --- options


def test_nothing_changed_is_the_recipe() -> None:
    assert parse(NAME, []) == (recipe(NAME), None, False)


def test_fields_are_changed_by_name() -> None:
    words = "--model.attention performer --train.steps 500 --train.eval-every 7 --train.eval_batch 3 --data.length 99"
    words += " --model.num-hidden-layers None --train.micro-batch 8 --train.compile --run here --quiet --start runs/mlm"
    found, run, quiet = parse(NAME, words.split())
    plain = recipe(NAME)
    train = dataclasses.replace(plain.train, steps=500, eval_every=7, eval_batch=3, micro_batch=8, compile=True)
    model = dataclasses.replace(plain.model, attention="performer", num_hidden_layers=None)
    data = dataclasses.replace(plain.data, length=99)
    assert found == dataclasses.replace(plain, train=train, model=model, data=data, start="runs/mlm")
    assert run == Path("here") and quiet


def test_keys_of_dicts_are_set_one_by_one_and_the_others_stay() -> None:
    words = ["--data.options.path", "a b.zip", "--data.options.resplit=[80,10,10]", "--data.options.max-length", "9"]
    words += ["--model.attention-options.num_features", "64", "--model.attention_options.kind", "x"]
    words += ["--model.fields.pooling", "first", "--model.fields.final_norm", "False", "--model.fields.eps=1e-3"]
    found, _, _ = parse("finetune-sst2-small", words)
    plain = recipe("finetune-sst2-small")
    assert found.data.options == {"tokenizer": "start", "max_length": 9, "path": "a b.zip", "resplit": [80, 10, 10]}
    assert found.model.attention_options == {"num_features": 64, "kind": "x"}
    assert found.model.fields == plain.model.fields | {"pooling": "first", "final_norm": False, "eps": 1e-3}
    assert from_json(found.to_json()) == found
    assert plain == recipe("finetune-sst2-small"), "the recipe itself stays"


def test_a_value_of_a_dict_may_look_like_anything() -> None:
    words = [
        "--data.options.a",
        "None",
        "--data.options.b",
        "true",
        "--data.options.c",
        "007",
        "--data.options.d",
        "-1.5",
    ]
    assert parse(NAME, words)[0].data.options == {"a": None, "b": True, "c": "007", "d": -1.5}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--train.step", "5"], ["--train.step", "--train.steps"]),
        (["--model.atention", "relu"], ["--model.attention"]),
        (["--train.steps", "many"], ["--train.steps", "many"]),
        (["--train.steps", "0"], ["steps=0; it must be at least 1"]),
        (["--train.schedule", "wave"], ["'wave'", "--train.schedule", "constant, linear"]),
        (["word"], ["word"]),
        (["--data.options.path"], ["--data.options.path: expected one argument"]),
    ],
)
def test_a_wrong_option_is_named_with_the_nearest(
    words: list[str], said: list[str], engine: dict[str, Any], capsys
) -> None:
    try:
        code = main(["train", NAME, *words])
    except SystemExit as stopped:  # how argparse ends
        code = stopped.code
    assert code == 2
    error = capsys.readouterr().err
    assert all(part in error for part in said) and "call" not in engine


def test_an_unknown_recipe_brings_the_nearest(capsys) -> None:
    assert main(["train", "lm-stdlib-smal"]) == 2
    assert "unknown recipe 'lm-stdlib-smal'; did you mean 'lm-stdlib-small'?" in capsys.readouterr().err


def test_help_lists_the_recipes_and_each_recipe_its_values(capsys) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["train", "--help"])
    assert stopped.value.code == 0 and "lra-pathfinder-small" in capsys.readouterr().out
    with pytest.raises(SystemExit) as stopped:
        main(["train", "lra-image", "--help-all"])
    assert stopped.value.code == 0
    shown = capsys.readouterr().out
    assert "--train.steps" in shown and "35000" in shown and "--data.options.lra-padding" in shown and "--run" in shown


def test_help_explains_every_option_and_lists_choices(capsys) -> None:
    with pytest.raises(SystemExit):
        main(["train", NAME, "--help-all"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "--train.optimizer {adam,nag} Adam with" in shown and "--train.precision {fp32,bf16,fp16} precision" in shown
    assert "--train.compile, --train.no-compile compile the model with torch.compile (default: False)" in shown
    for kind, prefix in ((DataConfig, "data."), (ModelConfig, "model."), (TrainConfig, "train."), (Experiment, "")):
        explained = docstrings(kind)
        assert explained.keys() == {field.name for field in dataclasses.fields(kind)} - {"data", "model", "train"}
        for name, text in explained.items():
            assert text.partition(" (None:")[0] in shown and option(prefix + name) in shown, name


def test_help_says_what_no_value_means_and_else_the_value(capsys) -> None:
    with pytest.raises(SystemExit):
        main(["train", NAME, "--help-all"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "number of layers (default: 2)" in shown and "number of torch threads (default: torch's default)" in shown


@pytest.mark.parametrize("words", [["--train.no-compile"], ["--train.compile", "--train.no-compile"]])
def test_a_switch_is_turned_off_by_its_negation(words: list[str]) -> None:
    assert parse(NAME, ["--train.compile"])[0].train.compile and not parse(NAME, words)[0].train.compile


def test_without_a_recipe_they_are_listed(capsys) -> None:
    assert main(["train"]) == 2
    captured = capsys.readouterr()
    assert "lra-pathfinder-small" in captured.out and "name one of these recipes" in captured.err


# --- what is missing


def test_missing_data_names_the_command_that_gets_it(capsys, folder: Path) -> None:
    assert main(["train", "lm-wikitext103-small", "--quiet"]) == 2
    assert "cosformer data get wikitext103" in capsys.readouterr().err
    assert not (folder / "runs").exists()


def test_an_unknown_option_of_the_data_set_brings_its_options(capsys) -> None:
    assert main(["train", NAME, "--data.options.max_byte", "5"]) == 2
    assert "has no option 'max_byte'; it has: max_bytes, seed" in capsys.readouterr().err


# --- folders


def test_runs_are_named_after_recipe_attention_and_seed(engine: dict[str, Any]) -> None:
    words = ["train", NAME, "--model.attention", "relu", "--train.seed", "3"]
    assert main(words) == 0 and engine["run"] == Path("runs/lm-stdlib-small-relu-seed3") and not engine["quiet"]
    assert main([*words, "--quiet"]) == 0 and engine["run"] == Path("runs/lm-stdlib-small-relu-seed3-2")
    assert default_folder(engine["experiment"]) == Path("runs/lm-stdlib-small-relu-seed3-3") and engine["quiet"]


def test_a_folder_that_holds_a_run_is_refused(engine: dict[str, Any], capsys) -> None:
    assert main(["train", NAME, "--run", "mine"]) == 0
    engine.pop("call")
    assert main(["train", NAME, "--run", "mine"]) == 2
    assert "`cosformer resume mine`" in capsys.readouterr().err
    assert "call" not in engine


# --- how a run ends


def test_the_scores_are_shown_beside_the_baseline(engine: dict[str, Any], capsys) -> None:
    assert main(["train", NAME, "--run", "mine"]) == 0
    shown = capsys.readouterr().out
    assert "2.0000 ± 0.0100" in shown and "3.0000 ± 0.0100 (unigram)" in shown and "perplexity 7.389" in shown
    assert "yes" in shown and "mine: 4 updates, 1,234 parameters, 61 seconds" in shown
    engine["answer"] = RESULT | {"learned": {"valid": False}}
    assert main(["resume", "mine"]) == 0
    shown = capsys.readouterr().out
    assert "no" in shown.splitlines()[2].split() and "yes" not in shown


@pytest.mark.parametrize(("per_word", "shown"), [(3e8, False), (120.0, True)])
def test_a_model_of_bytes_is_scored_in_bits_first(engine: dict[str, Any], capsys, per_word: float, shown: bool) -> None:
    """Perplexity of a word only where it means something."""
    scores = {"loss": 2.0, "error": 0.01, "perplexity": 7.389, "word_perplexity": per_word, "bits_per_byte": 2.885}
    engine["answer"] = RESULT | {"scores": {"valid": scores}}
    assert main(["train", NAME, "--run", "bytes"]) == 0
    also = capsys.readouterr().out.splitlines()[2].partition(" yes ")[2].strip()
    assert also.startswith("bits_per_byte 2.885, perplexity 7.389") and ("word_perplexity" in also) == shown


@pytest.mark.parametrize("command", ["train", "resume"])
def test_a_stopped_run_says_how_to_go_on(command: str, engine: dict[str, Any], capsys) -> None:
    engine["answer"] = {"status": "stopped", "reason": "SIGTERM at update 3"}
    assert main(["train", NAME, "--run", "mine"] if command == "train" else _resumed("mine")) == 130
    assert "SIGTERM at update 3; continue with `cosformer resume mine`" in capsys.readouterr().err
    assert engine["call"] == command


def _resumed(run: str) -> list[str]:
    Path(run).mkdir()
    Path(run, "experiment.json").write_text(recipe(NAME).to_json())
    return ["resume", run]


def test_a_failed_run_is_one_line_and_code_1(engine: dict[str, Any], capsys) -> None:
    engine["answer"] = cosformer.train.TrainingFailed("the loss is not a number at update 7, first in layer 2")
    assert main(["train", NAME, "--run", "mine"]) == 1
    captured = capsys.readouterr()
    assert captured.err == "mine: the loss is not a number at update 7, first in layer 2\n" and not captured.out


def test_only_the_first_process_speaks(engine: dict[str, Any], monkeypatch, capsys) -> None:
    monkeypatch.setenv("RANK", "1")
    assert main(["train", NAME, "--run", "mine"]) == 0
    assert not capsys.readouterr().out


# --- resume, eval


@pytest.mark.parametrize("command", ["resume", "eval"])
def test_what_is_no_run_is_refused(command: str, folder: Path, capsys) -> None:
    assert main([command, "nowhere"]) == 2
    assert "nowhere is not a run: it holds no experiment.json; see `cosformer runs`" in capsys.readouterr().err


def test_eval_scores_what_is_asked(engine: dict[str, Any], capsys) -> None:
    _resumed("mine")
    assert main(["eval", "mine", "--splits", "test, test@400", "--weights", "last"]) == 0
    assert engine["names"] == ["test", "test@400"] and engine["which"] == "last"
    assert capsys.readouterr().out.splitlines()[0].split() == ["evaluation", "loss", "error", "perplexity"]
    assert main(["eval", "mine", "--json"]) == 0
    assert engine["names"] is None and engine["which"] is None
    assert json.loads(capsys.readouterr().out) == RESULT["scores"]


# --- runs


def _run(folder: Path, **info: Any) -> None:
    folder.mkdir(parents=True)
    (folder / "experiment.json").write_text(recipe(NAME).to_json())
    (folder / "run.json").write_text(json.dumps(info))
    (folder / "metrics.jsonl").write_text("")


def test_runs_shows_a_table_and_names_what_is_damaged(folder: Path, capsys) -> None:
    best = {"step": 200, "score": 2.25}
    _run(
        Path("runs/a"),
        status="stopped",
        reason="SIGINT at update 250",
        steps_done=250,
        best=best,
        score_name="loss",
        seconds=3725,
    )
    _run(Path("runs/deep/b"), status="running", steps_done=0, best=None, seconds=59.6)
    Path("runs/c").mkdir()
    Path("runs/c/experiment.json").write_text("{")
    assert main(["runs"]) == 0
    captured = capsys.readouterr()
    a, b = (" ".join(line.split()) for line in captured.out.splitlines()[2:])
    assert a == "a lm-stdlib-small cosformer 0 250/300 stopped (SIGINT at update 250) - loss 2.2500 1:02:05 -"
    assert b == "deep/b lm-stdlib-small cosformer 0 0/300 running - - 1:00 -"
    assert "runs/c/experiment.json cannot be read" in captured.err
    assert main(["runs", "runs/a", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (
        shown["best"] == 2.25 and shown["best_step"] == 200 and shown["steps"] == 300 and shown["status"] == "stopped"
    )


def _changed(folder: Path, steps: int, scores: dict[str, float], **info: Any) -> None:
    _run(folder, status="done", seconds=60, **info)
    plain = recipe(NAME)
    longer = dataclasses.replace(plain, train=dataclasses.replace(plain.train, steps=steps))
    (folder / "experiment.json").write_text(longer.to_json())
    (folder / "result.json").write_text(json.dumps({"steps": steps, "scores": {"test": scores}}))


def test_runs_show_what_they_changed_sort_and_filter(folder: Path, capsys) -> None:
    scores = {"perplexity": 4.0, "word_perplexity": 57814910918783.4453}
    _changed(Path("runs/a"), 300, {"bits_per_byte": 2.5, **scores})
    _changed(Path("runs/b"), 500, {"bits_per_byte": 2.25, **scores})

    def shown(*words: str) -> list[str]:
        assert main(["runs", *words]) == 0
        captured = capsys.readouterr()
        return captured.out.splitlines()[2:] or [captured.err]

    a, b = shown()
    assert "2.500 bits per byte" in a and a.endswith(" -") and "300/300  finished" in a
    assert b.endswith("train.steps 500") and "5781" not in a + b
    assert [line[0] for line in shown("--sort", "score")] == ["b", "a"]
    assert [line[0] for line in shown("--sort", "score", "--reverse")] == ["a", "b"]
    assert [line[0] for line in shown("--where", "train.steps=500")] == ["b"]
    assert [line[0] for line in shown("--where", "status=finished", "--where", "steps=300")] == ["a"]
    assert "none of the 2 runs" in shown("--where", "status=killed")[0]
    assert main(["runs", "--sort", "train.step"]) == 2 and "did you mean 'train.steps'" in capsys.readouterr().err


def test_two_runs_side_by_side(folder: Path, capsys) -> None:
    _changed(Path("runs/a"), 300, {"bits_per_byte": 2.5, "word_perplexity": 57814910918783.4453})
    _changed(Path("runs/b"), 500, {"bits_per_byte": 2.25})
    assert main(["runs", "diff", "runs/a", "runs/b"]) == 0
    rows = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert rows[0] == "runs/a runs/b" and rows[2] == "train.steps 300 500"
    assert "score 2.500 bits per byte 2.250 bits per byte" in rows and "test, word_perplexity 5.78e+13 -" in rows
    assert main(["runs", "diff", "runs/a"]) == 2 and "give two folders" in capsys.readouterr().err


def test_a_killed_run_is_told_from_a_running_one(folder: Path, capsys) -> None:
    from cosformer import machine

    here = machine.process()
    _run(Path("runs/alive"), status="running", steps_done=0, **here)
    _run(Path("runs/gone"), status="running", steps_done=0, **here | {"pid": 2**22 + 1})
    _run(
        Path("runs/later"), status="running", steps_done=0, **here | {"process_started": 1}
    )  # its number went to another
    _run(Path("runs/elsewhere"), status="running", steps_done=0, **here | {"pid": 2**22 + 1, "host": "another"})
    (Path("runs/gone") / "metrics.jsonl").write_text('{"kind": "train", "step": 120, "loss": 2.0}\n')
    (Path("runs/gone") / "checkpoints" / "checkpoint-100").mkdir(parents=True)
    (Path("runs/gone") / "checkpoints" / "checkpoint-100" / "complete.json").write_text("{}")
    assert main(["runs"]) == 0
    lines = {line.split()[0]: " ".join(line.split()[4:]) for line in capsys.readouterr().out.splitlines()[2:]}
    assert lines["gone"].startswith(f"120/300 (saved 100) killed (no process {2**22 + 1})")
    assert lines["later"].startswith("0/300 killed") and lines["alive"].startswith("0/300 running")
    assert lines["elsewhere"].startswith("0/300 running")


def test_no_runs_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["runs", "empty"]) == 2
    assert "there is no folder empty" in capsys.readouterr().err
    Path("empty").mkdir()
    assert main(["runs", "empty"]) == 0
    captured = capsys.readouterr()
    assert "no runs in empty" in captured.err and not captured.out


# --- several processes


@pytest.mark.slow
def test_two_processes_agree_on_the_folder(folder: Path) -> None:
    words = [
        NAME,
        "--train.steps",
        "1",
        "--train.batch",
        "2",
        "--data.eval-rows",
        "2",
        "--data.length",
        "32",
        "--quiet",
    ]
    words += ["--train.tracker", "none", "--data.options.max_bytes", "200000", "--train.threads", "1"]
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone", "-m", "cosformer"]
    done = subprocess.run([*launch, "train", *words], cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    runs = [path.name for path in (folder / "runs").iterdir()]
    assert runs == ["lm-stdlib-small-cosformer-seed0"]
    assert json.loads((folder / "runs" / runs[0] / "result.json").read_text())["processes"] == 2
