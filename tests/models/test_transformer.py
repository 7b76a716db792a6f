"""The transformer under every attention: masks, positions, states, saving."""

import inspect

import pytest
import torch
from transformers import AutoConfig, AutoModel

import cosformer.hf  # noqa: F401
from cosformer.attention import ATTENTIONS, attention_class
from cosformer.models.embeddings import positions_from_mask, sinusoids
from cosformer.models.state_cache import StateCache
from cosformer.models.transformer import CosformerModel
from versions import traces

TRAITS = {name: attention_class(name).traits for name in ATTENTIONS}
EVERY = [(name, False) for name in ATTENTIONS if TRAITS[name].bidirectional]
EVERY += [(name, True) for name in ATTENTIONS if TRAITS[name].causal]
SEEDED = [name for name in ATTENTIONS if "seed" in inspect.signature(attention_class(name)).parameters]
STREAMING = [name for name in ATTENTIONS if TRAITS[name].streaming]


@pytest.mark.parametrize(("name", "causal"), EVERY)
def test_shapes_on_the_meta_device(name, causal, config, ids):
    settings = config(attention=name, is_decoder=causal)
    with torch.device("meta"):
        model = CosformerModel(settings)
    model.train()
    out = model(ids(2, 12).to("meta"), attention_mask=torch.ones(2, 12, dtype=torch.long, device="meta"))[0]
    out.sum().backward()
    assert out.is_meta and out.shape == (2, 12, settings.hidden_size)
    assert all(x.grad is None or x.grad.is_meta for x in model.parameters())


@pytest.mark.parametrize(("name", "causal"), EVERY)
def test_save_and_load_give_the_same_bits(name, causal, config, ids, tmp_path):
    model = CosformerModel(config(attention=name, is_decoder=causal)).eval()
    model.save_pretrained(tmp_path)
    again = AutoModel.from_pretrained(tmp_path)
    assert not again.training
    assert torch.equal(again(ids(2, 12))[0], model(ids(2, 12))[0])
    assert {p.name for p in tmp_path.iterdir()} >= {"config.json", "model.safetensors", "README.md"}
    assert f"`{name}`" in (tmp_path / "README.md").read_text()


@pytest.mark.parametrize("name", STREAMING)
def test_pieces_equal_the_whole(name, config, ids, relative):
    model = CosformerModel(config(attention=name, is_decoder=True)).eval().double()
    x = ids(2, 24)
    mask = torch.ones_like(x)
    mask[0, :5] = 0
    whole = model(x, attention_mask=mask, use_cache=False)[0]
    cache, at, pieces = StateCache(2), 0, []
    for n in (7, 1, 1, 4, 10, 1):
        out = model(x[:, at : at + n], attention_mask=mask[:, : at + n], past_key_values=cache)
        assert out.past_key_values is cache
        pieces.append(out[0])
        at += n
    assert relative(torch.cat(pieces, 1)[1], whole[1]) < 1e-10
    assert relative(torch.cat(pieces, 1)[0, 5:], whole[0, 5:]) < 1e-10
    assert cache.get_seq_length() == 24


@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "none"])
@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("causal", [False, True])
def test_padding_on_either_side_changes_nothing(positions, norm, causal, config, ids, relative):
    model = CosformerModel(config(position_embedding_type=positions, norm=norm, is_decoder=causal)).eval()
    x, pad = ids(1, 9), torch.zeros(1, 4, dtype=torch.long)
    alone = model(x)[0]
    left = torch.tensor([[0] * 4 + [1] * 9])
    assert relative(model(torch.cat((pad, x), 1), attention_mask=left)[0][:, 4:], alone) < 1e-5
    right = model(torch.cat((x, pad), 1), attention_mask=left.flip(1))[0]
    assert relative(right[:, :9], alone) < 1e-5


def test_every_option_of_the_config_changes_the_output(config, ids):
    x = ids(2, 12)
    changes = [
        {"norm": "post"}, {"final_norm": False}, {"embedding_norm": True}, {"scale_embedding": True},
        {"hidden_act": "relu"}, {"position_embedding_type": "sinusoidal"}, {"position_embedding_type": "none"},
        {"is_decoder": True},
        {"attention": "softmax"}, {"attention": ["softmax", "cosformer"]}, {"layer_norm_eps": 0.1},
        {"attention_bias": False},
        {"attention": "local", "attention_options": {"window": 2}}, {"head_dim": 4}, {"type_vocab_size": 2},
        {"embedding_range": 1.0}, {"initializer": "xavier"}, {"max_position_embeddings": 32}, {"position_offset": 1},
        {"adaptive_cutoffs": [10, 30]},
    ]  # fmt: skip

    def output(**values):
        torch.manual_seed(0)
        model = CosformerModel(config(**values)).eval()
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                torch.nn.init.normal_(parameter)
        return model(x)[0]

    seen = [output()]
    for change in changes:
        out = output(**change)
        assert all(not torch.allclose(out, before, atol=1e-4) for before in seen), change
        seen.append(out)
    dropped = CosformerModel(config(hidden_dropout_prob=0.5)).train()
    assert not torch.equal(dropped(x)[0], dropped(x)[0])
    dropped = CosformerModel(config(hidden_dropout_prob=0.0, activation_dropout=0.5)).train()
    assert not torch.equal(dropped(x)[0], dropped(x)[0])


