"""``cosformer compare``: scores against hand-made ones, and the tables of the committed results."""

import json
import math
import random
import re
import types
from pathlib import Path

import pytest
import torch
import transformers

from benchmarks.linearized_tables import linearized_tables
from benchmarks.linearized_tables import main as linearized_page
from cosformer.cli import main
from cosformer.hf import CosformerConfig, CosformerForCausalLM
from cosformer.linearize.compare import (
    by_position,
    cache_megabytes,
    compare_embeddings,
    load,
    paired_difference,
    perplexities,
)
from cosformer.linearize.retrieval import build_prompt, retrieval
from cosformer.linearize.run import linearize
from cosformer.linearize.settings import Settings
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
    found = perplexities(model, ids, [16])
    assert found["scores"] == {"perplexity at 16": pytest.approx(expected, rel=1e-5)}
    assert found["row losses"] == pytest.approx([float(x) for x in losses], abs=1e-5)
    assert found["by position"] == {"0 to 16": pytest.approx(expected, rel=1e-5)}
    with pytest.raises(ValueError, match="50 tokens"):
        perplexities(model, ids, [64])


def test_positions_are_those_of_the_tokens():
    losses = torch.arange(1.0, 12.0).repeat(2, 1).log()  # of the tokens at positions 1 to 11
    means = by_position(losses.double(), first=4)
    geometric = lambda *values: math.prod(values) ** (1 / len(values))  # noqa: E731
    assert means == {
        "0 to 4": pytest.approx(geometric(1, 2, 3)),
        "4 to 8": pytest.approx(geometric(4, 5, 6, 7)),
        "8 to 12": pytest.approx(geometric(8, 9, 10, 11)),
    }


def test_a_difference_is_paired_by_rows():
    mean, low, high = paired_difference([1.0, 2.0, 3.0], [1.1, 2.2, 3.3])  # pyright: ignore[reportGeneralTypeIssues]
    assert mean == pytest.approx(-0.2)
    assert (low, high) == pytest.approx((-0.2 - 0.2 / 3**0.5, -0.2 + 0.2 / 3**0.5))
    assert paired_difference([1.0], [2.0]) is None


class Oracle:
    """Reads the number behind "key is" in the prompt, if it is among the last ``reach`` tokens."""

    def __init__(self, tokenizer, reach):
        self.tokenizer, self.reach = tokenizer, reach

    def generate(self, rows, max_new_tokens, **options):
        text = self.tokenizer.decode(rows[0, -self.reach :])
        found = re.search(r"key is (\d+)", text) or re.search(r"in the (\w+)\.", text)
        answer = self.tokenizer(f" {found[1]}" if found else " nothing").input_ids[:max_new_tokens]
        return torch.cat([rows, torch.tensor([answer])], 1)


class Characters:
    def __call__(self, text, **options):
        return types.SimpleNamespace(input_ids=[ord(c) for c in text])

    def decode(self, ids, **options):
        return "".join(chr(i) for i in ids)


def test_what_is_placed_is_found_again_or_not():
    tokenizer = Characters()
    ids = torch.tensor(tokenizer("a text without any number " * 40).input_ids)
    every = retrieval(Oracle(tokenizer, 600), tokenizer, ids, [600], 3)
    assert every == {f"{kind} at {depth} % of 600": 3 for kind in ("pass-key", "fact") for depth in (10, 50, 90)}
    near = retrieval(Oracle(tokenizer, 250), tokenizer, ids, [600], 3)
    assert [near[f"pass-key at {depth} % of 600"] for depth in (10, 50, 90)] == [0, 0, 3]
    parts = ("PLACED", "QUESTION", "answer")
    prompt, answer = build_prompt(tokenizer, ids, parts, 200, 0.5, random.Random(0))
    text = tokenizer.decode(prompt.tolist())
    assert len(text) == 200
    assert text.index("PLACED") == 93
    assert text.endswith("QUESTION")
    assert answer == "answer"
    with pytest.raises(ValueError, match="text has 1040"):
        build_prompt(tokenizer, ids, parts, 2000, 0.5, random.Random(0))


