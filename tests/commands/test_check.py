"""`cosformer check`: it finds every form exact, and says so when one is not."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch

from cosformer import cli, processor
from cosformer.bench import exactness
from cosformer.commands import check
from cosformer.ops.backends import BACKENDS, available_backends
from cosformer.ops.dispatch import choose
from cosformer.ops.native.library import INSTRUCTION_SET, find


@pytest.fixture
def measured(monkeypatch) -> Callable[[exactness.Finding], None]:
    """Plays the measurements: an exact form and the one given. Torch's bfloat16 products are not tried either."""

    def play(finding: exactness.Finding) -> None:
        exact = exactness.Finding("causal", "plain", "float64", 1e-16, 2e-16, 1e-12)
        monkeypatch.setattr(exactness, "measure", lambda device: iter([exact, finding]))

    monkeypatch.setattr(processor, "probe", lambda setting: True)  # tests/test_processor.py does
    return play


def test_every_form_is_exact(capsys) -> None:
    assert cli.main(["check", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["passed"] is True
    assert report["versions"]["torch"] == torch.__version__
    assert report["processor"]["bfloat16"]["works"] == (processor.find_setting() == "")
    assert set(report["backends"]) == set(BACKENDS)
    measured = {(f["backend"], f["dtype"]) for f in report["exactness"]}
    for dtype in (torch.float64, torch.float32):
        for backend in (*available_backends(dtype), "step"):
            assert (backend, str(dtype).removeprefix("torch.")) in measured
    forms = " ".join(f["form"] for f in report["exactness"])
    words = ("causal", "non-causal", "padded", "packed", "grouped", "in pieces", "token by token", "cross", "far keys")
    assert all(word in forms for word in words)


def test_the_text_names_everything(measured, capsys, monkeypatch) -> None:
    measured(exactness.Finding("causal", "plain", "float32", 1e-7, 2e-7, 1e-5))
    # one extra is missing, whatever this environment has
    monkeypatch.setattr(check, "_missing", lambda wanted, extra: ["nowhere"] if extra == "peers" else [])
    assert cli.main(["check"]) == 0
    out = capsys.readouterr().out
    for word in ("python", "torch", "numpy", "Extras", "pip install 'cosformer[", "auto", *BACKENDS):
        assert word in out
    assert processor.name() in out and "torch's bfloat16 products work" in out
    library = find()[0]
    if library is not None:
        for word in (*library.instruction_sets, library.compiler, library.pool, INSTRUCTION_SET):
            assert word in out
    assert "All 2 measurements" in out and "\x1b" not in out


@pytest.mark.parametrize(
    ("cure", "advice"), [("AVX512_CORE_FP16", "set ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16"), (None, "use float32")]
)
def test_products_that_fail_are_named_with_the_way_out(cure: str | None, advice: str, monkeypatch) -> None:
    monkeypatch.setattr(processor, "probe", lambda setting: setting is not None and setting == cure)
    found = check.about_processor()
    assert not found["bfloat16"]["works"] and advice in found["bfloat16"]["advice"]
    assert any("DO NOT WORK" in line and advice in line for line in check._processor_lines(found))


def test_an_instruction_set_that_does_not_run_here_is_a_usage_error(capsys, monkeypatch) -> None:
    monkeypatch.setenv(INSTRUCTION_SET, "sse9")
    find.cache_clear()
    try:
        assert cli.main(["check"]) == cli.EXIT_USAGE
    finally:
        find.cache_clear()
    assert "COSFORMER_INSTRUCTION_SET=sse9" in capsys.readouterr().err


def test_a_form_that_is_not_exact_fails(measured, capsys) -> None:
    measured(exactness.Finding("packed", "plain", "float64", 1e-16, 2e-12, 1e-12))
    assert cli.main(["check"]) == cli.EXIT_FAILED
    out = capsys.readouterr().out
    assert "1 of 2" in out and "packed (plain, float64)" in out


def spoiled(spoil: Callable[..., dict[str, Any]]) -> Callable[..., Any]:
    """The operator with its arguments changed by ``spoil``."""
    from cosformer.ops.operator import cosformer_attention

    return lambda q, k, v, **options: cosformer_attention(q, k, v, **spoil(options))


@pytest.mark.parametrize(
    ("form", "spoil"),
    [
        ("causal", lambda o: o | {"max_len": o["max_len"] + 1} if o.get("max_len") else o),
        ("padded", lambda o: o | {"key_mask": None}),
        ("packed", lambda o: o | {"cu_seqlens": None}),
        ("cross, absolute", lambda o: o | {"q_offset": 0} if not o.get("causal") else o),
        ("cross, proportional", lambda o: {key: value for key, value in o.items() if key != "align"}),
    ],
    ids=["angle", "mask", "packing", "offset", "alignment"],
)
def test_a_wrong_operator_is_noticed(form: str, spoil: Callable[..., dict[str, Any]], monkeypatch) -> None:
    monkeypatch.setattr(exactness, "cosformer_attention", spoiled(spoil))
    monkeypatch.setattr(exactness, "available_backends", lambda dtype, device: ["plain"])
    found = [f for f in exactness.measure(length=40) if form in f.form]
    assert found and not any(f.passed for f in found if "far keys" not in f.form)


def test_nan_does_not_pass() -> None:
    nan = float("nan")
    assert not exactness.Finding("causal", "dense", "float32", nan, 0.0, 1e-5).passed
    assert not exactness.Finding("causal", "dense", "float32", 0.0, nan, 1e-5).passed
    assert exactness._error(torch.tensor([nan]), torch.tensor([1.0])) == float("inf")


def test_auto_choices_are_those_of_the_operator() -> None:
    for dtype, spans in check.auto_choices("cpu", longest=600).items():
        covered = [n for span in spans for n in range(span["from"], (span["to"] or 600) + 1)]
        assert covered == list(range(1, 601))
        for span in spans:
            for n in (span["from"], span["to"] or 600):
                x = torch.empty(1, 1, n, 4, dtype=getattr(torch, dtype))
                assert choose(x, x, x, None) == span["backend"]


def test_extras_say_what_is_missing(monkeypatch) -> None:
    from importlib import metadata

    real = metadata.version

    def version(name: str) -> str:
        if name == "tensorboard":
            raise metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(metadata, "version", version)
    found = check.extras()
    assert "tensorboard" in found["train"]["missing"]
    assert "tensorboard" in found["all"]["missing"], "extras inside an extra count"
    assert "tensorboard" not in found["hf"]["missing"]
    assert found["train"]["install"] == "pip install 'cosformer[train]'"


def test_a_device_that_is_not_there_is_a_usage_error(capsys) -> None:
    assert cli.main(["check", "--device", "no-such-device"]) == cli.EXIT_USAGE
    error = capsys.readouterr().err
    assert "no-such-device" in error and "--device cpu" in error


@pytest.mark.gpu
def test_every_form_is_exact_on_the_gpu(capsys) -> None:
    assert cli.main(["check", "--device", "cuda", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["passed"] is True