def test_hybrid_has_the_attention_of_each_layer(config, ids, relative):
    options = [{}, {"window": 3}]
    model = CosformerModel(config(attention=["cosformer", "local"], attention_options=options, is_decoder=True)).eval()
    assert [type(layer.attention.attention).__name__ for layer in model.layers] == ["Cosformer", "Local"]
    assert model.layers[1].attention.attention.window == 3
    cache = StateCache(2)
    pieces = [model(piece, past_key_values=cache)[0] for piece in ids(1, 12).split(5, dim=1)]
    assert relative(torch.cat(pieces, 1), model(ids(1, 12))[0]) < 1e-5


def test_cls_vector_comes_first_and_is_never_masked(config, ids, relative):
    model = CosformerModel(config(cls_token=True)).eval()
    torch.nn.init.normal_(model.embeddings.cls)
    x = ids(1, 6)
    assert model(x)[0].shape == (1, 7, 32)
    mask = torch.tensor([[1] * 6 + [0] * 3])
    padded = model(torch.cat((x, ids(1, 3)), 1), attention_mask=mask)[0]
    assert relative(padded[:, :7], model(x)[0]) < 1e-5
    # a masked first token, as a black pixel, must not hide the vector from the others
    holes = torch.tensor([[0, 1, 1, 1, 1, 1]])
    before = model(x, attention_mask=holes)[0]
    torch.nn.init.normal_(model.embeddings.cls)
    assert relative(model(x, attention_mask=holes)[0][:, 2:], before[:, 2:]) > 1e-3


def test_absolute_positions_are_places_whatever_is_masked(config, ids, relative):
    x, mask = ids(1, 6), torch.tensor([[1, 0, 1, 1, 0, 1]])
    places = torch.arange(6).unsqueeze(0)
    absolute = CosformerModel(config(absolute_positions=True)).eval()
    assert relative(absolute(x, attention_mask=mask)[0], absolute(x, attention_mask=mask, position_ids=places)[0]) == 0
    counted = CosformerModel(config()).eval()
    assert relative(counted(x, attention_mask=mask)[0], counted(x, attention_mask=mask, position_ids=places)[0]) > 1e-3


def test_gradient_checkpointing_gives_the_same_gradients(config, ids):
    x = ids(2, 10)

    def gradients(checkpointing: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = CosformerModel(config(hidden_dropout_prob=0.0, is_decoder=True)).train()
        if checkpointing:
            model.gradient_checkpointing_enable()
            runs = []
            model.layers[0].feed_forward.register_forward_pre_hook(lambda *_: runs.append(1))
        model(x)[0].square().sum().backward()
        if checkpointing:
            assert len(runs) == 2  # once more in the backward pass
        return [p.grad for p in model.parameters()]

    for a, b in zip(gradients(False), gradients(True), strict=True):
        torch.testing.assert_close(a, b)


def test_hidden_states_and_tuples(config, ids):
    model = CosformerModel(config()).eval()
    out = model(ids(1, 5), output_hidden_states=True)
    assert len(out.hidden_states) == 3
    assert torch.equal(out.hidden_states[-1], out.last_hidden_state)
    assert isinstance(model(ids(1, 5), return_dict=False), tuple)
    with pytest.raises(ValueError, match="no attention matrix"):
        model(ids(1, 5), output_attentions=True)


@traces
@pytest.mark.slow
def test_compiled_model_equals_eager(config, ids, relative):
    model = CosformerModel(config(is_decoder=True, hidden_dropout_prob=0.0)).train()
    x = ids(2, 16)
    expected = model(x)[0]
    weights = torch.randn_like(expected)
    (expected * weights).sum().backward()
    gradient = model.layers[0].attention.query.weight.grad.clone()
    model.zero_grad()
    out = torch.compile(model)(x)[0]
    assert relative(out, expected) < 1e-5
    (out * weights).sum().backward()
    assert relative(model.layers[0].attention.query.weight.grad, gradient) < 1e-4


def test_bad_calls(config, ids):
    model = CosformerModel(config(is_decoder=True)).eval()
    with pytest.raises(ValueError, match=r"65 tokens exceeds max_len=64"):
        model(ids(1, 65))
    cache = StateCache(2)
    model(ids(1, 60), past_key_values=cache)
    with pytest.raises(ValueError, match="66 tokens exceeds max_len=64"):
        model(ids(1, 6), past_key_values=cache)
    with pytest.raises(ValueError, match="attention_mask has shape"):
        model(ids(1, 6), attention_mask=torch.ones(1, 5))
    with pytest.raises(ValueError, match="either input_ids or inputs_embeds"):
        model()
    with pytest.raises(ValueError, match="StateCache"):
        model(ids(1, 3), past_key_values={})
    with pytest.raises(ValueError, match="token_type_ids"):
        model(ids(1, 3), token_type_ids=torch.ones(1, 3, dtype=torch.long))
    with pytest.raises(ValueError, match="carries no"):
        CosformerModel(config())(ids(1, 3), use_cache=True)
    with pytest.raises(ValueError, match="has no causal form"):
        CosformerModel(config(attention="linformer", is_decoder=True))


def test_checkpoint_of_another_attention_or_config_or_cut_off(config, ids, tmp_path):
    CosformerModel(config(attention="softmax")).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"attention='softmax'.*'cosformer'"):
        CosformerModel.from_pretrained(tmp_path, config=config(attention="cosformer"))
    with pytest.raises(ValueError, match="attention='softmax'"):
        AutoModel.from_pretrained(tmp_path, attention="cosformer")
    with pytest.raises(RuntimeError, match=r"size mismatch|mismatched"):
        CosformerModel.from_pretrained(tmp_path, config=config(attention="softmax", vocab_size=51))
    with pytest.raises(ValueError, match=r"embeddings\.types\.weight"):
        CosformerModel.from_pretrained(tmp_path, config=config(attention="softmax", type_vocab_size=2))
    with pytest.raises(ValueError, match=r"embeddings\.positions\.weight"):
        CosformerModel.from_pretrained(tmp_path, config=config(attention="softmax", position_embedding_type="none"))
    with pytest.raises(ValueError, match="attn_implementation='sdpa'"):
        CosformerModel.from_pretrained(tmp_path, attn_implementation="sdpa")
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    with pytest.raises(ValueError, match="damaged or cut off"):
        AutoModel.from_pretrained(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(OSError, match="JSON"):
        AutoModel.from_pretrained(tmp_path)


def test_card_that_is_there_stays(config, tmp_path):
    (tmp_path / "README.md").write_text("mine")
    CosformerModel(config()).save_pretrained(tmp_path)
    assert (tmp_path / "README.md").read_text() == "mine"


def test_positions_count_unmasked_tokens():
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 0]])
    assert positions_from_mask(mask, 0, 5, mask.device).tolist() == [[0, 0, 0, 1, 2], [0, 1, 2, 3, 3]]
    assert positions_from_mask(mask, 3, 2, mask.device).tolist() == [[1, 2], [3, 3]]
    assert positions_from_mask(None, 3, 2, mask.device).tolist() == [[3, 4]]


