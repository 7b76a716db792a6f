"""The best of several continuations, each read with the question."""

from typing import Any

import torch.nn.functional as F
from torch import Tensor
from transformers.modeling_outputs import MultipleChoiceModelOutput
from transformers.utils.generic import can_return_tuple

from cosformer.models import sharding
from cosformer.models.classification import pooled, refuse_first_of_decoder
from cosformer.models.config import CosformerConfig
from cosformer.models.pooling import Classifier
from cosformer.models.pretrained import CosformerPreTrainedModel
from cosformer.models.transformer import CosformerModel


class CosformerForMultipleChoice(CosformerPreTrainedModel):
    """The transformer reads each choice alone; one score each, and a softmax over the choices."""

    def __init__(self, config: CosformerConfig) -> None:
        super().__init__(config)
        refuse_first_of_decoder(config)
        self.model = CosformerModel(config)
        self.classifier = Classifier(config, config.hidden_size, outputs=1)
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
    ) -> MultipleChoiceModelOutput:
        """Everything ``[B, choices, N]``; ``labels [B]`` are the numbers of the right choices."""
        given = input_ids if inputs_embeds is None else inputs_embeds
        if given is None or given.dim() < 3:
            raise ValueError("multiple choice takes [batch, choices, length]; give input_ids or inputs_embeds")
        choices = given.shape[1]
        sharding.refuse(self, kwargs)
        flat = [
            None if x is None else x.flatten(0, 1) for x in (input_ids, attention_mask, position_ids, token_type_ids)
        ]
        body = self.model(
            input_ids=flat[0],
            attention_mask=flat[1],
            position_ids=flat[2],
            token_type_ids=flat[3],
            inputs_embeds=None if inputs_embeds is None else inputs_embeds.flatten(0, 1),
            use_cache=False,
            **kwargs,
        )
        logits = self.classifier(pooled(self.config, body.last_hidden_state, flat[1])).view(-1, choices)
        loss = None if labels is None else F.cross_entropy(logits, labels.to(logits.device))
        return MultipleChoiceModelOutput(
            loss=loss,  # pyright: ignore[reportArgumentType]
            logits=logits,
            hidden_states=body.hidden_states,
        )
