"""Masked language model."""

from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn
from transformers.modeling_outputs import MaskedLMOutput
from transformers.utils.generic import can_return_tuple

from cosformer.models import sharding
from cosformer.models.config import IGNORE, CosformerConfig
from cosformer.models.pretrained import CosformerPreTrainedModel
from cosformer.models.transformer import CosformerModel


class MaskedLMHead(nn.Module):
    """Linear, GELU, LayerNorm, then scores of every word: the embeddings' weights and a bias per word."""

    def __init__(self, config: CosformerConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.words: nn.Linear = nn.Linear(config.hidden_size, config.vocab_size)

    def forward(self, x: Tensor) -> Tensor:
        """[B,N,C] -> [B,N,vocab_size]"""
        return self.words(self.norm(F.gelu(self.dense(x))))


class CosformerForMaskedLM(CosformerPreTrainedModel):
    """The encoder with a head that guesses masked words."""

    _tied_weights_keys: ClassVar[Any] = {"lm_head.words.weight": "model.embeddings.tokens.weight"}

    def __init__(self, config: CosformerConfig) -> None:
        super().__init__(config)
        if config.is_decoder:
            raise ValueError("a masked language model looks both ways: it needs is_decoder=False in its config")
        if config.cls_token:
            raise ValueError("a masked language model has no use for cls_token=True; put a token into the text instead")
        if config.adaptive_cutoffs is not None:
            raise ValueError("adaptive_cutoffs belong to the causal language model; leave them out here")
        self.model = CosformerModel(config)
        self.lm_head = MaskedLMHead(config)
        self.post_init()

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head.words

    def set_output_embeddings(self, new_embeddings: nn.Linear) -> None:
        self.lm_head.words = new_embeddings

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        reduction: str = "mean",
        **kwargs: Any,
    ) -> MaskedLMOutput:
        """``labels [B,N]``: the true ids at the masked places, -100 elsewhere. ``reduction="none"`` gives the loss of
        each place, ``[B,N]``, 0 where none counts, and no logits. With ``sequence_group`` the loss is this rank's
        share: those of all ranks add up to the mean over all masked places.
        """
        if reduction not in ("mean", "none"):
            raise ValueError(f"reduction={reduction!r}; known: mean, none")
        body = self.model(input_ids, attention_mask, position_ids, token_type_ids, inputs_embeds, **kwargs)
        hidden = body.last_hidden_state
        logits = loss = None
        group = kwargs.pop("sequence_group", None)
        if group is not None and labels is not None and kwargs.get("num_items_in_batch") is None:
            kwargs["num_items_in_batch"] = sharding.count_labels(group, labels)
        if labels is None or not (self.config.sparse_prediction or reduction == "none"):
            logits = self.lm_head(hidden)
            if labels is not None:
                loss = self._mean(logits, labels, **kwargs)
        else:
            counted = labels != IGNORE
            scores, wanted = self.lm_head(hidden[counted]), labels[counted]
            if reduction == "none":
                losses = F.cross_entropy(scores.float(), wanted, reduction="none")
                loss = losses.new_zeros(labels.shape).masked_scatter(counted, losses)
            else:
                loss = self._mean(scores, wanted, **kwargs)
        return MaskedLMOutput(loss=loss, logits=logits, hidden_states=body.hidden_states)  # pyright: ignore[reportArgumentType]

    def _mean(self, scores: Tensor, labels: Tensor, **kwargs: Any) -> Tensor:
        return self.loss_function(
            logits=scores, labels=labels.contiguous(), vocab_size=self.config.vocab_size, **kwargs
        )
