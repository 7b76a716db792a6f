"""``cosformer compare``: scores against hand-made ones, and the tables of the committed results."""

import json
import math
from pathlib import Path

import pytest
import torch
import transformers

from cosformer.cli import main
from cosformer.linearize.compare import compare_embeddings, perplexities
from cosformer.shipped import STDLIB_MODEL

ROOT = Path(__file__).parents[2]


def test_neighbours_are_counted():
    angles = torch.tensor([0.0, 1.0, 2.1, 3.3, 10, 11.1, 12.3, 20, 21.2, 22.5, 30, 31]) * math.pi / 180
    teacher = torch.stack([angles.cos(), angles.sin()], 1)
    same = compare_embeddings(teacher, teacher)
    assert same == {"cosine": pytest.approx(1), "top-1": 1, "top-10": 1}
    # the first and the last change places: everyone but them keeps its ten, of eleven others, but for one
    order = [11, *range(1, 11), 0]
    moved = compare_embeddings(teacher, teacher[order])
    assert moved["cosine"] == pytest.approx((10 + 2 * math.cos(31 * math.pi / 180)) / 12)
    assert moved["top-1"] < 1


@torch.no_grad()
def test_perplexity_is_that_of_transformers_own_loss(llama):
    model = transformers.AutoModelForCausalLM.from_pretrained(llama).eval()
    ids = torch.randint(2, 20, (50,))
    losses = [model(row[None], labels=row[None]).loss for row in ids[:48].view(3, 16)]
    expected = math.exp(sum(losses) / 3)
    assert perplexities(model, ids, [16]) == {"perplexity at 16": pytest.approx(expected, rel=1e-5)}
    with pytest.raises(ValueError, match="50 tokens"):
        perplexities(model, ids, [64])


def test_the_command(llama, bert, text, tmp_path, capsys):
    out = tmp_path / "lines.jsonl"
    options = ["--text", str(text), "--json", str(out), "--tokens", "256", "--continue-after", "9"]
    options += ["--contexts", "32", "64"]
    assert main(["compare", llama, llama, *options]) == 0
    assert "goes on: " in capsys.readouterr().out
    first, second = (json.loads(line) for line in out.read_text().splitlines())
    assert first == second
    scores = first["scores"]
    assert {"perplexity at 32", "perplexity at 64"} <= scores.keys()
    assert scores["cache MB at 8192"] == pytest.approx(8 * scores["cache MB at 1024"])
    assert main(["compare", bert, bert, "--text", str(text), "--lines", "40", "--json", str(out)]) == 0
    assert json.loads(out.read_text().splitlines()[-1])["scores"]["top-10"] == 1
    assert main(["compare", llama]) == 2


def test_a_run_is_compared_by_its_best_weights(text, capsys):
    options = ["--text", str(text), "--tokens", "256", "--contexts", "64"]
    assert (
        main(["compare", str(STDLIB_MODEL), *options]) == main(["compare", str(STDLIB_MODEL / "best"), *options]) == 0
    )
    run, folder = capsys.readouterr().out.splitlines()
    assert run == folder and "perplexity at 64" in run


def test_the_page_shows_the_committed_results(tmp_path):
    page = ROOT / "docs" / "linearized.md"
    copy = tmp_path / page.name
    copy.write_text(page.read_text(encoding="utf-8"), encoding="utf-8")
    assert main(["compare", "--read", str(ROOT / "docs/results/linearize.jsonl"), "--into", str(copy)]) == 0
    command = "cosformer compare --read docs/results/linearize.jsonl --into docs/linearized.md"
    assert copy.read_text(encoding="utf-8") == page.read_text(encoding="utf-8"), f"run: {command}"
