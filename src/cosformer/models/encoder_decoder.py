"""Encoder and decoder of the one transformer, for translation and summaries."""

import copy
from typing import Any, ClassVar

from torch import Tensor, nn
from transformers.generation import GenerationMixin
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput
from transformers.utils.generic import can_return_tuple

from cosformer.models.config import IGNORE, CosformerConfig
from cosformer.models.pretrained import CosformerPreTrainedModel
from cosformer.models.state_cache import StateCache, StateGeneration
from cosformer.models.transformer import CosformerModel


class EncoderDecoder(nn.Module):
    """The two halves; the decoder's layers attend to themselves and to the encoder's output."""

    def __init__(self, config: CosformerConfig) -> None:
        super().__init__()
        own, other = copy.deepcopy(config), copy.deepcopy(config)
        own.is_encoder_decoder = other.is_encoder_decoder = False
        other.is_decoder = True
        other.num_hidden_layers = config.num_decoder_layers or config.num_hidden_layers
        other.attention = config.decoder_attention or config.attention
        other.check()
        self.encoder = CosformerModel(own)
        self.decoder = CosformerModel(other, cross=True)


class CosformerForConditionalGeneration(CosformerPreTrainedModel, StateGeneration, GenerationMixin):  # pyright: ignore[reportIncompatibleMethodOverride]
    """Reads ``input_ids`` and writes ``decoder_input_ids``; ``generate`` looks at the source through a state made once.

    One table of words serves both halves and, with ``tie_word_embeddings``, the scores.
    """

    _tied_weights_keys: ClassVar[Any] = {
        "model.decoder.embeddings.tokens.weight": "model.encoder.embeddings.tokens.weight",
        "lm_head.weight": "model.encoder.embeddings.tokens.weight",
    }

    def __init__(self, config: CosformerConfig) -> None:
        super().__init__(config)
        if not config.is_encoder_decoder:
            raise ValueError("an encoder-decoder needs is_encoder_decoder=True in its config")
        self.model = EncoderDecoder(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if not config.tie_word_embeddings:
            self._tied_weights_keys = {  # pyright: ignore[reportAttributeAccessIssue]
                name: source for name, source in self._tied_weights_keys.items() if name != "lm_head.weight"
            }
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.model.encoder.embeddings.tokens

    def set_input_embeddings(self, value: nn.Module) -> None:
        for half in (self.model.encoder, self.model.decoder):
            half.embeddings.tokens = value  # pyright: ignore[reportAttributeAccessIssue]

    def get_encoder(self, modality: str | None = None) -> CosformerModel:
        return self.model.encoder

    def get_decoder(self) -> CosformerModel:
        return self.model.decoder

    def generate(self, *args: Any, labels: Tensor | None = None, **kwargs: Any) -> Any:
        """As transformers' own. ``labels`` come along where the seq2seq Trainer generates; they are not looked at."""
        return super().generate(*args, **kwargs)  # pyright: ignore[reportAttributeAccessIssue]

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """The labels, one place later, behind ``decoder_start_token_id``; the stock seq2seq collator calls this."""
        start = self.config.decoder_start_token_id
        pad = self.config.pad_token_id
        if start is None or pad is None:
            raise ValueError("labels need decoder_start_token_id and pad_token_id in the config")
        shifted = labels.roll(1, dims=-1)
        shifted[:, 0] = start
        return shifted.masked_fill(shifted == IGNORE, pad)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple | None = None,
        past_key_values: StateCache | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> Seq2SeqLMOutput:
        """``input_ids [B,S]``, ``decoder_input_ids [B,N]``; ``labels [B,N]`` are what the decoder should write, -100
        where nothing counts. Without ``decoder_input_ids`` they are made from the labels.
        """
        told = {name: kwargs.pop(name) for name in ("num_items_in_batch",) if name in kwargs}
        if encoder_outputs is None:
            encoder_outputs = self.model.encoder(
                input_ids=input_ids,
                attention_mask=attention_mask,
                inputs_embeds=inputs_embeds,
                use_cache=False,
                **kwargs,
            )
        assert encoder_outputs is not None
        read = encoder_outputs[0]
        if labels is not None and decoder_input_ids is None and decoder_inputs_embeds is None:
            decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        body = self.model.decoder(
            input_ids=decoder_input_ids,
            attention_mask=decoder_attention_mask,
            inputs_embeds=decoder_inputs_embeds,
            past_key_values=past_key_values,
            use_cache=use_cache,
            encoder_hidden_states=read,
            encoder_attention_mask=attention_mask,
            **kwargs,
        )
        logits = self.lm_head(body.last_hidden_state)
        loss = None
        if labels is not None:
            loss = self.loss_function(
                logits=logits, labels=labels, shift_labels=labels, vocab_size=self.config.vocab_size, **told
            )
        return Seq2SeqLMOutput(
            loss=loss,
            logits=logits,
            past_key_values=body.past_key_values,
            decoder_hidden_states=body.hidden_states,
            encoder_last_hidden_state=read,
            encoder_hidden_states=getattr(encoder_outputs, "hidden_states", None),
        )
