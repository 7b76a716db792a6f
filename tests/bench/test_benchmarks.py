"""The smaller benchmarks at sizes of seconds: what they measure and how figures follow from times."""

import time

import pytest
import torch

from benchmarks import data, native, peers
from benchmarks.__main__ import main as project_main
from cosformer.bench import attention, generate, gpu, long, measure, reading
from cosformer.bench.runner import tables
from cosformer.bench.steps import language_model
from cosformer.bench.tokens import weight_bytes
from cosformer.cli import main
from cosformer.extras import MissingExtra
from cosformer.ops import native as kernels
from cosformer.report.measurements import read_results
from tools import gpu_predictions
from versions import traces

# --- data


@pytest.mark.slow
def test_every_measurement_is_made() -> None:
    found = list(data.measurements(repeats=2))
    assert [m.kind.split()[0] for m in found] == ["ListOps", *["Pathfinder"] * 3, "BPE"]
    assert all(m.value is not None and m.value > 0 for m in found)


# --- generate: states against caches


def test_states_are_measured_and_shown(monkeypatch, tmp_path):
    monkeypatch.setattr(generate, "SIZES", generate.SMALL)
    target = tmp_path / "generate.json"
    words = ["--lengths", "16,64", "--tokens", "0", "--repeats", "2", "--threads", "1", "--json", str(target)]
    assert main(["bench", "generate", *words, "--batches", "", "--contexts", ""]) == 0
    found = read_results(target)
    assert [(m.kind, m.length) for m in found.measurements] == [
        ("step", 16),
        ("state", 16),
        ("step", 64),
        ("state", 64),
        ("slowest token", None),
    ]
    short, longer = found.find(kind="state")
    assert longer.baseline_megabytes > 3.9 * short.baseline_megabytes and longer.megabytes == short.megabytes
    assert [row[0] for row in tables(found)[0].rows] == ["16", "64"]


@traces
def test_tokens_are_measured_against_one_reading_of_the_weights(monkeypatch, tmp_path):
    monkeypatch.setattr(generate, "WIDTH", 24)
    monkeypatch.setattr(generate, "HEADS", 2)
    target = tmp_path / "generate.json"
    words = ["--lengths", "", "--tokens", "0", "--repeats", "2", "--threads", "1", "--json", str(target)]
    words += ["--batches", "1,2", "--contexts", "16,64", "--layers", "1"]
    assert main(["bench", "generate", *words]) == 0
    found = read_results(target)
    rows = found.find(kind="token")
    assert [(m.attention, m.variant, m.batch) for m in rows] == [
        ("cosformer", "eager", 1),
        ("cosformer", "eager", 2),
        ("cosformer", "compiled", 1),
        (generate.SOFTMAX, "eager", 1),
        (generate.SOFTMAX, "eager", 2),
        (generate.MAMBA, "eager", 1),
        (generate.MAMBA, "eager", 2),
    ]
    assert all(m.value > 0 and m.milliseconds > 0 and m.baseline_milliseconds > 0 for m in rows)
    (context,) = found.find(kind="token after a context")
    assert context.length == 64 and context.baseline == "after 16"
    table = tables(found)[0]
    assert [row[:3] for row in table.rows][:2] == [["cosformer", "eager", "1"], ["cosformer", "eager", "2"]]
    assert table.rows[0][4] == f"{1e3 / rows[0].milliseconds:,.0f}"


def test_bytes_of_a_token_leave_out_tables_that_are_only_looked_up():
    def sizes(**fields):
        made = language_model("cosformer", 128, width=16, layers=1, heads=2, vocab_size=100, **fields)
        return sum(x.nbytes for x in made.parameters()) - weight_bytes(made)

    assert sizes(position_embedding_type="sinusoidal") == 0  # the table of tokens is the output's, too
    assert sizes(position_embedding_type="learned") == 4 * 128 * 16
    assert sizes(position_embedding_type="sinusoidal", tie_word_embeddings=False) == 4 * 100 * 16


