"""Transformers' own tester mixins against every class of ours: ``make test-hf TRANSFORMERS=<checkout>``.

The checkout is one of its repository, which the user names; its folder must be importable as ``tests``. pytest does not
collect this file by itself. What is overridden or left out is listed here with the reason.
"""

import tempfile
import unittest
from typing import Any, ClassVar

import torch
from safetensors.torch import save_file
from tests.generation.test_utils import GenerationTesterMixin  # pyright: ignore
from tests.test_configuration_common import ConfigTester  # pyright: ignore
from tests.test_modeling_common import ModelTesterMixin  # pyright: ignore
from transformers.models.auto import modeling_auto

from cosformer.hf import (
    CosformerConfig,
    CosformerForCausalLM,
    CosformerForConditionalGeneration,
    CosformerForImageClassification,
    CosformerForMaskedLM,
    CosformerForMultipleChoice,
    CosformerForPairClassification,
    CosformerForQuestionAnswering,
    CosformerForSequenceClassification,
    CosformerForTokenClassification,
    CosformerModel,
    StateCache,
)
from cosformer.models.embeddings import Patches

# the mixins look up by class name which labels a model takes
modeling_auto.MODEL_MAPPING_NAMES["cosformer"] = "CosformerModel"
modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES["cosformer"] = "CosformerForCausalLM"
modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES["cosformer"] = "CosformerForMaskedLM"
modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES["cosformer"] = "CosformerForConditionalGeneration"
modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES["cosformer"] = "CosformerForSequenceClassification"
modeling_auto.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES["cosformer"] = "CosformerForTokenClassification"
modeling_auto.MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES["cosformer"] = "CosformerForQuestionAnswering"
modeling_auto.MODEL_FOR_MULTIPLE_CHOICE_MAPPING_NAMES["cosformer"] = "CosformerForMultipleChoice"
modeling_auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES["cosformer"] = "CosformerForImageClassification"
MODERN = {"norm_type": "rms", "feed_forward_type": "gated", "hidden_act": "silu", "num_key_value_heads": 2}
MODERN |= {"attention_bias": False, "feed_forward_bias": False, "position_embedding_type": "none"}
MODERN |= {"rotary": {"rope_type": "default", "rope_theta": 10_000.0}}


class Tester:
    """What a mixin asks of a model's tester: sizes, a tiny config, a batch."""

    def __init__(self, **changes: Any) -> None:
        self.changes = changes
        self.batch_size, self.seq_length, self.num_choices, self.is_training = 3, 7, 4, True
        self.encoder_seq_length = self.decoder_seq_length = self.key_length = self.seq_length
        self.hidden_size, self.num_hidden_layers, self.num_attention_heads, self.vocab_size = 32, 2, 4, 99
        self.image_size, self.patch_size, self.num_channels, self.type_sequence_label_size = 8, 4, 3, 3

    def get_config(self) -> CosformerConfig:
        sizes = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
        sizes |= {"intermediate_size": 37, "max_position_embeddings": 512, "pad_token_id": 0, "bos_token_id": 1}
        sizes |= {"eos_token_id": 2, "hidden_dropout_prob": 0.0, "num_labels": 3}
        return CosformerConfig(**sizes | self.changes)

    def ids(self) -> torch.Tensor:
        return torch.randint(3, 99, (self.batch_size, self.seq_length))

    def prepare_config_and_inputs_for_common(self) -> tuple[CosformerConfig, dict[str, torch.Tensor]]:
        config = self.get_config()
        if config.image_size:
            return config, {"pixel_values": torch.rand(self.batch_size, 3, 8, 8)}
        inputs = {"input_ids": self.ids(), "attention_mask": torch.ones(self.batch_size, self.seq_length).long()}
        if config.is_encoder_decoder:
            inputs |= {"decoder_input_ids": self.ids(), "decoder_attention_mask": inputs["attention_mask"].clone()}
        return config, inputs


class Common(ModelTesterMixin):
    """What holds for all our classes."""

    has_attentions = False  # linear attention has no matrix to give out
    changes: ClassVar[dict[str, Any]] = {}

    def setUp(self) -> None:
        self.model_tester = Tester(**self.changes)
        sizes = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2}
        self.config_tester = ConfigTester(self, config_class=CosformerConfig, **sizes, **self.changes)

    def test_config(self) -> None:
        self.config_tester.run_common_tests()

    def test_model_weights_reload_no_missing_tied_weights(self) -> None:
        """The mixin loads a file without weights and expects a model; ours is refused by design."""
        config, _ = self.model_tester.prepare_config_and_inputs_for_common()
        for model_class in self.all_model_classes:
            with tempfile.TemporaryDirectory() as folder:
                model_class(config).save_pretrained(folder)
                save_file({"placeholder": torch.empty(1)}, f"{folder}/model.safetensors", metadata={"format": "pt"})
                with self.assertRaisesRegex(ValueError, "lack"):
                    model_class.from_pretrained(folder)

    def _check_past_key_values_for_generate(
        self, batch_size: int, past_key_values: Any, seq_length: int, config: Any
    ) -> None:
        """A state instead of keys and values: its type, its rows, the tokens it has seen."""
        assert isinstance(past_key_values, StateCache)
        assert past_key_values.batch_size == batch_size
        assert past_key_values.get_seq_length() == seq_length

    def _check_caches_are_equal(self, cache1: Any, cache2: Any) -> None:
        """The same tensors in every state."""
        assert len(cache1.layers) == len(cache2.layers)
        for one, other in zip(cache1.layers, cache2.layers, strict=True):
            for a, b in zip(one._tensors(), other._tensors(), strict=True):
                torch.testing.assert_close(a, b)


