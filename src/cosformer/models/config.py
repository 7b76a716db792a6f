"""The configuration of the one transformer: every architecture of the family is a set of values here."""

import dataclasses
import itertools
import os
import warnings
from typing import Any, ClassVar

from huggingface_hub.dataclasses import strict
from transformers import GenerationConfig, PreTrainedConfig

from cosformer.attention import attention_class
from cosformer.models.auto_map import write_auto_map
from cosformer.nn.block import NORM_TYPES, NORMS
from cosformer.nn.feed_forward import FEED_FORWARDS, activation

POSITIONS = ("learned", "sinusoidal", "none")
POOLINGS = ("first", "mean", "mean_all")
PAIRINGS = ("four", "concat")
INITIALIZERS = ("normal", "xavier")
IGNORE = -100  # a label that does not count

# what transformers itself hands to a config besides its fields
_FRAMEWORK_KEYS = {"num_labels", "name_or_path", "attn_implementation", "experts_implementation", "output_attentions"}
_FRAMEWORK_KEYS |= {"torch_dtype", "model_type", "auto_map", "quantization_config", "max_len", "use_return_dict"}

# what each Auto class builds from this config
AUTO_CLASSES = {
    "AutoModel": "CosformerModel",
    "AutoModelForCausalLM": "CosformerForCausalLM",
    "AutoModelForMaskedLM": "CosformerForMaskedLM",
    "AutoModelForSeq2SeqLM": "CosformerForConditionalGeneration",
    "AutoModelForSequenceClassification": "CosformerForSequenceClassification",
    "AutoModelForTokenClassification": "CosformerForTokenClassification",
    "AutoModelForQuestionAnswering": "CosformerForQuestionAnswering",
    "AutoModelForMultipleChoice": "CosformerForMultipleChoice",
    "AutoModelForImageClassification": "CosformerForImageClassification",
}


def _unknown(keys: Any) -> list[str]:
    known = _FRAMEWORK_KEYS | GenerationConfig._get_default_generation_params().keys()
    return sorted(key for key in keys if key not in known and not key.startswith("_"))