def test_a_token_is_timed_against_the_model_it_was_made_of(tmp_path, capsys):
    from transformers import GPT2Config, GPT2LMHeadModel

    GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=256)).save_pretrained(tmp_path / "stock")
    language_model("cosformer", 128, width=16, layers=2, heads=2).save_pretrained(tmp_path / "ours")
    target, places = tmp_path / "decode.json", ["--source", str(tmp_path / "stock"), "--models", str(tmp_path / "ours")]
    words = ["bench", "decode", *places, "--lengths", "16,64", "--repeats", "2", "--threads", "1"]
    assert main([*words, "--json", str(target)]) == 0
    found = read_results(target)
    generated = [m.attention for m in found.find(kind="token")]
    assert generated == ["stock", "ours"]
    assert [(m.kind, m.attention, m.baseline) for m in found.measurements[4:]] == [
        (kind, "ours", "stock") for _ in range(2) for kind in ("step", "state")
    ]
    short, longer = found.find(kind="state")
    assert longer.baseline_megabytes == 4 * short.baseline_megabytes and longer.megabytes == short.megabytes
    tokens, table = tables(found)
    assert [row[0] for row in tokens.rows] == generated
    assert [row[:2] for row in table.rows] == [["16", "ours"], ["64", "ours"]]
    assert table.rows[1][-1] == f"{longer.baseline_megabytes / longer.megabytes:.2f}"
    assert main([*words, "--models", f"{tmp_path / 'ours'},{tmp_path / 'stock'}"]) == 2
    assert "same name: stock, ours, stock" in capsys.readouterr().err
    assert main([*words, "--compiled", "theirs"]) == 2
    assert "--compiled theirs: no such model here; known: stock, ours" in capsys.readouterr().err


def test_step_loop_carries_one_size():
    found = generate.loop(40)
    assert found["first_bytes"] == found["last_bytes"] > 0
    assert found["warm"] == 20


@pytest.mark.slow
def test_step_loop_to_100_000_tokens():
    growth, state = generate.long_run(100_000, threads=1)
    assert state.value == 1
    assert growth.unit == "MB" and growth.value < 20


# --- attention on a GPU, as far as a CPU goes, and the predictions beside it


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setattr(gpu, "HEADS", 1)
    monkeypatch.setattr(gpu, "CHANNELS", (64,))
    monkeypatch.setattr(gpu, "DTYPES", (torch.float32,))
    monkeypatch.setattr(gpu, "LIMIT", 64)
    monkeypatch.setattr(gpu, "COPY", 4096)


def test_it_measures_what_it_says(tiny):
    found = list(gpu.measurements(lengths=(64, 300), device="cpu", repeats=3))
    kinds = {m.kind for m in found}
    assert kinds == {"matrix product", "copy", "forward", "training", "rate", "faster from"}
    against = [m for m in found if m.baseline == "sdpa" and m.kind != "faster from"]
    assert {(m.kind, m.mode, m.length) for m in against} == {
        (kind, mode, n) for kind in ("forward", "training") for mode in gpu.MODES for n in (64, 300)
    }
    assert all(m.value and m.milliseconds and m.baseline_milliseconds for m in against)


def test_what_does_not_fit_is_a_note(tiny, monkeypatch):
    def full(*arguments, **options):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(attention.F, "scaled_dot_product_attention", full)
    found = list(gpu.measurements(lengths=(64,), device="cpu", repeats=2))
    assert {m.note for m in found if m.baseline == "sdpa" and m.kind == "forward"} == {"out of memory"}


def test_a_device_that_is_not_there_is_named(capsys):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert main(["bench", "attention", "--device", "cuda"]) == 2
    assert "device 'cuda' cannot be used here" in capsys.readouterr().err


def test_predictions_grow_as_they_must():
    one, two = gpu.work(4096, 64), gpu.work(8192, 64)
    assert two.operations == 2 * one.operations and two.bytes == 2 * one.bytes
    a100 = gpu_predictions.GPUS["A100"]
    n = gpu_predictions.crossover(a100, 64)
    assert gpu_predictions.seconds(a100, n, 64) < gpu_predictions.softmax_seconds(a100, n, 64)
    assert gpu_predictions.seconds(a100, n - 64, 64) >= gpu_predictions.softmax_seconds(a100, n - 64, 64)
    rows = 5 * sum(len(each.softmax) for each in gpu_predictions.GPUS.values())
    assert gpu_predictions.predictions().count("\n| ") == 1 + rows


