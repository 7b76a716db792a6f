"""Classes of single tokens, and the span that answers a question."""

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from transformers.modeling_outputs import QuestionAnsweringModelOutput, TokenClassifierOutput
from transformers.utils.generic import can_return_tuple

from cosformer.models import sharding
from cosformer.models.config import IGNORE, CosformerConfig
from cosformer.models.pretrained import CosformerPreTrainedModel
from cosformer.models.transformer import CosformerModel


class CosformerForTokenClassification(CosformerPreTrainedModel):
    """The transformer and class scores of every token."""

    def __init__(self, config: CosformerConfig) -> None:
        super().__init__(config)
        _refuse_cls(config)
        self.model = CosformerModel(config)
        self.dropout = nn.Dropout(config.classifier_dropout)
        self.scores = nn.Linear(config.hidden_size, config.num_labels or 2)
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
    ) -> TokenClassifierOutput:
        """``labels [B,N]``: class numbers, -100 where none counts."""
        sharding.refuse(self, kwargs)
        body = self.model(
            input_ids, attention_mask, position_ids, token_type_ids, inputs_embeds, use_cache=False, **kwargs
        )
        logits = self.scores(self.dropout(body.last_hidden_state))
        loss = None if labels is None else self.loss_function(logits, labels, self.config, **kwargs)
        return TokenClassifierOutput(loss=loss, logits=logits, hidden_states=body.hidden_states)


class CosformerForQuestionAnswering(CosformerPreTrainedModel):
    """The transformer, and for every token the scores of being the first and the last of the answer."""

    def __init__(self, config: CosformerConfig) -> None:
        super().__init__(config)
        _refuse_cls(config)
        self.model = CosformerModel(config)
        self.ends = nn.Linear(config.hidden_size, 2)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        **kwargs: Any,
    ) -> QuestionAnsweringModelOutput:
        """``start_positions`` and ``end_positions [B]``; those outside the sequence do not count."""
        sharding.refuse(self, kwargs)
        body = self.model(
            input_ids, attention_mask, position_ids, token_type_ids, inputs_embeds, use_cache=False, **kwargs
        )
        start, end = self.ends(body.last_hidden_state).unbind(-1)
        loss = None
        if (start_positions is None) != (end_positions is None):
            raise ValueError("give start_positions and end_positions, or neither")
        if start_positions is not None and end_positions is not None:
            loss = (_span_loss(start, start_positions) + _span_loss(end, end_positions)) / 2
        return QuestionAnsweringModelOutput(
            loss=loss,  # pyright: ignore[reportArgumentType]
            start_logits=start,
            end_logits=end,
            hidden_states=body.hidden_states,
        )


def _span_loss(scores: Tensor, wanted: Tensor) -> Tensor:
    wanted = wanted.view(-1).to(scores.device)
    inside = (wanted >= 0) & (wanted < scores.shape[1])
    return F.cross_entropy(scores, wanted.masked_fill(~inside, IGNORE), ignore_index=IGNORE)


def _refuse_cls(config: CosformerConfig) -> None:
    if config.cls_token:
        raise ValueError("cls_token=True puts a vector before the tokens, which are classified here; leave it out")
