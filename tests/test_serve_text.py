"""The serving example streams what the model writes."""

import runpy
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from cosformer.shipped import STDLIB_MODEL

EXAMPLE = Path(__file__).parents[1] / "examples" / "serve_text.py"


def test_the_example_streams_text(monkeypatch):
    pytest.importorskip("fastapi")
    from starlette.testclient import TestClient

    folder = str(STDLIB_MODEL / "best")
    monkeypatch.setenv("MODEL", folder)
    client = TestClient(runpy.run_path(str(EXAMPLE))["app"])
    with client.stream("GET", "/generate", params={"prompt": "import os\n", "tokens": 20}) as answer:
        pieces = list(answer.iter_text())
    assert answer.status_code == 200 and len(pieces) > 1
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert 0 < len(tokenizer("".join(pieces))["input_ids"]) <= 20
    longest = AutoModelForCausalLM.from_pretrained(folder).config.max_position_embeddings
    refused = client.get("/generate", params={"prompt": "import os\n", "tokens": longest})
    assert refused.status_code == 422 and str(longest) in refused.json()["detail"]