# --- native: a figure is what the times make it

NATIVE = pytest.mark.skipif(not kernels.available(), reason=kernels.describe())


@NATIVE
def test_every_shape_and_mode_is_measured(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(native, "SHAPE_LENGTH", 100)
    monkeypatch.setattr(attention, "MATMUL", 64)
    monkeypatch.setattr(measure, "SAMPLE_SECONDS", 1e-4)
    file = tmp_path / "native.json"
    words = ["native", "--lengths", "130,160", "--threads", "1", "--repeats", "3"]
    assert project_main([*words, "--json", str(file)]) == 0
    found = read_results(file)
    assert all(m.value is not None and m.value > 0 for m in found.measurements)
    limits = {(m.kind, m.mode, m.length, m.variant) for m in found.find(baseline="limit")}
    assert len(limits) == 2 * 2 * (2 + len(native.SHAPES))  # forward and backward in both modes
    assert len(found.find(dtype="bfloat16")) == 4 and len(found.find(kind="step")) == 1
    assert "kernels" in found.machine and found.command == f"python -m benchmarks {' '.join(words)}"
    assert "8 heads of 256 channels" in capsys.readouterr().out


@NATIVE
def test_figures_come_from_the_times(monkeypatch):
    times = {"limit": [2.0, 2.0, 2.0], "forward": [3.0, 3.0, 3.0], "backward": [8.0, 8.0, 8.0], "step": [2e-5] * 3}
    monkeypatch.setattr(native, "interleaved", lambda actions, **_: {name: times[name] for name in actions})
    # 8 H N D E = 2 * 1024^3 operations: as many as one matrix product
    assert [m.value for m in native.against_limit(native.PLAIN, "causal", 8192, 3)] == [1.5, 4.0]
    assert attention.share(8192, 1, 32, 128) == 1 / 8
    assert native.one_step(3).value == 20.0


def test_without_the_library_it_says_why(monkeypatch, capsys):
    monkeypatch.setattr(kernels, "available", lambda: False)
    monkeypatch.setattr(kernels, "describe", lambda: "no compiler")
    assert project_main(["native"]) != 0
    assert "no compiler" in capsys.readouterr().err


# --- peers: every pair runs, and the figure is the ratio of the two


@pytest.mark.parametrize("pair", peers.PAIRS, ids=lambda pair: " ".join(pair[:4]))
def test_every_pair_runs_and_gives_tensors_of_one_size(monkeypatch, pair):
    monkeypatch.setattr(peers, "LENGTH", 1024)
    try:
        ours, theirs = pair[-1]()
    except RuntimeError as error:
        pytest.skip(str(error))
    a, b = ours(), theirs()
    b = b[0] if isinstance(b, tuple) else b
    assert a.numel() == b.numel() == 1024 * peers.WIDTH and a.isfinite().all()


def test_the_figure_is_the_ratio_of_the_times_and_what_is_missing_is_not_run(monkeypatch, tmp_path, capsys):
    def missing():
        raise MissingExtra("peers", "no such package")

    pair = (lambda: time.sleep(0.03), lambda: time.sleep(0.06))
    monkeypatch.setattr(
        peers, "PAIRS", [("x", "causal", "package", "", lambda: pair), ("y", "causal", "other", "", missing)]
    )
    file = tmp_path / "peers.json"
    assert project_main(["peers", "--repeats", "3", "--json", str(file)]) == 0
    first, second = read_results(file).measurements
    assert 0.3 < first.value < 0.8 and first.low <= first.value <= first.high and first.baseline == "package"
    assert second.value is None and second.note.startswith("not run")
    assert "not run" in capsys.readouterr().out


@pytest.mark.parametrize("pair", [p for p in peers.PAIRS if p[2] == "pytorch-fast-transformers" and p[1] == "causal"])
def test_causal_products_agree(pair):
    """The same numerators; ours divides by the row sums on top."""
    try:
        ours, theirs = pair[-1]()
    except RuntimeError as error:
        pytest.skip(str(error))
    a, b = ours().double(), theirs().double()
    # a row of ours is the package's row over one number
    divisor = (b * b).sum(-1, keepdim=True) / (a * b).sum(-1, keepdim=True)
    assert (a * divisor - b).abs().max() < 1e-4 * b.abs().max()


# --- long: a step in windows, and up to which length each form is measured


def test_every_form_is_measured_up_to_its_length(monkeypatch) -> None:
    calls = []

    def fake(function: str, threads: int, **options: object) -> tuple[list[float], int]:
        calls.append((options["attention"], options["mode"], options["n"]))
        return [0.5] * int(str(options["repeats"])), 3_000_000

    monkeypatch.setattr(long, "in_fresh_process", fake)
    found = list(long.measurements(lengths=(100, 400), whole_up_to=100, softmax_up_to=50, repeats=2))
    assert calls == [
        ("cosformer", "windows", 100),
        ("cosformer", "two processes", 100),
        ("cosformer", "whole", 100),
        ("cosformer", "windows", 400),
    ]
    speed, memory = found[:2]
    assert (speed.value, speed.unit, memory.value, memory.unit) == (200, "tokens a second", 3, "MB")
    assert {m.note for m in found if m.value is None} == {f"left out above {n} tokens" for n in (50, 100, 200)}
    assert {m.kind for m in long.measurements(lengths=(100,), memory_only=True)} == {"memory"}


def test_a_step_in_windows_is_measured() -> None:
    # in a fresh process, as the benchmark does: here the step may fit into memory that other tests gave back
    options = {"attention": "cosformer", "mode": "windows", "n": 600, "window": 200, "repeats": 1}
    (seconds,), peak = measure.in_fresh_process("cosformer.bench.long:step", 1, **options)
    assert seconds > 0 and peak > 0


@pytest.mark.slow
def test_windows_bound_the_memory_of_a_million_tokens() -> None:
    """From 64K to 1M a step may grow by what it must keep: ids, shifted ids, and the states of windows."""
    short, million = 65_536, 1_048_576
    peaks = {}
    for n in (short, million):
        options = {"attention": "cosformer", "mode": "windows", "n": n, "window": 16_384, "repeats": 0}
        _, peaks[n] = measure.in_fresh_process("cosformer.bench.long:step", 1, **options)
    head = long.WIDTH // long.HEADS
    states = long.LAYERS * long.HEADS * 2 * head * (head + 1) * 4 * (million - short) // 16_384
    ids = 8 * (million - short)
    assert peaks[million] < 16e9
    assert (
        peaks[million] - peaks[short] < 4 * ids + states + 64e6
    )  # ids, targets, what counts them; the allocator's slack


# --- reading: a long text in pieces


def small_model(max_len):
    return language_model(
        "cosformer", max_len, width=16, layers=2, heads=2, position_embedding_type="sinusoidal"
    ).eval()


def test_the_state_stays_and_keys_and_values_would_grow(monkeypatch):
    monkeypatch.setattr(reading, "PIECE", 16)
    longer = reading.lengthened(small_model(32), 200)
    assert longer.config.max_position_embeddings == 200
    seen = []
    longer.model.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    ids = torch.randint(0, 256, (200,))
    first, second = reading.read(longer, ids, (40, 200))
    assert torch.equal(torch.cat(seen, 1)[0], ids) and max(piece.shape[1] for piece in seen) == 16
    assert first.state == second.state > 0
    # two layers of two heads of eight channels, keys and values, four bytes each
    assert (first.key_value, second.key_value) == (40 * 2 * 2 * 2 * 8 * 4, 200 * 2 * 2 * 2 * 8 * 4)


def test_the_weights_are_the_same_and_within_their_length_so_is_the_answer_to_the_same_max_len():
    short = small_model(32)
    same = reading.lengthened(short, 32)
    ids = torch.randint(0, 256, (1, 20))
    assert torch.equal(short(ids).logits, same(ids).logits)
