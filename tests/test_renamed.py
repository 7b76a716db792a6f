"""What earlier versions saved loads under today's names."""

import dataclasses
import json
import re

import pytest

from cosformer.commands.train import parse
from cosformer.experiment import ModelConfig, TrainConfig, from_json
from cosformer.models.config import CosformerConfig
from cosformer.recipes import recipe
from cosformer.renamed import RENAMED, with_current_names


def test_current_names_are_fields() -> None:
    for part, kind in {"model": ModelConfig, "train": TrainConfig, "config": CosformerConfig}.items():
        fields = {field.name for field in dataclasses.fields(kind)}
        assert fields.issuperset(RENAMED[part].values()) and fields.isdisjoint(RENAMED[part])


def test_an_earlier_experiment_loads() -> None:
    values = json.loads(recipe("lm-stdlib-small").to_json())
    earlier = {part: {new: old for old, new in RENAMED[part].items()} for part in ("model", "train")}
    for part, names in earlier.items():
        values[part] = {names.get(name, name): value for name, value in values[part].items()}
    assert {"layers", "width", "heads", "feed_forward", "dropout"} <= values["model"].keys()
    values["train"] |= {"piece": 32, "piece_gradients": "truncated"}
    values["model"]["fields"] |= {"feed_forward": "gated"}
    found = from_json(json.dumps(values | {"task": "score"}))
    assert found.task == "similarity"
    assert found.model.intermediate_size == 512 and found.model.fields["feed_forward_type"] == "gated"
    assert found.train.window == 32 and found.train.window_gradients == "truncated"


def test_an_earlier_config_loads(tmp_path) -> None:
    saved = CosformerConfig(is_encoder_decoder=True, decoder_attention="softmax", feed_forward_type="gated").to_dict()
    saved["writing_attention"], saved["feed_forward"] = saved.pop("decoder_attention"), saved.pop("feed_forward_type")
    (tmp_path / "config.json").write_text(json.dumps(saved))
    found = CosformerConfig.from_pretrained(tmp_path)
    assert (found.decoder_attention, found.feed_forward_type) == ("softmax", "gated")
    assert not {"writing_attention", "feed_forward"} & found.to_dict().keys()


def test_a_value_under_both_names_is_refused() -> None:
    with pytest.raises(ValueError, match="model has both width and its current name, hidden_size"):
        with_current_names("model", {"width": 1, "hidden_size": 2})


@pytest.mark.parametrize("word", ["--model.width", "--model.feed_forward=3", "--train.piece"])
def test_an_earlier_option_names_the_current_one(word: str) -> None:
    part, _, old = word[2:].partition("=")[0].partition(".")
    new = f"--{part}.{RENAMED[part][old]}".replace("_", "-")
    with pytest.raises(ValueError, match=re.escape(f"is now called {new}")):
        parse("lm-stdlib-small", [word, "3"])
