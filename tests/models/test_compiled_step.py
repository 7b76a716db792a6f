"""Decoding with torch.compile: graphs are counted, and tokens are those of the eager model."""

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.testing import CompileCounterWithBackend

from cosformer.models import compiled_step
from cosformer.models.causal_lm import CosformerForCausalLM
from cosformer.models.compiled_step import compile_step, one_row_backend
from versions import traces

pytestmark = traces
OPTIONS = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0}


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def counter(monkeypatch):
    made = CompileCounterWithBackend("eager")
    monkeypatch.setattr(compiled_step, "one_row_backend", made)
    return made


@pytest.fixture
def model(config):
    def make(attention, **more) -> CosformerForCausalLM:
        return CosformerForCausalLM(config(attention=attention, is_decoder=True, **more)).eval()

    return make


LOCAL = {"attention": ["local", "cosformer"], "attention_options": [{"window": 8}, {}]}
CASES = [
    {"attention": "cosformer"},
    {"attention": "relu", "position_embedding_type": "learned"},
    {"attention": "multiscale", "rotary": {"rope_type": "default", "rope_theta": 10_000.0}},
    {"attention": "cosformer", "short_convolution": 3, "output_gate": True},
    {"attention": "rotary_linear"},
    LOCAL,
]


# not padded: a window that drops its last masked key changes its state's form once, and compiles again
PADDED = [(case, 3) for case in CASES if case is not LOCAL]


@pytest.mark.parametrize(("case", "padding"), [*((case, 0) for case in CASES), *PADDED])
def test_one_graph_for_all_tokens(case, padding, model, ids, counter):
    made, x = model(**case), ids(2, 12)
    mask = torch.ones_like(x)
    mask[1, :padding] = 0
    expected = made.generate(x, attention_mask=mask, max_new_tokens=30, **OPTIONS)
    compile_step(made)
    with torch._dynamo.config.patch(error_on_recompile=True):
        found = made.generate(x, attention_mask=mask, max_new_tokens=30, **OPTIONS)
    assert torch.equal(found, expected)
    assert counter.frame_count == len(counter.graphs) == 1


def test_the_forward_that_transformers_documents(model, ids):
    """``model.forward = torch.compile(model.forward)``: one graph for the prompt, one for every token after it."""
    made, x, counter = model("cosformer"), ids(1, 12), CompileCounterWithBackend("eager")
    expected = made.generate(x, max_new_tokens=30, **OPTIONS)
    made.forward = torch.compile(made.forward, backend=counter, fullgraph=True)
    assert torch.equal(made.generate(x, max_new_tokens=30, **OPTIONS), expected)
    assert counter.frame_count == 2


def test_inductor_writes_the_same_text(model, ids):
    made, x = model("cosformer", num_hidden_layers=1), ids(1, 12)
    eager = made.generate(x, max_new_tokens=50, return_dict_in_generate=True, output_logits=True, **OPTIONS)
    compile_step(made)
    compiled = made.generate(x, max_new_tokens=50, return_dict_in_generate=True, output_logits=True, **OPTIONS)
    assert torch.equal(eager.sequences, compiled.sequences)
    for a, b in zip(eager.logits, compiled.logits, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


def test_prompts_and_calls_without_a_cache_stay_eager(model, ids, counter):
    made, x = model("cosformer"), ids(1, 12)
    compile_step(made)
    made(x)
    made(input_ids=x[:, :1])
    made.generate(x, max_new_tokens=1, **OPTIONS)
    assert counter.frame_count == 0


def test_beams_and_rewinding_stay_right(model, ids, counter):
    made, x = model("cosformer"), ids(1, 12)
    expected = made.generate(x, max_new_tokens=20, num_beams=3, **OPTIONS)
    compile_step(made)
    assert torch.equal(made.generate(x, max_new_tokens=20, num_beams=3, **OPTIONS), expected)


@pytest.mark.parametrize("attention", ["cosformer", "relu"])
def test_past_the_longest_sequence_is_refused(attention, model, ids, counter):
    made = model(attention)
    compile_step(made)
    with pytest.raises(ValueError, match="sequence of 65 tokens exceeds max_len=64"):
        made.generate(ids(1, 60), max_new_tokens=8, **OPTIONS)


def test_products_of_one_row_are_written_as_sums():
    """One row becomes multiply and sum; several rows, and shapes that may change, stay the library's product."""
    weight, bias = torch.randn(6, 4), torch.randn(6)
    seen = []

    def call(x, y):
        return F.linear(x, weight, bias), F.linear(x, weight), y @ y.mT

    def backend(graph, inputs):
        made = one_row_backend(graph, inputs)
        seen.append([node.target for node in graph.graph.nodes if node.op == "call_function"])
        return made

    compiled = torch.compile(call, backend=backend, fullgraph=True, dynamic=False)
    with torch.no_grad():
        for rows in (1, 2):
            x, y = torch.randn(rows, 1, 4), torch.randn(2, rows, 5)
            for a, b in zip(compiled(x, y), call(x, y), strict=True):
                assert a.shape == b.shape
                torch.testing.assert_close(a, b)
    assert F.linear not in seen[0] and seen[1].count(F.linear) == 2


def test_older_torch_is_refused(model, monkeypatch):
    monkeypatch.setattr(compiled_step, "traceable", False)
    with pytest.raises(RuntimeError, match=r"needs torch 2\.12"):
        compile_step(model("cosformer"))
