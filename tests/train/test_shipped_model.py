"""A run made small enough to ship, and the model that is shipped."""

import gzip
import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from cosformer.data.vocabulary import Bytes
from cosformer.experiment import load_experiment
from cosformer.recipes import recipe
from cosformer.shipped import STDLIB_MODEL
from cosformer.train import load_model, train
from cosformer.train.checkpoints import damage
from tools.ship_model import export

LARGEST = 3_000_000  # bytes of everything that is shipped


def test_the_last_weights_rounded_with_their_own_scores(small, tmp_path):
    run, out = tmp_path / "run", tmp_path / "out"
    with pytest.raises(FileNotFoundError, match="is not a run"):
        export(run, out)
    whole = train(small(steps=4, save_every=4), run, quiet=True)
    export(run, out)
    export(run, out)  # again, in place of the first
    weights = load_file(out / "best" / "model.safetensors")
    assert {x.dtype for x in weights.values()} == {torch.bfloat16}
    before = load_model(run, "last").state_dict()
    for name, value in load_model(out).state_dict().items():
        assert value.dtype == torch.float32 and torch.equal(value, before[name].bfloat16().float())
    result = json.loads((out / "result.json").read_text())
    assert result["scores"] != whole["scores"]  # of the rounded weights
    for name, scores in whole["scores"].items():
        assert result["scores"][name]["loss"] == pytest.approx(scores["loss"], rel=0.02)
    card = (out / "best" / "README.md").read_text()
    assert f"seed {whole['seed']}" in card and f"{result['scores']['test']['bits_per_byte']:.3f}" in card


def test_a_run_that_has_not_finished_is_not_exported(small, tmp_path):
    train(small(steps=4, save_every=4), tmp_path / "run", quiet=True)
    (tmp_path / "run" / "result.json").unlink()
    with pytest.raises(FileNotFoundError, match="has not finished"):
        export(tmp_path / "run", tmp_path / "out")


def test_the_shipped_model_is_small_whole_and_the_recipe_s():
    files = [path for path in STDLIB_MODEL.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert sum(path.stat().st_size for path in files) <= LARGEST
    assert not damage(STDLIB_MODEL / "best")
    assert load_experiment(STDLIB_MODEL) == recipe("lm-stdlib")
    weights = load_file(STDLIB_MODEL / "best" / "model.safetensors")
    assert {x.dtype for x in weights.values()} == {torch.bfloat16}
    result = json.loads((STDLIB_MODEL / "result.json").read_text())
    card = (STDLIB_MODEL / "best" / "README.md").read_text()
    assert f"seed {result['seed']}" in card and f"| test | {result['scores']['test']['bits_per_byte']:.3f} |" in card


def test_the_shipped_model_has_learned_python():
    """Its own unseen source text: well below the frequency of bytes, and below gzip."""
    source = Path(__file__).read_bytes()[:2000]
    model = load_model(STDLIB_MODEL)
    ids = torch.from_numpy(Bytes.ids(source).astype("int64"))[None]
    with torch.no_grad():
        bits = float(model(ids, labels=ids).loss) / math.log(2)
    assert bits < 8 * len(gzip.compress(source, 9)) / len(source)
    assert bits < 3.5
