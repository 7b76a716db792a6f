"""Masked language model, classification of sequences and of pairs."""

import pytest
import torch
import torch.nn.functional as F
from transformers import (
    AutoModelForImageClassification,
    AutoModelForMaskedLM,
    AutoModelForMultipleChoice,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from cosformer.hf import (
    CosformerForImageClassification,
    CosformerForMaskedLM,
    CosformerForMultipleChoice,
    CosformerForPairClassification,
    CosformerForQuestionAnswering,
    CosformerForSequenceClassification,
    CosformerForTokenClassification,
)


def test_masked_lm(config, ids, tmp_path):
    model = CosformerForMaskedLM(config()).eval()
    x = ids(2, 9)
    labels = torch.full_like(x, -100)
    labels[0, 3], labels[1, 5] = 7, 11
    out = model(x, labels=labels)
    torch.testing.assert_close(out.loss, F.cross_entropy(out.logits[[0, 1], [3, 5]], torch.tensor([7, 11])))
    assert model.lm_head.words.weight is model.model.embeddings.tokens.weight
    model.save_pretrained(tmp_path)
    again = AutoModelForMaskedLM.from_pretrained(tmp_path)
    assert torch.equal(again(x).logits, out.logits)
    # mapped files start anywhere; kernels that see another alignment may add in another order
    assert all(parameter.data_ptr() % 64 == 0 for parameter in again.parameters())
    # a classifier starts from the same body, with a head of its own
    classifier = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    ours = classifier.model.state_dict()
    assert all(torch.equal(tensor, ours[name]) for name, tensor in model.model.state_dict().items())
    for values, message in (
        ({"is_decoder": True}, "both ways"),
        ({"cls_token": True}, "cls_token"),
        ({"adaptive_cutoffs": [10]}, "adaptive_cutoffs"),
    ):
        with pytest.raises(ValueError, match=message):
            CosformerForMaskedLM(config(**values))


@pytest.mark.parametrize("pooling", ["first", "mean", "mean_all"])
@pytest.mark.parametrize("cls_token", [False, True])
def test_sequence_classification(pooling, cls_token, config, ids, tmp_path, relative):
    made = config(pooling=pooling, cls_token=cls_token, num_labels=3, classifier_sizes=[20, 10], classifier_act="relu")
    model = CosformerForSequenceClassification(made).eval()
    x, labels = ids(2, 9), torch.tensor([2, 0])
    out = model(x, labels=labels)
    hidden = model.model(x)[0]
    vector = hidden[:, 0] if pooling == "first" else hidden.mean(1)
    first, second, last = *model.classifier.hidden, model.classifier.scores
    expected = last(second(first(vector).relu()).relu())
    torch.testing.assert_close(out.logits, expected)
    torch.testing.assert_close(out.loss, F.cross_entropy(expected, labels))
    model.save_pretrained(tmp_path)
    assert torch.equal(AutoModelForSequenceClassification.from_pretrained(tmp_path)(x).logits, out.logits)
    mask = torch.tensor([[1] * 9 + [0] * 4] * 2)
    padded = model(torch.cat((x, ids(2, 4)), 1), attention_mask=mask).logits
    same = relative(padded, out.logits) < 1e-5
    assert same == (pooling != "mean_all")  # that one counts padding, as Long Range Arena does
    left = model(torch.cat((ids(2, 4), x), 1), attention_mask=mask.flip(1)).logits
    if not cls_token and pooling != "mean_all":
        assert relative(left, out.logits) < 1e-5


def test_the_cls_vector_is_pooled_though_the_first_token_is_masked(config, ids):
    model = CosformerForSequenceClassification(config(cls_token=True, pooling="first", num_labels=3)).eval()
    x, mask = ids(2, 9), torch.tensor([[0] + [1] * 8, [1] * 9])
    hidden = model.model(x, attention_mask=mask)[0]
    torch.testing.assert_close(model(x, attention_mask=mask).logits, model.classifier(hidden[:, 0]))


def test_regression_and_several_classes(config, ids):
    one = CosformerForSequenceClassification(config(num_labels=1)).eval()
    out = one(ids(2, 5), labels=torch.tensor([0.5, 2.0]))
    torch.testing.assert_close(out.loss, F.mse_loss(out.logits[:, 0], torch.tensor([0.5, 2.0])))
    many = CosformerForSequenceClassification(config(num_labels=3)).eval()
    targets = torch.tensor([[1.0, 0, 1], [0, 0, 1]])
    out = many(ids(2, 5), labels=targets)
    torch.testing.assert_close(out.loss, F.binary_cross_entropy_with_logits(out.logits, targets))


@pytest.mark.parametrize("pairing", ["four", "concat"])
def test_pairs(pairing, config, ids, tmp_path):
    model = CosformerForPairClassification(config(pairing=pairing, num_labels=2, pooling="mean")).eval()
    a, b = ids(2, 9), ids(2, 6).flip(0)
    mask_b = torch.ones_like(b)
    mask_b[0, 4:] = 0
    labels = torch.tensor([1, 0])
    out = model(a, b, attention_mask_b=mask_b, labels=labels)
    va, vb = model.encode(a), model.encode(b, mask_b)
    parts = [va, vb, va * vb, va - vb] if pairing == "four" else [va, vb]
    expected = model.classifier(torch.cat(parts, -1))
    torch.testing.assert_close(out.logits, expected)
    torch.testing.assert_close(out.loss, F.cross_entropy(expected, labels))
    model.save_pretrained(tmp_path)
    again = CosformerForPairClassification.from_pretrained(tmp_path)
    assert torch.equal(again(a, b, attention_mask_b=mask_b).logits, out.logits)


def test_left_to_right_models_pool_the_mean(config, ids):
    with pytest.raises(ValueError, match="pooling='mean'"):
        CosformerForSequenceClassification(config(is_decoder=True))
    model = CosformerForSequenceClassification(config(is_decoder=True, pooling="mean")).eval()
    assert model(ids(2, 5)).logits.shape == (2, 2)


def test_token_classification(config, ids, tmp_path):
    model = CosformerForTokenClassification(config(num_labels=5)).eval()
    x, labels = ids(2, 9), ids(2, 9) % 5
    labels[0, 4:] = -100
    out = model(x, labels=labels)
    assert out.logits.shape == (2, 9, 5)
    counted = labels != -100
    torch.testing.assert_close(out.loss, F.cross_entropy(out.logits[counted], labels[counted]))
    model.save_pretrained(tmp_path)
    assert torch.equal(AutoModelForTokenClassification.from_pretrained(tmp_path)(x).logits, out.logits)
    with pytest.raises(ValueError, match="cls_token=True"):
        CosformerForTokenClassification(config(cls_token=True))


def test_question_answering(config, ids, tmp_path):
    model = CosformerForQuestionAnswering(config()).eval()
    x, start, end = ids(2, 9), torch.tensor([2, 50]), torch.tensor([4, 8])
    out = model(x, start_positions=start, end_positions=end)
    first = F.cross_entropy(out.start_logits[:1], start[:1])  # 50 is outside and does not count
    torch.testing.assert_close(out.loss, (first + F.cross_entropy(out.end_logits, end)) / 2)
    model.save_pretrained(tmp_path)
    again = AutoModelForQuestionAnswering.from_pretrained(tmp_path)(x)
    assert torch.equal(again.end_logits, out.end_logits)
    with pytest.raises(ValueError, match="or neither"):
        model(x, start_positions=start)


def test_multiple_choice(config, ids, relative, tmp_path):
    model = CosformerForMultipleChoice(config(pooling="mean")).eval()
    x = ids(2, 3, 9)
    mask = torch.ones_like(x)
    mask[1, 2, 5:] = 0
    out = model(x, attention_mask=mask, labels=torch.tensor([2, 0]))
    assert out.logits.shape == (2, 3)
    torch.testing.assert_close(out.loss, F.cross_entropy(out.logits, torch.tensor([2, 0])))
    alone = model(x[1:, 2:, :5]).logits  # each choice is read alone
    assert relative(out.logits[1:, 2:], alone) < 1e-5
    model.save_pretrained(tmp_path)
    again = AutoModelForMultipleChoice.from_pretrained(tmp_path)
    assert torch.equal(again(x, attention_mask=mask).logits, out.logits)
    with pytest.raises(ValueError, match="choices"):
        model(ids(2, 9))


@pytest.mark.parametrize("patch", [1, 4], ids=["pixels", "patches"])
def test_image_classification(patch, config, relative, tmp_path):
    sizes = {"image_size": 8, "patch_size": patch, "num_channels": 2, "num_labels": 3, "pooling": "mean"}
    model = CosformerForImageClassification(config(**sizes)).eval()
    pixels = torch.randn(2, 2, 8, 8)
    out = model(pixels, labels=torch.tensor([0, 2]))
    torch.testing.assert_close(out.loss, F.cross_entropy(out.logits, torch.tensor([0, 2])))
    # the tokens are the patches, row by row
    rows = (
        pixels.unfold(2, patch, patch)
        .unfold(3, patch, patch)
        .permute(0, 2, 3, 1, 4, 5)
        .reshape(2, (8 // patch) ** 2, -1)
    )
    project = model.model.embeddings.tokens.project
    vectors = rows @ project.weight.flatten(1).mT + project.bias
    hidden = model.model(inputs_embeds=vectors).last_hidden_state
    assert relative(out.logits, model.classifier(hidden.mean(1))) < 1e-5
    out.loss.backward()
    assert all(p.grad is not None for p in model.parameters())
    model.save_pretrained(tmp_path)
    assert torch.equal(AutoModelForImageClassification.from_pretrained(tmp_path)(pixels).logits, out.logits)
    with pytest.raises(ValueError, match="2, 8, 8"):
        model(torch.randn(1, 3, 8, 8))
    with pytest.raises(ValueError, match="image_size=8"):
        CosformerForImageClassification(config(image_size=8, patch_size=3))
