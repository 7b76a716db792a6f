"""Left-to-right language model, with ``generate``."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.generation import GenerationMixin
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils.generic import can_return_tuple

from cosformer.models import packing, sharding
from cosformer.models.adaptive import AdaptiveEmbedding, AdaptiveSoftmax
from cosformer.models.config import IGNORE, CosformerConfig
from cosformer.models.pretrained import CosformerPreTrainedModel
from cosformer.models.state_cache import StateCache, StateGeneration
from cosformer.models.transformer import CosformerModel
from cosformer.nn.projection import project


class CosformerForCausalLM(CosformerPreTrainedModel, StateGeneration, GenerationMixin):  # pyright: ignore[reportIncompatibleMethodOverride]
    """The transformer with a softmax over the vocabulary: plain and tied to the embeddings, or adaptive.

    With adaptive bands, ``logits`` are log-probabilities and are left out (None) when ``labels`` are given: the loss
    needs only the bands that the targets are in. With ``reduction="none"`` they are left out too.
    """

    _tied_weights_keys = {"lm_head.weight": "model.embeddings.tokens.weight"}  # noqa: RUF012

    def __init__(self, config: CosformerConfig) -> None:
        super().__init__(config)
        if not config.is_decoder:
            raise ValueError("a causal language model needs is_decoder=True in its config; this one is an encoder's")
        self.model = CosformerModel(config)
        self.lm_head: nn.Module
        if config.adaptive_cutoffs is None:
            self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        else:
            self._tied_weights_keys = {}  # the adaptive head has no word weights of its own
            tails = len(config.adaptive_cutoffs)
            self.lm_head = AdaptiveSoftmax(config.hidden_size, tails, dropout=config.adaptive_dropout)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        past_key_values: StateCache | None = None,
        labels: Tensor | None = None,
        reduction: str = "mean",
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """``labels [B,N]`` are the ids themselves (shifted here), -100 where none counts. The keyword ``shift_labels
        [B,N]``, if given, goes before them: the ids that follow each position. ``reduction="none"`` gives the loss of
        each position, ``[B,N]``, 0 where none counts. With ``sequence_group`` the loss is this rank's share: those of
        all ranks add up to the mean over all tokens.
        """
        if reduction not in ("mean", "none"):
            raise ValueError(f"reduction={reduction!r}; known: mean, none")
        # no named argument: the Trainer takes each one with "label" in its name for required
        targets, group = kwargs.pop("shift_labels", None), kwargs.get("sequence_group")
        if targets is None and labels is not None and group is None:
            targets = F.pad(labels[:, 1:], (0, 1), value=IGNORE)
            if attention_mask is None or bool(attention_mask.all()):
                bounds = packing.find_bounds(kwargs, position_ids, *labels.shape)
                targets = targets if bounds is None else packing.without_crossings(targets, bounds)
        body = self.model(
            input_ids, attention_mask, position_ids, token_type_ids, inputs_embeds, past_key_values, use_cache, **kwargs
        )
        hidden = body.last_hidden_state
        loss = logits = None
        if group is not None:
            if targets is None and labels is not None:
                targets = sharding.shifted(group, labels, kwargs.get("cu_seq_lens_q"))
            if targets is not None and kwargs.get("num_items_in_batch") is None:
                kwargs["num_items_in_batch"] = sharding.count_labels(group, targets)
        if isinstance(self.lm_head, AdaptiveSoftmax):
            words = self.model.embeddings.tokens
            assert isinstance(words, AdaptiveEmbedding)
            if targets is None:
                logits = self.lm_head.log_prob(_keep(hidden, logits_to_keep), words)
            elif reduction == "none":
                loss = self.lm_head.losses(hidden, targets, words)
            else:
                total, count = self.lm_head.loss(hidden, targets, words)
                divisor = kwargs.get("num_items_in_batch")
                loss = total / (count if divisor is None else divisor)
        elif targets is not None and reduction == "none":
            loss = self._losses(hidden, targets)
        else:
            logits = project(self.lm_head, _keep(hidden, logits_to_keep))
            if targets is not None:
                if isinstance(logits_to_keep, Tensor) or logits_to_keep:
                    raise ValueError("labels need every position's logits; call without logits_to_keep")
                loss = self.loss_function(
                    logits=logits,
                    labels=labels,
                    shift_labels=targets.contiguous(),
                    vocab_size=self.config.vocab_size,
                    ignore_index=IGNORE,
                    **kwargs,
                )
        return CausalLMOutputWithPast(
            loss=loss,  # pyright: ignore[reportArgumentType]
            logits=logits,  # pyright: ignore[reportArgumentType]
            past_key_values=body.past_key_values,
            hidden_states=body.hidden_states,
        )

    def _losses(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """-log p of each target, ``[B,N]``, one row at a time: the logits of a batch would not fit in memory."""
        losses = torch.zeros(targets.shape, device=hidden.device)
        for row, (states, wanted) in enumerate(zip(hidden, targets, strict=True)):
            counted = wanted != IGNORE
            scores = self.lm_head(states[counted]).float()
            losses[row, counted] = F.cross_entropy(scores, wanted[counted], reduction="none")
        return losses


def _keep(hidden: Tensor, logits_to_keep: int | Tensor) -> Tensor:
    """The positions whose logits are wanted: the last few, or those given, or all (0)."""
    if isinstance(logits_to_keep, Tensor):
        return hidden[:, logits_to_keep]
    return hidden[:, -logits_to_keep:] if logits_to_keep else hidden
