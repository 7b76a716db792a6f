"""What more context is worth, measured on a trained run."""

import dataclasses
from pathlib import Path

import pytest

from cosformer.data.masking import IGNORED
from cosformer.experiment import DataConfig, Experiment, ModelConfig, TrainConfig
from cosformer.models.causal_lm import CosformerForCausalLM
from cosformer.train import evaluate_run, train
from studies.cosformer2022 import Request, context


def test_contexts_double_up_to_half_of_a_row() -> None:
    assert context.contexts(128) == [4, 8, 16, 32, 64]
    assert context.contexts(100) == [4, 8, 16, 32]


@pytest.mark.usefixtures("data_home", "one_thread")
def test_the_same_tokens_are_guessed_with_every_context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, length = 16, 64
    data = DataConfig("python", {"max_bytes": 300_000}, length=length, eval_rows=rows)
    fields = {"adaptive_cutoffs": None, "adaptive_dropout": 0.0}
    model = ModelConfig(
        "adaptive_lm", num_hidden_layers=1, hidden_size=32, num_attention_heads=2, intermediate_size=64, fields=fields
    )
    train(Experiment("test", "lm", data, model, TrainConfig(2, 4, 3e-3, tracker="none", threads=1)), tmp_path / "run")
    counts: dict[int, int] = {}
    forward = CosformerForCausalLM.forward

    def watched(self, input_ids, shift_labels, **others):
        window, counted = input_ids.shape[1], shift_labels != IGNORED
        assert not counted[1:, : window // 2].any(), "but for the first row, each has half of its window before it"
        counts[window] = counts.get(window, 0) + int(counted.sum())
        return forward(self, input_ids=input_ids, shift_labels=shift_labels, **others)

    monkeypatch.setattr(CosformerForCausalLM, "forward", watched)
    found = context.losses(tmp_path / "run", rows * length)
    assert counts == {8: rows * length, 16: rows * length, 32: rows * length, 64: rows * length}
    monkeypatch.undo()
    assert found[32] == pytest.approx(evaluate_run(tmp_path / "run", ["test@32"])["test@32"]["loss"], rel=1e-5)
    assert len(set(found.values())) == len(found)


def test_the_table_names_the_best_context_and_what_the_longest_costs() -> None:
    values = [
        {"recipe": "lm", "attention": "relu", "seed": 0, "loss": {"4": 2.0, "8": 1.5, "16": 1.6}},
        {"recipe": "lm", "attention": "relu", "seed": 1, "loss": {"4": 1.8, "8": 1.6, "16": 1.55}},
    ]
    table = context.table(values)
    assert list(table.header)[2:5] == ["4 to 7", "8 to 15", "16 to 31"]
    assert table.rows == [["lm", "relu", "1.9000", "1.5500", "1.5750", "8 to 15", "+0.1000, -0.0500"]]


def test_what_was_scored_before_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights are not kept for ever: a later scoring replaces its own lines and no others."""
    docs = tmp_path / "docs"
    (docs / "results").mkdir(parents=True)
    request = Request("context", "small", ("relu",), 1, tmp_path, docs, write=docs)
    monkeypatch.setattr(context, "finished", lambda cell, runs: tmp_path if cell.recipe == context.LM else None)
    monkeypatch.setattr(context, "losses", lambda run: {4: 2.0, 8: 1.5})
    context.show(request, None)
    monkeypatch.setattr(context, "finished", lambda cell, runs: tmp_path)
    monkeypatch.setattr(context, "losses", lambda run: {4: 1.0, 8: 0.5})
    context.show(dataclasses.replace(request, attentions=("softmax",)), None)
    found = [(v["recipe"], v["attention"], v["loss"]["8"]) for v in context.read(docs / "results")]
    assert found == [
        ("evidence-lm", "relu", 1.5),
        ("evidence-lm", "softmax", 0.5),
        ("evidence-lm-long", "softmax", 0.5),
    ]
