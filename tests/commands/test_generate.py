"""``cosformer generate``."""

import argparse
import io
import itertools
import re

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from cosformer.commands import generate as command
from cosformer.hf import CosformerConfig, CosformerForCausalLM, convert
from versions import traces

WORDS = ["[PAD]", "[UNK]", "</s>", "the", "cat", "sat", "on", "a", "mat"]
SIZES = {"vocab_size": len(WORDS), "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
SIZES |= {
    "max_position_embeddings": 32,
    "initializer_range": 0.3,
    "pad_token_id": 0,
    "bos_token_id": 2,
    "eos_token_id": 2,
}


def run(*words: str) -> int:
    parser = argparse.ArgumentParser()
    command.configure(parser)
    return command.run(parser.parse_args(words))


@pytest.fixture
def saved(tmp_path):
    torch.manual_seed(0)
    model = CosformerForCausalLM(CosformerConfig(**SIZES, intermediate_size=64, is_decoder=True))
    model.generation_config.eos_token_id = None
    model.save_pretrained(tmp_path / "own")
    tokenizer(tmp_path / "own")
    return model.eval(), str(tmp_path / "own")


def tokenizer(path) -> None:
    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "eos_token": "</s>"}
    PreTrainedTokenizerFast(tokenizer_object=made, **names).save_pretrained(path)


def test_it_writes_the_prompt_and_what_follows(saved, capsys, monkeypatch):
    model, where = saved
    assert run(where, "--prompt", "the cat sat", "--greedy", "--max-new-tokens", "8") == 0
    text = capsys.readouterr().out
    ids = model.generate(torch.tensor([[3, 4, 5]]), max_new_tokens=8, do_sample=False, eos_token_id=None)[0]
    special = {"[PAD]", "[UNK]", "</s>"}
    assert text.split() == [WORDS[i] for i in ids if WORDS[i] not in special]
    monkeypatch.setattr("sys.stdin", io.StringIO("the cat sat"))
    run(where, "--prompt", "-", "--greedy", "--max-new-tokens", "8")
    assert capsys.readouterr().out == text


def test_sampling_is_seeded(saved, capsys):
    _, where = saved
    words = [where, "--prompt", "a mat", "--seed", "3", "--temperature", "1.5", "--max-new-tokens", "12"]
    texts = []
    for seed in ("3", "3", "4"):
        run(*words[:4], seed, *words[5:])
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] != texts[2]


def test_a_converted_stock_decoder_runs_too(tmp_path, capsys):
    torch.manual_seed(0)
    GPT2LMHeadModel(GPT2Config(**SIZES)).save_pretrained(tmp_path / "stock")
    tokenizer(tmp_path / "stock")
    convert(str(tmp_path / "stock"), tmp_path / "out")
    assert run(str(tmp_path / "out"), "--prompt", "the cat", "--max-new-tokens", "5") == 0
    assert capsys.readouterr().out.startswith("the cat")


def test_mistakes(saved, tmp_path):
    _, where = saved
    with pytest.raises(ValueError, match="leave out --greedy"):
        run(where, "--prompt", "a", "--top-k", "3", "--greedy")
    with pytest.raises(ValueError, match="max_len=32"):
        run(where, "--prompt", "a", "--max-new-tokens", "32")
    with pytest.raises(ValueError, match="no token"):
        run(where, "--prompt", "")
    with pytest.raises(FileNotFoundError, match="nowhere does not exist"):
        run(str(tmp_path / "nowhere"), "--prompt", "a")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="no run and no causal model in"):
        run(str(tmp_path / "empty"), "--prompt", "a")
    CosformerForCausalLM(CosformerConfig(**SIZES, is_decoder=True)).save_pretrained(tmp_path / "bare")
    with pytest.raises(FileNotFoundError, match="no tokenizer in"):
        run(str(tmp_path / "bare"), "--prompt", "a")


