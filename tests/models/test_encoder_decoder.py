"""The encoder-decoder: cached cross-attention, generation, training."""

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, Seq2SeqTrainer, Seq2SeqTrainingArguments

import cosformer.hf  # noqa: F401
from cosformer.models.encoder_decoder import CosformerForConditionalGeneration
from cosformer.models.transformer import CosformerModel
from cosformer.nn.multihead import CrossAttention
from versions import rewinds

TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
STEPS = 500
GREEDY = {"do_sample": False, "max_new_tokens": 15, "eos_token_id": None}


@pytest.fixture
def model(config):
    def make(attention="cosformer", **more) -> CosformerForConditionalGeneration:
        values = {"is_encoder_decoder": True, "attention": attention, "num_decoder_layers": 3, **TOKENS, **more}
        return CosformerForConditionalGeneration(config(**values)).eval()

    return make


def source(ids) -> dict[str, torch.Tensor]:
    x = ids(2, 11)
    mask = torch.ones_like(x)
    mask[1, 7:] = 0
    return {"input_ids": x, "attention_mask": mask}


@torch.no_grad()
@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 1e-4), (torch.float64, 1e-10)])
@pytest.mark.parametrize("attention", ["cosformer", "softmax"])
def test_step_by_step_equals_the_whole(attention, dtype, limit, model, ids, relative):
    made, given, target = model(attention, initializer_range=0.5).to(dtype), source(ids), ids(2, 14)
    whole = made(**given, decoder_input_ids=target, use_cache=False).logits
    first = made(**given, decoder_input_ids=target[:, :3])
    steps = [first.logits]
    for token in target[:, 3:].split(1, 1):
        steps.append(made(**given, decoder_input_ids=token, past_key_values=first.past_key_values).logits)
    assert relative(torch.cat(steps, 1), whole) < limit
    alone = made(given["input_ids"][1:, :7], decoder_input_ids=target[1:], use_cache=False).logits
    assert relative(whole[1:], alone) < limit  # padding of the source changes nothing
    other = made(given["input_ids"].flip(0), decoder_input_ids=target, use_cache=False).logits
    assert relative(other, whole) > 1e-3  # and the source is looked at


def test_the_cross_state_is_computed_once(model, ids, monkeypatch):
    calls = []
    summarize = CrossAttention.summarize
    monkeypatch.setattr(CrossAttention, "summarize", lambda *args: calls.append(1) or summarize(*args))
    made = model()
    made.generate(**source(ids), **GREEDY)
    assert len(calls) == 3  # once a layer
    calls.clear()
    made.generate(**source(ids), num_beams=3, **GREEDY)
    assert len(calls) == 3


@pytest.mark.parametrize("mode", [{}, {"num_beams": 3}, {"do_sample": True}])
def test_generation_equals_recomputing(mode, model, ids):
    made, texts = (
        model("cosformer", decoder_attention=["cosformer", "softmax", "linear"], cross_attention="cosformer"),
        [],
    )
    for use_cache in (True, False):
        torch.manual_seed(3)
        texts.append(made.generate(**source(ids), use_cache=use_cache, **GREEDY | mode))
    assert torch.equal(*texts)
    assert len(set(texts[0][0].tolist())) > 2


@rewinds
def test_assisted_decoding(model, ids):
    made, given = model(), {name: value[:1] for name, value in source(ids).items()}
    greedy = made.generate(**given, **GREEDY)
    assert torch.equal(made.generate(**given, assistant_model=model(), **GREEDY), greedy)


def test_saved_and_loaded(model, ids, tmp_path):
    made = model("cosformer", num_key_value_heads=2, norm_type="rms", feed_forward_type="gated", hidden_act="silu")
    made.save_pretrained(tmp_path)
    again = AutoModelForSeq2SeqLM.from_pretrained(tmp_path).eval()
    assert again.lm_head.weight is again.get_decoder().embeddings.tokens.weight
    assert again.lm_head.weight is again.get_encoder().embeddings.tokens.weight
    both = [m(**source(ids), decoder_input_ids=ids(2, 5)).logits for m in (made, again)]
    assert torch.equal(*both)


def test_refusals(model, config, ids):
    with pytest.raises(ValueError, match="no form of cross-attention"):
        model("linear")
    with pytest.raises(ValueError, match="needs is_encoder_decoder=True"):
        CosformerForConditionalGeneration(config())
    with pytest.raises(ValueError, match="one half of it"):
        CosformerModel(config(is_encoder_decoder=True))
    with pytest.raises(ValueError, match="pad it on the right"):
        model()(ids(1, 4), attention_mask=torch.tensor([[0, 1, 1, 1]]), decoder_input_ids=ids(1, 2))


def test_learns_to_copy_and_reverse(config, tmp_path):
    """By the stock seq2seq Trainer; then it writes what it was taught for sequences it has not seen."""
    generator = torch.Generator().manual_seed(0)

    def rows(count: int) -> list[dict]:
        made = []
        for i in range(count):  # the first token says which: 3 copy, 4 reverse
            x = torch.randint(5, 10, (int(torch.randint(2, 5, (1,), generator=generator)),), generator=generator)
            made.append({"input_ids": [3 + i % 2, *x.tolist()], "labels": [*(x.flip(0) if i % 2 else x).tolist(), 2]})
        return made

    values = {"vocab_size": 10, "num_hidden_layers": 2, "num_decoder_layers": 1, "is_encoder_decoder": True, **TOKENS}
    values |= {"hidden_dropout_prob": 0.0, "initializer": "xavier", "max_position_embeddings": 8}
    model = CosformerForConditionalGeneration(config(**values))
    arguments = Seq2SeqTrainingArguments(
        output_dir=str(tmp_path), max_steps=STEPS, per_device_train_batch_size=64, learning_rate=1e-2, report_to=[],
        use_cpu=True, disable_tqdm=True, save_strategy="no", seed=0, lr_scheduler_type="cosine", warmup_steps=20,
        predict_with_generate=True, logging_strategy="no", per_device_eval_batch_size=100,
    )  # fmt: skip
    trainer = Seq2SeqTrainer(model=model, args=arguments, train_dataset=rows(4000), data_collator=Pad())
    trainer.train()
    unseen = rows(100)
    written = trainer.predict(unseen, max_new_tokens=6).predictions
    hits = [row[1 : len(r["labels"]) + 1].tolist() == r["labels"] for row, r in zip(written, unseen, strict=True)]
    assert sum(hits) >= 95


class Pad:
    """As DataCollatorForSeq2Seq, which wants a tokenizer."""

    def __call__(self, rows: list[dict]) -> dict[str, torch.Tensor]:
        pad = torch.nn.utils.rnn.pad_sequence
        ids = [torch.tensor(row["input_ids"]) for row in rows]
        labels = [torch.tensor(row["labels"]) for row in rows]
        return {
            "input_ids": pad(ids, batch_first=True, padding_value=0),
            "attention_mask": pad([torch.ones_like(x) for x in ids], batch_first=True, padding_value=0),
            "labels": pad(labels, batch_first=True, padding_value=-100),
        }
