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
from cosformer.renamed import with_current_names

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
    "AutoModelForTimeSeriesPrediction": "CosformerForForecasting",
}


def _unknown(keys: Any) -> list[str]:
    known = _FRAMEWORK_KEYS | GenerationConfig._get_default_generation_params().keys()
    return sorted(key for key in keys if key not in known and not key.startswith("_"))


@strict
class CosformerConfig(PreTrainedConfig):
    """Configuration of an encoder (``is_decoder=False``) or decoder whose attention is chosen by name."""

    model_type: ClassVar[str] = "cosformer"
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["past_key_values"]
    attribute_map: ClassVar[dict[str, str]] = {"max_len": "max_position_embeddings"}

    # --- sizes

    vocab_size: int = 50_265
    """Number of token ids."""
    hidden_size: int = 768
    """Width of the hidden states."""
    num_hidden_layers: int = 12
    """Number of layers; in an encoder-decoder, of the encoder."""
    intermediate_size: int = 3072
    """Inner width of the feed-forward networks."""
    max_position_embeddings: int = 512
    """The longest sequence, and the paper's M. Also available as ``max_len``."""
    num_attention_heads: int = 12
    """Attention heads in each layer."""
    num_key_value_heads: int | None = None
    """Heads of keys and values, if fewer than query heads. Defaults to ``num_attention_heads``."""
    head_dim: int | None = None
    """Channels of one head. Defaults to ``hidden_size / num_attention_heads``."""

    # --- attention

    is_decoder: bool = False
    """Whether attention is causal."""
    attention: str | list[str] = "cosformer"
    """A name from ``cosformer list attentions``, or a list of one name per layer."""
    attention_options: dict | list[dict] | None = None
    """Options of that attention, or a list of one dict per layer. A ``seed`` that is not given is the
    layer's index."""
    attention_bias: bool = True
    """Whether the query, key and value projections have biases."""
    output_bias: bool | None = None
    """Whether the output projection has a bias. Defaults to ``attention_bias``."""
    qk_norm: bool = False
    """Whether RMSNorm is applied to each head's queries and keys, as in Qwen3."""
    short_convolution: int = 0
    """Width of a depthwise convolution over the tokens of the queries, keys and values, before
    ``qk_norm`` and ``rotary``; 0 for none. It starts as the identity. In a decoder it covers a token and
    the ``width - 1`` before it, in an encoder it is centred. Padding counts as zeros. Not used in
    cross-attention."""
    output_gate: bool = False
    """Whether the attention output is multiplied by ``silu`` of a linear map of the attention's input,
    without bias."""
    rotary: dict | None = None
    """Rotary positions, as the dict that transformers calls ``rope_parameters``. cosFormer's own angles
    stay in use."""

    # --- encoder-decoder (``is_encoder_decoder=True``)

    num_decoder_layers: int | None = None
    """Number of decoder layers. Defaults to ``num_hidden_layers``."""
    decoder_attention: str | list[str] | None = None
    """Attention of the decoder. Defaults to ``attention``."""
    cross_attention: str | None = None
    """Attention of the decoder to the encoder's output, ``cosformer`` or ``softmax``. Defaults to the
    decoder's own."""
    decoder_start_token_id: int | None = None
    """The token that generation starts from."""

    # --- feed-forward networks and norms

    hidden_act: str = "gelu"
    """Activation of the feed-forward networks: ``gelu``, ``gelu_new``, ``relu``, ``silu`` or ``tanh``."""
    feed_forward_type: str = "plain"
    """``plain`` or ``gated``; gated with ``hidden_act="silu"`` is SwiGLU."""
    feed_forward_bias: bool = True
    """Whether the feed-forward networks have biases."""
    norm: str = "pre"
    """``pre`` or ``post``, before or after each block."""
    norm_type: str = "layer"
    """``layer`` (LayerNorm) or ``rms`` (RMSNorm)."""
    final_norm: bool = True
    """Whether there is a norm after the last layer."""
    embedding_norm: bool = False
    """Whether LayerNorm is applied to the embeddings."""
    layer_norm_eps: float = 1e-5
    """Epsilon of every norm."""

    # --- embeddings

    position_embedding_type: str = "learned"
    """``learned``, ``sinusoidal`` or ``none``."""
    position_offset: int = 0
    """Rows of the learned position table that precede the first position."""
    absolute_positions: bool = False
    """Whether a token's position is its place in the input, masked or not, as in Long Range Arena. By
    default only unmasked tokens are counted, so left padding takes up no positions."""
    scale_embedding: bool = False
    """Whether token embeddings are multiplied by ``sqrt(hidden_size)``."""
    type_vocab_size: int = 0
    """Number of token types, 0 for none."""
    adaptive_cutoffs: list[int] | None = None
    """Ends of the frequency bands of an adaptive input and softmax; None for a plain one."""
    adaptive_factor: int = 4
    """How many times narrower each band's embeddings are than those of the band before it."""
    adaptive_dropout: float | int = 0.0
    """Dropout inside the adaptive softmax."""
    tie_word_embeddings: bool = True
    """Whether input and output embeddings share their weights."""
    num_input_channels: int | None = None
    """The input is real-valued: this many numbers a step (``input_values``) pass through a linear map
    instead of a token table. None for token ids."""
    channel_mean: list[float] | None = None
    """The mean of each input channel in the training data, subtracted from the input. Defaults to 0."""
    channel_scale: list[float] | None = None
    """The scale of each input channel, by which the input is divided. Defaults to 1."""
    pad_token_id: int | None = None
    """The padding token, whose embedding is not trained."""
    bos_token_id: int | None = None
    """The token that begins a sequence."""
    eos_token_id: int | list[int] | None = None
    """The token, or tokens, that end generation."""

    # --- classification heads

    encoder: dict | None = None
    """The config of an encoder of transformers (BERT, for one) that takes the place of the transformer under a head for
    classes, numbers or pairs. None for our own transformer."""
    cls_token: bool = False
    """Whether a learned vector is prepended to every sequence."""
    pooling: str = "first"
    """What is classified: the ``first`` position, the ``mean`` of the unmasked ones, or the mean of all
    positions, ``mean_all``."""
    pairing: str = "four"
    """How the vectors a and b of two documents are combined: ``four`` is [a, b, a*b, a-b], ``concat`` is
    [a, b]."""
    classifier_sizes: list[int] | None = None
    """Hidden widths of the classifier. Defaults to ``[hidden_size]``."""
    classifier_act: str = "tanh"
    """Activation of the classifier; see ``hidden_act``."""
    target_mean: float | int = 0.0
    """In regression, the number that an output of 0 stands for. The output is in the units of the labels."""
    target_scale: float | int = 1.0
    """In regression, the number that one unit of the output stands for. The loss is in these units."""
    classifier_dropout: float | int = 0.0
    """Dropout inside the classifier."""
    image_size: int | None = None
    """Height and width of the images of an image classifier; None for text."""
    patch_size: int = 1
    """Height and width of a patch; patches of 1 are pixels."""
    num_channels: int = 3
    """Colour channels of an image."""

    # --- training and inference

    hidden_dropout_prob: float | int = 0.1
    """Dropout of the embeddings and of each block's output."""
    activation_dropout: float | int = 0.0
    """Dropout after the activation of the feed-forward networks."""
    sparse_prediction: bool = False
    """Whether a masked language model given labels computes predictions at the labelled positions only
    and returns no logits, which saves much time and memory."""
    initializer: str = "normal"
    """``normal``, with standard deviation ``initializer_range``, or ``xavier``."""
    initializer_range: float = 0.02
    """Standard deviation of the initial weights."""
    embedding_range: float | None = None
    """Standard deviation of the initial token embeddings. Defaults to ``initializer_range``."""
    use_cache: bool = True
    """Whether a decoder that is not training returns its states."""

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
        if (
            self.is_encoder_decoder and self.decoder_attention is None
        ):  # get_text_config(decoder=True) reads it as `attention`
            self.decoder_attention = self.attention
        self.check()

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """As in transformers. Fields of earlier versions are renamed; fields that this version does not know are
        dropped with a warning."""
        config_dict = with_current_names("config", config_dict)
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
        for name in ("position_offset", "type_vocab_size", "short_convolution"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)}; it cannot be negative")
        choices = {"norm": NORMS, "position_embedding_type": POSITIONS, "pooling": POOLINGS}
        choices |= {"pairing": PAIRINGS, "initializer": INITIALIZERS}
        choices |= {"norm_type": tuple(NORM_TYPES), "feed_forward_type": tuple(FEED_FORWARDS)}
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
                f"num_key_value_heads={self.num_key_value_heads} does not divide "
                f"num_attention_heads={self.num_attention_heads}"
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
        self._check_channels()

    def _check_channels(self) -> None:
        channels = self.num_input_channels
        if channels is not None and (channels < 1 or self.image_size is not None or self.adaptive_cutoffs is not None):
            raise ValueError(
                f"num_input_channels={channels}; it must be at least 1, and goes with neither image_size nor "
                "adaptive_cutoffs"
            )
        for name in ("channel_mean", "channel_scale"):
            values = getattr(self, name)
            if values is not None and len(values) != channels:
                raise ValueError(
                    f"{name} has {len(values)} values and num_input_channels={channels}; give one per channel"
                )
        if self.channel_scale is not None and min(self.channel_scale) <= 0:
            raise ValueError(f"channel_scale={self.channel_scale}; scales must be above 0")

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