def test_a_run_of_ours_continues_a_text(tmp_path, capsys, monkeypatch):
    """Its vocabulary is the data's; what it prints is what the model's own generate gives."""
    from cosformer.experiment import DataConfig, Experiment, ModelConfig, TrainConfig
    from cosformer.train import load_model, train

    monkeypatch.setenv("COSFORMER_HOME", str(tmp_path / "home"))
    sizes = {
        "num_hidden_layers": 1,
        "hidden_size": 16,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "fields": {"adaptive_cutoffs": None},
    }
    data = DataConfig("python", {"max_bytes": 300_000}, length=64, eval_rows=4)
    learning = TrainConfig(steps=2, batch=2, lr=1e-3, eval_every=2, save_every=2, tracker="none", threads=1)
    trained = tmp_path / "run"
    train(Experiment("test", "lm", data, ModelConfig("adaptive_lm", **sizes), learning), trained, quiet=True)
    capsys.readouterr()
    assert run(str(trained), "--prompt", "def ", "--greedy", "--max-new-tokens", "12") == 0
    printed = capsys.readouterr().out
    ids = torch.tensor([[byte + 1 for byte in b"def "]])
    made = load_model(trained).generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False)
    plain = bytes(int(i) - 1 for i in made[0] if 1 <= int(i) <= 256).decode("utf-8", "replace")
    assert printed.startswith("def ") and printed.rstrip("\n") == plain.rstrip("\n")
    other = tmp_path / "other"
    other.mkdir()
    (other / "experiment.json").write_text((trained / "experiment.json").read_text().replace('"lm"', '"mlm"'))
    with pytest.raises(ValueError, match="task 'mlm'; only a language model"):
        run(str(other), "--prompt", "def ")


def test_without_a_model_the_one_that_is_shipped_writes(capsys):
    texts = []
    for words in ([], ["--prompt", command.DEFAULT_PROMPT], ["--prompt", "def "]):
        assert run(*words, "--seed", "0", "--max-new-tokens", "20") == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] != texts[2] and texts[0].startswith(command.DEFAULT_PROMPT)


def test_a_model_without_a_prompt_is_a_mistake(saved):
    with pytest.raises(ValueError, match="--prompt is missing"):
        run(saved[1])


def test_text_appears_while_it_is_made(saved, monkeypatch):
    """What is written so far, whenever the model is asked for the next token."""
    screen, seen = io.StringIO(), []
    monkeypatch.setattr("sys.stdout", screen)
    asked = CosformerForCausalLM.forward

    def forward(self, *args, **kwargs):
        seen.append(screen.getvalue())
        return asked(self, *args, **kwargs)

    monkeypatch.setattr(CosformerForCausalLM, "forward", forward)
    run(saved[1], "--prompt", "the cat", "--seed", "0", "--max-new-tokens", "12")
    assert len(set(seen)) > 4 and all(b.startswith(a) for a, b in itertools.pairwise([*seen, screen.getvalue()]))


@pytest.mark.parametrize("kind", ["bf16", "int8"])
def test_smaller_weights(kind, saved, capsys, monkeypatch):
    used = []
    monkeypatch.setattr("cosformer.hf.weights.shrink_weights", lambda model, kind: used.append(kind) or model)
    assert run(saved[1], "--prompt", "the cat", "--max-new-tokens", "3", "--weights", kind) == 0
    assert used == [kind] and capsys.readouterr().out.startswith("the cat")


@traces
def test_compiled_it_writes_the_same_text_and_says_how_long_it_took(saved, capsys):
    _, where = saved
    words = [where, "--prompt", "the cat sat", "--seed", "3", "--max-new-tokens", "20"]
    run(*words)
    eager = capsys.readouterr()
    run(*words, "--compile")
    compiled = capsys.readouterr()
    assert compiled.out == eager.out and eager.err == ""
    assert re.fullmatch(r"compiled in \d+\.\d s\n", compiled.err)
