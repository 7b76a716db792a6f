"""Classification of a sequence, and of a pair of documents by a dual encoder."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.modeling_outputs import SequenceClassifierOutput
from transformers.utils.generic import can_return_tuple

from cosformer.models import sharding
from cosformer.models.config import CosformerConfig
from cosformer.models.embeddings import with_cls
from cosformer.models.pooling import POOL, Classifier
from cosformer.models.pretrained import CosformerPreTrainedModel
from cosformer.models.transformer import CosformerModel


def pooled(config: CosformerConfig, hidden: Tensor, attention_mask: Tensor | None) -> Tensor:
    """One vector per sequence, ``[B,C]``, as ``config.pooling`` says."""
    mask = None if attention_mask is None else attention_mask.to(hidden.device) != 0
    return POOL[config.pooling](hidden, with_cls(mask) if config.cls_token else mask)


class CosformerForSequenceClassification(CosformerPreTrainedModel):
    """The transformer, one pooled vector, and class scores."""

    def __init__(self, config: CosformerConfig) -> None:
        super().__init__(config)
        refuse_first_of_decoder(config)
        self.model = CosformerModel(config)
        self.classifier = Classifier(config, config.hidden_size)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        **kwargs: Any,
    ) -> SequenceClassifierOutput:
        """``labels``: class numbers ``[B]``, or numbers to regress to, or ``[B,num_labels]`` of several true classes."""
        sharding.refuse(self, kwargs)
        body = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            token_type_ids=token_type_ids,
            inputs_embeds=inputs_embeds,
            use_cache=False,
            **kwargs,
        )
        logits = self.classifier(pooled(self.config, body.last_hidden_state, attention_mask))
        loss = None
        if labels is not None:
            loss = self.loss_function(labels=labels, pooled_logits=logits, config=self.config, **kwargs)
        return SequenceClassifierOutput(loss=loss, logits=logits, hidden_states=body.hidden_states)


class CosformerForPairClassification(CosformerPreTrainedModel):
    """Two documents through one shared encoder; their vectors a, b meet in the classifier as ``config.pairing`` says."""

    def __init__(self, config: CosformerConfig) -> None:
        super().__init__(config)
        refuse_first_of_decoder(config)
        self.model = CosformerModel(config)
        self.classifier = Classifier(config, config.hidden_size * (4 if config.pairing == "four" else 2))
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor,
        input_ids_b: Tensor,
        attention_mask: Tensor | None = None,
        attention_mask_b: Tensor | None = None,
        labels: Tensor | None = None,
        **kwargs: Any,
    ) -> SequenceClassifierOutput:
        """Documents ``[B,N]`` and ``[B,N']`` with their masks; ``labels [B]`` are class numbers."""
        unknown = kwargs.keys() - {"num_items_in_batch", "return_dict"}
        if unknown:
            raise TypeError(f"{type(self).__name__} has no argument {', '.join(sorted(unknown))}")
        a = self.encode(input_ids, attention_mask)
        b = self.encode(input_ids_b, attention_mask_b)
        both = (a, b, a * b, a - b) if self.config.pairing == "four" else (a, b)
        logits = self.classifier(torch.cat(both, dim=-1))
        loss = None
        if labels is not None:
            divisor = kwargs.get("num_items_in_batch")
            loss = F.cross_entropy(logits, labels, reduction="mean" if divisor is None else "sum")
            loss = loss if divisor is None else loss / divisor
        return SequenceClassifierOutput(loss=loss, logits=logits)  # pyright: ignore[reportArgumentType]

    def encode(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """One document's vector, ``[B,C]``."""
        body = self.model(input_ids=input_ids, attention_mask=attention_mask, use_cache=False)
        return pooled(self.config, body.last_hidden_state, attention_mask)


def refuse_first_of_decoder(config: CosformerConfig) -> None:
    """Raise where the pooled position cannot have seen the sequence."""
    if config.is_decoder and config.pooling == "first":
        raise ValueError(
            "pooling='first' of a left-to-right model has seen one token only; use pooling='mean', or is_decoder=False"
        )