@strict
class CosformerConfig(PreTrainedConfig):
    """A transformer, encoder (``is_decoder=False``) or left to right, with its attention named by a word.

    attention: a name of the zoo, or one per layer. attention_options: that mechanism's own options, or one dict per layer; a
    ``seed`` that is not among them is the layer's number. num_key_value_heads: heads of keys and values, if fewer.
    attention_bias and output_bias: biases of the projections to queries, keys and values, and back (as attention_bias unless
    given); feed_forward_bias. qk_norm: RMSNorm on queries and keys, as Qwen3. rotary: rotary positions, as the dict that
    transformers calls ``rope_parameters``; cosFormer's own angles stay as they are. feed_forward: ``plain``, or ``gated``
    (with hidden_act ``silu`` it is SwiGLU). norm_type: ``layer`` or ``rms``.
    max_position_embeddings (also ``max_len``): the longest sequence, and the paper's M. head_dim: hidden_size over heads
    unless given. norm: ``pre`` or ``post``; final_norm and embedding_norm: LayerNorm after the last block, on the embeddings.
    position_embedding_type: ``learned``, ``sinusoidal`` or ``none``; position_offset: rows of the learned table before the
    first position. absolute_positions: a token's position is its place in the input, masked or not, as in Long Range Arena;
    otherwise unmasked tokens are counted, so that left padding takes no position. scale_embedding: multiply token embeddings by sqrt(hidden_size). type_vocab_size: 0 for no token types.
    cls_token: put a learned vector before every sequence. pooling: ``first`` position, ``mean`` of the unmasked ones, or
    ``mean_all`` positions. pairing: how two documents' vectors a, b meet: ``four`` is [a, b, a*b, a-b], ``concat`` [a, b].
    classifier_sizes: hidden widths of the classifier, [hidden_size] unless given. image_size, patch_size, num_channels: of an
    image classifier; patches of one pixel are pixels.
    is_encoder_decoder: ``num_hidden_layers`` read the source with ``attention``, ``num_decoder_layers`` write with
    ``writing_attention`` and look at the source by ``cross_attention`` (``cosformer`` or ``softmax``); as the encoder's unless
    given.
    adaptive_cutoffs: where the bands of an adaptive input and softmax end; each next band is ``adaptive_factor`` times
    narrower. sparse_prediction: a masked language model that gets labels scores their places alone and leaves out the logits,
    which takes much less time and memory. initializer: ``normal`` with initializer_range, or ``xavier``; embedding_range: of token embeddings, if other.
    """

    model_type: ClassVar[str] = "cosformer"
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["past_key_values"]
    attribute_map: ClassVar[dict[str, str]] = {"max_len": "max_position_embeddings"}

    vocab_size: int = 50_265
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    intermediate_size: int = 3072
    max_position_embeddings: int = 512
    is_decoder: bool = False
    attention: str | list[str] = "cosformer"
    attention_options: dict | list[dict] | None = None
    attention_bias: bool = True
    output_bias: bool | None = None
    qk_norm: bool = False
    rotary: dict | None = None
    num_decoder_layers: int | None = None
    writing_attention: str | list[str] | None = None
    cross_attention: str | None = None
    hidden_act: str = "gelu"
    feed_forward: str = "plain"
    feed_forward_bias: bool = True
    norm: str = "pre"
    norm_type: str = "layer"
    final_norm: bool = True
    embedding_norm: bool = False
    layer_norm_eps: float = 1e-5
    position_embedding_type: str = "learned"
    position_offset: int = 0
    absolute_positions: bool = False
    scale_embedding: bool = False
    type_vocab_size: int = 0
    cls_token: bool = False
    pooling: str = "first"
    pairing: str = "four"
    classifier_sizes: list[int] | None = None
    classifier_act: str = "tanh"
    classifier_dropout: float | int = 0.0
    image_size: int | None = None
    patch_size: int = 1
    num_channels: int = 3
    hidden_dropout_prob: float | int = 0.1
    activation_dropout: float | int = 0.0
    adaptive_cutoffs: list[int] | None = None
    adaptive_factor: int = 4
    adaptive_dropout: float | int = 0.0
    sparse_prediction: bool = False
    initializer: str = "normal"
    initializer_range: float = 0.02
    embedding_range: float | None = None
    use_cache: bool = True
    tie_word_embeddings: bool = True
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    decoder_start_token_id: int | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        unknown = _unknown(kwargs)
        if unknown:
            raise ValueError(f"CosformerConfig has no field {', '.join(unknown)}; see its documentation")
        super().__post_init__(**kwargs)
        if self.head_dim is None:
            if self.num_attention_heads < 1 or self.hidden_size % self.num_attention_heads:
                raise ValueError(
                    f"hidden_size={self.hidden_size} is not a multiple of num_attention_heads="
                    f"{self.num_attention_heads}; change one of them, or give head_dim"
                )
            self.head_dim = self.hidden_size // self.num_attention_heads
        self.check()

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """As transformers' own. A saved field that this version does not know is left out with a warning."""
        fields = {field.name for field in dataclasses.fields(cls)} | cls.attribute_map.keys()  # pyright: ignore
        unknown = _unknown({key for key in config_dict if key not in fields})
        if unknown:
            warnings.warn(
                f"the saved config has fields that this version of cosformer does not know and leaves out:"
                f" {', '.join(unknown)}; if results matter, load it with the version it was saved with",
                stacklevel=2,
            )
        return super().from_dict({key: value for key, value in config_dict.items() if key not in unknown}, **kwargs)

    def save_pretrained(self, save_directory: str | os.PathLike, *args: Any, **kwargs: Any) -> None:
        """As transformers' own, with a file that leads ``trust_remote_code=True`` to this package."""
        write_auto_map(self, save_directory, "cosformer.hf", CosformerConfig.__name__, AUTO_CLASSES)
        super().save_pretrained(save_directory, *args, **kwargs)

    @classmethod
    def register_for_auto_class(cls, auto_class: Any = "AutoConfig") -> None:
        """Nothing to do: a saved config always says where its class is."""

    def check(self) -> None:
        """Raise ValueError on values that do not go together."""
        positive = ("vocab_size", "hidden_size", "num_hidden_layers", "intermediate_size", "max_position_embeddings")
        for name in positive:
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}; it must be at least 1")
        for name in ("position_offset", "type_vocab_size"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)}; it cannot be negative")
        choices = {"norm": NORMS, "position_embedding_type": POSITIONS, "pooling": POOLINGS}
        choices |= {"pairing": PAIRINGS, "initializer": INITIALIZERS}
        choices |= {"norm_type": tuple(NORM_TYPES), "feed_forward": tuple(FEED_FORWARDS)}
        for name, known in choices.items():
            if getattr(self, name) not in known:
                raise ValueError(f"{name}={getattr(self, name)!r}; known: {', '.join(known)}")
        activation(self.hidden_act)
        activation(self.classifier_act)
        for name in self.layer_attentions:
            attention_class(name)
        self.layer_options  # noqa: B018  (raises on a wrong number of dicts)
        if self.num_key_value_heads and self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_key_value_heads={self.num_key_value_heads} does not divide num_attention_heads={self.num_attention_heads}"
            )
        if self.is_encoder_decoder and (self.is_decoder or self.cls_token or self.adaptive_cutoffs is not None):
            raise ValueError("is_encoder_decoder=True goes with neither is_decoder, cls_token nor adaptive_cutoffs")
        if self.is_decoder and self.cls_token:
            raise ValueError("cls_token=True puts a vector before the sequence and needs is_decoder=False")
        if self.position_offset and self.position_embedding_type != "learned":
            raise ValueError(
                f"position_offset={self.position_offset} belongs to position_embedding_type='learned', not to"
                f" {self.position_embedding_type!r}"
            )
        if self.adaptive_cutoffs is not None:
            self._check_adaptive(self.adaptive_cutoffs)

    def _check_adaptive(self, cutoffs: list[int]) -> None:
        ends = [0, *cutoffs, self.vocab_size]
        if not cutoffs or any(a >= b for a, b in itertools.pairwise(ends)):
            raise ValueError(f"adaptive_cutoffs={cutoffs} must rise between 0 and vocab_size={self.vocab_size}")
        if not self.tie_word_embeddings:
            raise ValueError("adaptive_cutoffs tie the bands of input and softmax; use tie_word_embeddings=True")
        if self.adaptive_factor < 1 or self.hidden_size // self.adaptive_factor ** len(cutoffs) < 1:
            raise ValueError(
                f"hidden_size={self.hidden_size} over adaptive_factor={self.adaptive_factor} leaves nothing for band"
                f" {len(cutoffs)}; use fewer cutoffs or a smaller factor"
            )

    @property
    def layer_attentions(self) -> list[str]:
        """The attention of each layer."""
        if isinstance(self.attention, str):
            return [self.attention] * self.num_hidden_layers
        if len(self.attention) != self.num_hidden_layers:
            raise ValueError(
                f"attention names {len(self.attention)} layers and num_hidden_layers={self.num_hidden_layers};"
                " give one name, or one per layer"
            )
        return list(self.attention)

    @property
    def layer_options(self) -> list[dict[str, Any]]:
        """The options of each layer's attention."""
        options = self.attention_options or {}
        if isinstance(options, dict):
            return [options] * self.num_hidden_layers
        if len(options) != self.num_hidden_layers:
            raise ValueError(
                f"attention_options has {len(options)} entries and num_hidden_layers={self.num_hidden_layers};"
                " give one dict, or one per layer"
            )
        return options