def test_sinusoids_interleave_sine_and_cosine():
    table = sinusoids(torch.arange(5), 7, torch.float64)
    assert table.shape == (5, 7)
    for k in range(7):
        angle = torch.arange(5).double() / 10_000 ** ((k - k % 2) / 7)
        torch.testing.assert_close(table[:, k], angle.cos() if k % 2 else angle.sin())


def test_auto_config_round_trip(config, tmp_path):
    made = config(
        attention=["softmax", "local"],
        attention_options=[{}, {"window": 4}],
        adaptive_cutoffs=[10],
        rotary={"rope_type": "default", "rope_theta": 5e5},
        qk_norm=True,
    )
    made.save_pretrained(tmp_path)
    again = AutoConfig.from_pretrained(tmp_path)
    assert again.to_dict() | {"_name_or_path": ""} == made.to_dict()
    assert again.max_len == again.max_position_embeddings == 64


def seeded(config, name: str, **changes: object) -> CosformerModel:
    """Two layers for 130 tokens, more than one bucket; two-sided if the attention has such a form."""
    causal = name.startswith("rfa_gate")
    return CosformerModel(config(attention=name, is_decoder=causal, max_position_embeddings=130, **changes)).eval()


def drawn(model: CosformerModel) -> list[list[torch.Tensor]]:
    """The buffers of each layer's attention, counters apart."""
    return [[b.float() for b in layer.attention.buffers() if b.numel() > 1] for layer in model.layers]  # pyright: ignore


def equal(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("name", SEEDED)
def test_layers_draw_random_features_apart_and_again_the_same(name, config, ids, tmp_path):
    assert {"performer", "rfa_gaussian", "rfa_gate_arccos", "reformer", "bigbird", "spe"} <= set(SEEDED)
    model = seeded(config, name)
    first, second = drawn(model)
    assert first and not equal(first, second)
    torch.manual_seed(99)  # the features do not come from torch's own generator
    assert all(equal(a, b) for a, b in zip(drawn(model), drawn(seeded(config, name)), strict=True))
    model.save_pretrained(tmp_path)
    again = CosformerModel.from_pretrained(tmp_path)
    assert all(equal(a, b) for a, b in zip(drawn(model), drawn(again), strict=True))
    assert torch.equal(again(ids(2, 12))[0], model(ids(2, 12))[0])
    assert model.config.attention_options is None, "what the user did not give is not written down"


@pytest.mark.parametrize("name", ["performer", "reformer"])
def test_a_seed_that_is_given_is_taken(name, config):
    first, second = drawn(seeded(config, name, attention_options={"seed": 5}))
    assert first and equal(first, second)
    single = seeded(config, name, attention_options=[{"seed": 7}, {"seed": 5}])
    assert equal(drawn(single)[1], first) and not equal(drawn(single)[0], first)
