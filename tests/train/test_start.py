"""Where a model starts: seeded, from another run, from RoBERTa's weights; and what does not fit is refused."""

import dataclasses

import pytest
import torch

from cosformer.tasks import build_task
from cosformer.train import load_model, start_model, train


def test_the_seed_decides_the_weights(small) -> None:
    experiment = small()
    task = build_task(experiment)
    a, b, c = (start_model(task, small(seed=seed)) for seed in (0, 0, 1))
    same = [torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True)]
    other = [torch.equal(x, y) for x, y in zip(a.parameters(), c.parameters(), strict=True)]
    assert all(same) and not all(other)


def test_a_run_starts_from_another_runs_best_weights(small, tmp_path) -> None:
    train(small(steps=4), tmp_path / "first", quiet=True)
    second = small(
        steps=4, lr=1e-3, model={"num_hidden_layers": None, "hidden_size": None, "num_attention_heads": None}
    )
    second = dataclasses.replace(second, start=str(tmp_path / "first"))
    model = start_model(build_task(second), second)
    for x, y in zip(model.parameters(), load_model(tmp_path / "first").parameters(), strict=True):
        assert torch.equal(x, y)
    train(second, tmp_path / "second", quiet=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": {"hidden_size": 64}}, "model.hidden_size=64.*hidden_size=32"),
        ({"model": {"attention": "relu"}}, "trained with 'cosformer'.*--model.attention cosformer"),
    ],
)
def test_what_does_not_fit_is_refused(small, tmp_path, change, message) -> None:
    train(small(steps=2), tmp_path / "first", quiet=True)
    second = dataclasses.replace(small(steps=2, **change), start=str(tmp_path / "first"))
    with pytest.raises(ValueError, match=message):
        start_model(build_task(second), second)


def test_more_positions_repeat_those_that_were_trained(small, tmp_path) -> None:
    train(small(steps=2), tmp_path / "first", quiet=True)
    second = dataclasses.replace(small(steps=2, data={"length": 128}), start=str(tmp_path / "first"))
    model = start_model(build_task(second), second)
    before = load_model(tmp_path / "first").state_dict()
    assert model.config.max_position_embeddings == 128
    for name, value in model.state_dict().items():
        expected = torch.cat((before[name], before[name])) if name.endswith("positions.weight") else before[name]
        assert torch.equal(value, expected), name


def test_a_folder_without_best_weights_is_named(small, tmp_path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "experiment.json").write_text(small().to_json())
    second = dataclasses.replace(small(), start=str(tmp_path / "run"))
    with pytest.raises(FileNotFoundError, match="no best weights yet"):
        start_model(build_task(second), second)


def test_a_run_is_found_in_a_fresh_process(small, start, tmp_path) -> None:
    """The Auto classes must know our models there, too."""
    train(small(steps=2), tmp_path / "first", quiet=True)
    second = start(dataclasses.replace(small(steps=2), start=str(tmp_path / "first")), tmp_path / "second")
    said = second.communicate()[1]
    assert second.returncode == 0, said[-2000:]
