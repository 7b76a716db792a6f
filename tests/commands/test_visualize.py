"""``cosformer visualize`` on a run, on a saved model and on stock models, with the user's own text."""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from cosformer.cli import main
from cosformer.commands.generate import encode
from cosformer.data.vocabulary import Bytes, Pixels, Words

TEXT = "def f(x):"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a masked language model on bytes of Python sources, as training leaves it."""
    pytest.importorskip("transformers")
    from cosformer.experiment import DataConfig, Experiment, ModelConfig, TrainConfig
    from cosformer.tasks import build_task
    from cosformer.train.start import start_model

    folder = tmp_path_factory.mktemp("visualize")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COSFORMER_HOME", str(folder / "home"))
        sizes = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 32}
        experiment = Experiment(
            recipe="mlm-test",
            task="mlm",
            data=DataConfig("python", options={"max_bytes": 200_000}, length=32, eval_rows=2),
            model=ModelConfig("roberta_base", **sizes),
            train=TrainConfig(steps=1, batch=2, lr=1e-3, tracker="none", threads=1),
        )
        start_model(build_task(experiment), experiment).save_pretrained(folder / "run" / "best")
        (folder / "run" / "experiment.json").write_text(experiment.to_json())
        yield folder / "run"


def test_a_run_in_every_format(run: Path, tmp_path: Path, capsys) -> None:
    pytest.importorskip("matplotlib")
    for suffix in ("html", "svg", "png", "npz"):
        out = tmp_path / "new" / f"maps.{suffix}"
        assert main(["visualize", str(run), "--text", TEXT, "-o", str(out)]) == 0
        assert capsys.readouterr().out.strip() == str(out) and out.stat().st_size > 500
    page = (tmp_path / "new" / "maps.html").read_text()
    assert (
        page.count("<img ") == page.count(' alt="') == 2
        and "Layer 2" in page
        and "http" not in page.replace("http://www.w3", "")
    )
    svg = (tmp_path / "new" / "maps.svg").read_text()
    assert re.findall(r">(layer \d, head \d)<", svg) == [f"layer {i}, head {j}" for i in (1, 2) for j in (1, 2)]
    assert (tmp_path / "new" / "maps.png").read_bytes().startswith(b"\x89PNG")
    saved = np.load(tmp_path / "new" / "maps.npz")
    assert saved["weights"].shape == (2, 2, len(TEXT) + 2, len(TEXT) + 2)
    assert saved["tokens"].tolist() == ["<s>", *TEXT, "</s>"]
    np.testing.assert_allclose(saved["weights"].sum(-1), 1, atol=1e-5)


def test_one_head_shows_its_tokens(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "maps.svg"
    assert main(["visualize", str(run), "--text", "ab c", "-o", str(out), "--layer", "2", "--head", "1"]) == 0
    svg = out.read_text()
    assert "largest of the panel" in svg and svg.count("<image ") == 2  # the map and its scale
    assert "layer 2, head 1" in svg and svg.count(">·<") == 2 and "&lt;s&gt;" in svg


def test_the_text_changes_the_maps(run: Path, tmp_path: Path) -> None:
    found = []
    for text in ("abcd", "abce", "abcd"):
        assert main(["visualize", str(run), "--text", text, "-o", str(tmp_path / "m.npz")]) == 0
        found.append(np.load(tmp_path / "m.npz")["weights"])
    assert np.array_equal(found[0], found[2]) and not np.allclose(found[0], found[1])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--layer", "3"], "--layer 3: the model has 1 to 2"),
        (["--head", "0"], "--head 0: the model has 1 to 2"),
        (["-o", "maps.jpg"], "ends in .html, .svg, .png, .npz"),
        (["--text", ""], "text is empty"),
        (["--text", "x" * 500], "exceeds max_len"),
    ],
)
def test_mistakes_are_named(run: Path, options: list[str], words: str, capsys) -> None:
    assert main(["visualize", str(run), "--text", TEXT, *options]) == 2
    assert words in capsys.readouterr().err


def test_a_folder_without_a_model_is_named(tmp_path: Path, capsys) -> None:
    pytest.importorskip("transformers")
    assert main(["visualize", str(tmp_path), "--text", TEXT]) == 2
    assert "no run and no model in" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["ours", "stock"])
def test_a_saved_model_with_its_tokenizer(tmp_path: Path, kind: str) -> None:
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, models, pre_tokenizers

    from cosformer.hf import CosformerConfig, CosformerForCausalLM

    sizes = {"vocab_size": 8, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    if kind == "ours":
        config = CosformerConfig(**sizes, intermediate_size=16, max_position_embeddings=16, is_decoder=True)
        CosformerForCausalLM(config).save_pretrained(tmp_path)
    else:
        config = transformers.GPT2Config(vocab_size=8, n_embd=16, n_layer=1, n_head=2, n_positions=16)
        transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path)
    words = Tokenizer(models.WordLevel({"<unk>": 0, "to": 1, "be": 2, "or": 3, "not": 4}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>").save_pretrained(tmp_path)
    out = tmp_path / "maps.npz"
    assert main(["visualize", str(tmp_path), "--text", "to be or not", "-o", str(out)]) == 0
    saved = np.load(out)
    assert saved["tokens"].tolist() == ["to", "be", "or", "not"]
    assert np.array_equal(saved["weights"], np.tril(saved["weights"])) and saved["weights"].any()


def test_text_in_each_vocabulary() -> None:
    assert encode(Bytes(special=True), "ab", specials=True) == [257, 98, 99, 258]
    assert encode(Bytes(special=True), "é", specials=False) == [196, 170]
    words = Words(["<unk>", "a", "b"])
    assert encode(words, "a c\nb", specials=True) == [1, 0, 2]
    with pytest.raises(ValueError, match="'c' is not in the run's vocabulary: a b"):
        encode(Words(["a", "b"]), "a c", specials=False)
    with pytest.raises(ValueError, match="pixels, not text"):
        encode(Pixels(lra_padding=False), "a", specials=False)