class DecoderTest(Common, GenerationTesterMixin, unittest.TestCase):
    all_model_classes = (CosformerModel, CosformerForCausalLM)
    changes: ClassVar[dict[str, Any]] = {"is_decoder": True}

    def test_left_padding_compatibility(self, *args: Any, **kwargs: Any) -> None:
        """The mixin takes a model that gives out no matrices for one that cannot pad."""
        self.has_attentions = True
        super().test_left_padding_compatibility(*args, **kwargs)


class HybridTest(DecoderTest):
    """cosFormer and softmax by turns."""

    changes: ClassVar[dict[str, Any]] = {"is_decoder": True, "attention": ["cosformer", "softmax"]}


class ModernTest(DecoderTest):
    """The block of Llama and Qwen."""

    changes: ClassVar[dict[str, Any]] = {"is_decoder": True, **MODERN}


class SoftmaxTest(DecoderTest):
    changes: ClassVar[dict[str, Any]] = {"is_decoder": True, "attention": "softmax"}


class EncoderTest(Common, unittest.TestCase):
    all_model_classes = (
        CosformerModel,
        CosformerForMaskedLM,
        CosformerForSequenceClassification,
        CosformerForTokenClassification,
        CosformerForQuestionAnswering,
        CosformerForMultipleChoice,
    )
    changes: ClassVar[dict[str, Any]] = {"pooling": "mean"}


class ImageTest(Common, unittest.TestCase):
    all_model_classes = (CosformerModel, CosformerForImageClassification)
    changes: ClassVar[dict[str, Any]] = {"image_size": 8, "patch_size": 4, "pooling": "mean"}
    test_resize_embeddings = False  # patches, no words

    def setUp(self) -> None:
        super().setUp()
        self.model_tester.seq_length = self.model_tester.encoder_seq_length = 4

    def test_model_get_set_embeddings(self) -> None:
        """The input embeddings are patches."""
        config, _ = self.model_tester.prepare_config_and_inputs_for_common()
        for model_class in self.all_model_classes:
            assert isinstance(model_class(config).get_input_embeddings(), Patches)

    def test_inputs_embeds(self) -> None:
        """The mixin embeds ids; here patches stand in the place of their pixels."""
        config, inputs = self.model_tester.prepare_config_and_inputs_for_common()
        model = CosformerModel(config).eval()
        vectors = model.get_input_embeddings()(inputs["pixel_values"])
        torch.testing.assert_close(model(inputs_embeds=vectors)[0], model(**inputs)[0])

    @unittest.skip("there are no ids of patches to compare with")
    def test_inputs_embeds_matches_input_ids(self) -> None: ...


class EncoderDecoderTest(Common, GenerationTesterMixin, unittest.TestCase):
    all_model_classes = (CosformerForConditionalGeneration,)
    is_encoder_decoder = True
    changes: ClassVar[dict[str, Any]] = {"is_encoder_decoder": True, "decoder_start_token_id": 1}


class PairTester(Tester):
    def prepare_config_and_inputs_for_common(self) -> tuple[CosformerConfig, dict[str, torch.Tensor]]:
        config, inputs = super().prepare_config_and_inputs_for_common()
        return config, {**inputs, "input_ids_b": self.ids()}


class PairTest(Common, unittest.TestCase):
    all_model_classes = (CosformerForPairClassification,)

    test_resize_embeddings = False  # the mixin shortens the vocabulary of input_ids alone

    def setUp(self) -> None:
        super().setUp()
        self.model_tester = PairTester(**self.changes)

    def _prepare_for_class(self, inputs_dict: dict, model_class: type, return_labels: bool = False) -> dict:
        inputs = super()._prepare_for_class(inputs_dict, model_class, return_labels=return_labels)
        return {**inputs, "labels": torch.zeros(3).long()} if return_labels else inputs

    @unittest.skip("two documents, no single row of hidden states: output_hidden_states is an error")
    def test_hidden_states_output(self) -> None: ...

    @unittest.skip("see test_hidden_states_output")
    def test_can_capture_specific_layers_hidden_states(self) -> None: ...

    @unittest.skip("see test_hidden_states_output")
    def test_capture_outputs_decorator(self) -> None: ...

    @unittest.skip("see test_hidden_states_output")
    def test_model_outputs_equivalence(self) -> None: ...

    @unittest.skip("see test_hidden_states_output")
    def test_retain_grad_hidden_states_attentions(self) -> None: ...