def test_a_student_is_printed_beside_its_controls(llama, text, tmp_path, capsys):
    student = tmp_path / "student"
    sizes = {"length": 32, "batch": 2, "window": 4, "sinks": 2, "transfer_tokens": 600, "repair_tokens": 200}
    linearize(llama, student, [text], Settings(**sizes), quiet=True)
    out = tmp_path / "lines.jsonl"
    options = [
        "--tokens",
        "260",
        "--skip",
        "100",
        "--contexts",
        "64",
        "--generate-at",
        "64",
        "--samples",
        "1",
        "--json",
        str(out),
    ]
    assert main(["compare", llama, str(student), "--text", str(text), *options]) == 0
    printed = capsys.readouterr().out
    assert "the student's loss minus this" in printed
    assert "right of 1: pass-key at 10 % of 64" in printed
    teacher, student_line, narrow, wide, bare = (json.loads(line) for line in out.read_text().splitlines())
    assert narrow["model"] == f"{student}: window 4 + 2 sinks, untrained"
    assert re.fullmatch(r".*: window \d+ \+ 2 sinks, untrained, equal state", wide["model"])
    assert bare["model"] == f"{student}: no far part"
    for line in (narrow, wide, bare):
        mean = line["student's loss minus this"][0]
        rows = zip(student_line["row losses"], line["row losses"], strict=True)
        assert mean == pytest.approx(sum(a - b for a, b in rows) / 4, abs=1e-5)
    # the equal state is a state of equal size, and the untrained windows are the original under a mask
    megabytes = [line["scores"]["cache MB at 8192"] for line in (student_line, wide, narrow)]
    assert 1 <= megabytes[1] / megabytes[0] < 1.1
    assert megabytes[2] < megabytes[0]
    model = load(llama)
    ids = torch.tensor(transformers.AutoTokenizer.from_pretrained(llama)(text.read_text()).input_ids)[100:356].view(
        4, 64
    )
    i, j = torch.arange(64)[:, None], torch.arange(64)
    mask = (j <= i) & ((j > i - 4) | (j < 2))
    logits = model(ids, attention_mask=mask.expand(4, 1, 64, 64)).logits[:, :-1]
    expected = math.exp(torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()))
    assert narrow["scores"]["perplexity at 64"] == pytest.approx(expected, rel=1e-4)
    assert teacher["scores"]["perplexity at 64"] != pytest.approx(expected, rel=1e-4)


def test_the_command(llama, bert, text, tmp_path, capsys):
    out = tmp_path / "lines.jsonl"
    options = ["--text", str(text), "--json", str(out), "--tokens", "256", "--continue-after", "9"]
    options += ["--contexts", "32", "64"]
    assert main(["compare", llama, llama, *options]) == 0
    assert "continuation: " in capsys.readouterr().out
    first, second = (json.loads(line) for line in out.read_text().splitlines())
    first.pop("token ms"), second.pop("token ms")
    assert first == second
    scores = first["scores"]
    assert {"perplexity at 32", "perplexity at 64"} <= scores.keys()
    assert scores["cache MB at 8192"] == pytest.approx(8 * scores["cache MB at 1024"])
    assert main(["compare", bert, bert, "--text", str(text), "--lines", "40", "--json", str(out)]) == 0
    assert json.loads(out.read_text().splitlines()[-1])["scores"]["top-10"] == 1
    with pytest.raises(SystemExit, match="2"):
        main(["compare", llama])


def test_the_state_of_our_own_models_does_not_grow():
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    model = CosformerForCausalLM(CosformerConfig(vocab_size=20, is_decoder=True, **sizes))
    sums = 2 * 2 * (16 * 8 + 16) * 4  # of each head of each layer: 16 features by 8 channels, and 16
    assert cache_megabytes(model, 1) == cache_megabytes(model, 1000)
    assert sums <= 1e6 * cache_megabytes(model, 1) <= sums + 64, "the sums and a few counters"


def test_a_run_is_compared_by_its_best_weights(text, capsys):
    options = ["--text", str(text), "--tokens", "256", "--contexts", "64", "--samples", "0"]
    assert (
        main(["compare", str(STDLIB_MODEL), *options]) == main(["compare", str(STDLIB_MODEL / "best"), *options]) == 0
    )
    lines = capsys.readouterr().out.splitlines()
    run, folder = lines[: len(lines) // 2], lines[len(lines) // 2 :]
    assert run == folder and "perplexity at 64" in run[0]


def test_the_page_shows_the_committed_results(tmp_path):
    page = ROOT / "docs" / "linearized.md"
    copy = tmp_path / page.name
    copy.write_text(page.read_text(encoding="utf-8"), encoding="utf-8")
    linearized_page(ROOT / "docs/results/linearize.jsonl", copy)
    command = "python -m benchmarks.linearized_tables docs/results/linearize.jsonl docs/linearized.md"
    assert copy.read_text(encoding="utf-8") == page.read_text(encoding="utf-8"), f"run: {command}"


def test_new_results_have_tables_of_their_own():
    def line(name, perplexity, **more):
        scores = {"perplexity at 1024": perplexity, "cache MB at 8192": 6.0}
        return {"model": "smollm2-valid", "name": name, "scores": scores, **more}

    right = {"samples": 10, "right": {"pass-key at 10 % of 1024": 7}}
    block = linearized_tables(
        [
            line("teacher", 20.0, **{"by position": {"0 to 1024": 20.0}}),
            line("gated", 25.0, retrieval=right, **{"by position": {"0 to 1024": 24.0}}),
        ]
    )
    assert "| gated | 25 (1.25) | 24 (1.20) | 6.0 |" in block
    assert "| gated | 7 |" in block
    assert "Exact answers of 10 prompts each" in block
