"""Classification of sequences, pairs and images from one pooled vector, and multiple choice."""

import itertools
from collections.abc import Callable
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel
from transformers.modeling_outputs import ImageClassifierOutput, MultipleChoiceModelOutput, SequenceClassifierOutput
from transformers.utils.generic import can_return_tuple

from cosformer.models import sharding
from cosformer.models.config import CosformerConfig
from cosformer.models.embeddings import with_cls
from cosformer.models.pretrained import CosformerPreTrainedModel
from cosformer.models.transformer import CosformerModel
from cosformer.nn.feed_forward import activation


def first(hidden: Tensor, mask: Tensor | None) -> Tensor:
    """[B,N,C] -> [B,C]: the first position, or the first unmasked one under left padding."""
    if mask is None:
        return hidden[:, 0]
    return hidden[torch.arange(hidden.shape[0], device=hidden.device), mask.to(torch.int8).argmax(dim=1)]


def mean(hidden: Tensor, mask: Tensor | None) -> Tensor:
    """[B,N,C] -> [B,C]: the mean of the unmasked positions; zeros if there is none."""
    if mask is None:
        return hidden.mean(1)
    weights = mask.to(hidden.dtype).unsqueeze(-1)
    return (hidden * weights).sum(1) / weights.sum(1).clamp(min=1)


def mean_all(hidden: Tensor, mask: Tensor | None) -> Tensor:
    """[B,N,C] -> [B,C]: the mean of all positions, padding included, as Long Range Arena does."""
    return hidden.mean(1)


POOL: dict[str, Callable[[Tensor, Tensor | None], Tensor]] = {"first": first, "mean": mean, "mean_all": mean_all}


class Classifier(nn.Module):
    """Dropout, linear and activation per hidden size, then dropout and a linear map to ``outputs`` logits."""

    def __init__(self, config: CosformerConfig, in_size: int, outputs: int | None = None) -> None:
        super().__init__()
        sizes = [config.hidden_size] if config.classifier_sizes is None else config.classifier_sizes
        widths = [in_size, *sizes]
        self.hidden = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(widths))
        self.scores = nn.Linear(widths[-1], outputs or config.num_labels or 2)
        self.dropout = nn.Dropout(config.classifier_dropout)
        self.act = activation(config.classifier_act)

    def forward(self, x: Tensor) -> Tensor:
        """[B,in_size] -> [B,num_labels]"""
        for layer in self.hidden:
            x = self.act(layer(self.dropout(x)))
        return self.scores(self.dropout(x))


def stock_body(encoder: dict[str, Any]) -> nn.Module:
    """The encoder of transformers with the config ``encoder``, without its pooler, as our heads pool themselves."""
    body = AutoModel.from_config(AutoConfig.for_model(**encoder))
    body.pooler = None
    return body


class PooledModel(CosformerPreTrainedModel):
    """Base of the heads here: the transformer, a pooled vector, and logits from ``vectors`` of them."""

    def __init__(self, config: CosformerConfig, *, vectors: int = 1, outputs: int | None = None) -> None:
        super().__init__(config)
        if config.is_decoder and config.pooling == "first":
            raise ValueError(
                "pooling='first' of a left-to-right model has seen one token only; use pooling='mean', or "
                "is_decoder=False"
            )
        self.model = CosformerModel(config) if config.encoder is None else stock_body(config.encoder)
        self.classifier = Classifier(config, vectors * config.hidden_size, outputs)
        self.post_init()

    def pooled(self, hidden: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """One vector per sequence, ``[B,C]``, as ``config.pooling`` says."""
        mask = None if attention_mask is None else attention_mask.to(hidden.device) != 0
        return POOL[self.config.pooling](hidden, with_cls(mask) if self.config.cls_token else mask)

    def in_units(self, scores: Tensor) -> Tensor:
        """Class scores as they are; numbers in the units of the labels."""
        scale, mean = self.config.target_scale, self.config.target_mean
        return scores if (scale, mean) == (1, 0) else scores * scale + mean

    def loss(self, logits: Tensor, labels: Tensor, **kwargs: Any) -> Any:
        """Of scores before :meth:`in_units`, with class numbers ``[B]``, several true classes ``[B,num_labels]`` or
        numbers for labels, as ``config.problem_type`` says; without it one label is a number, and labels that are no
        integers are several classes."""
        kind, divisor = self.config.problem_type, kwargs.get("num_items_in_batch")
        if kind is None:
            many = "multi_label_classification" if labels.is_floating_point() else "single_label_classification"
            kind = "regression" if self.config.num_labels == 1 else many
        if kind == "single_label_classification":
            loss = F.cross_entropy(
                logits.float(), labels.to(logits.device), reduction="mean" if divisor is None else "sum"
            )
            return loss if divisor is None else loss / divisor
        labels = labels.to(logits.device, torch.float32).view_as(logits)
        if kind == "regression":
            losses = (logits.float() - (labels - self.config.target_mean) / self.config.target_scale).square()
        else:
            losses = F.binary_cross_entropy_with_logits(logits.float(), labels, reduction="none")
        return losses.mean() if divisor is None else losses.sum() / divisor


class CosformerForSequenceClassification(PooledModel):
    """The transformer, one pooled vector, and class scores."""

    # of the config alone: from_pretrained hands keywords it does not know to the constructor
    def __init__(self, config: CosformerConfig) -> None:
        super().__init__(config)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        input_values: Tensor | None = None,
        labels: Tensor | None = None,
        **kwargs: Any,
    ) -> SequenceClassifierOutput:
        """One of ``input_ids [B,N]``, ``inputs_embeds [B,N,C]`` or, with ``num_input_channels`` in the config,
        ``input_values [B,N,channels]``. ``labels``: class numbers ``[B]``, or numbers to regress to, or
        ``[B,num_labels]`` of several true classes."""
        sharding.refuse(self, kwargs)
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask, "position_ids": position_ids}
        inputs |= {"token_type_ids": token_type_ids, "inputs_embeds": inputs_embeds, "input_values": input_values}
        given = {name: value for name, value in inputs.items() if value is not None}
        body = self.model(**given, use_cache=False, **kwargs)
        scores = self.classifier(self.pooled(body.last_hidden_state, attention_mask))
        loss = None if labels is None else self.loss(scores, labels, **kwargs)
        return SequenceClassifierOutput(loss=loss, logits=self.in_units(scores), hidden_states=body.hidden_states)  # pyright: ignore[reportArgumentType]


class CosformerForPairClassification(PooledModel):
    """Two documents through a shared encoder; their vectors are combined as ``config.pairing`` says."""

    def __init__(self, config: CosformerConfig) -> None:
        super().__init__(config, vectors=4 if config.pairing == "four" else 2)

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
        """Documents ``[B,N]`` and ``[B,N']`` with their masks; ``labels [B]`` are class numbers or real targets."""
        unknown = kwargs.keys() - {"num_items_in_batch", "return_dict"}
        if unknown:
            raise TypeError(f"{type(self).__name__} has no argument {', '.join(sorted(unknown))}")
        a = self.encode(input_ids, attention_mask)
        b = self.encode(input_ids_b, attention_mask_b)
        both = (a, b, a * b, a - b) if self.config.pairing == "four" else (a, b)
        scores = self.classifier(torch.cat(both, dim=-1))
        told = {"num_items_in_batch": kwargs.get("num_items_in_batch")}
        loss = None if labels is None else self.loss(scores, labels, **told)
        return SequenceClassifierOutput(loss=loss, logits=self.in_units(scores))  # pyright: ignore[reportArgumentType]

    def encode(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """One document's vector, ``[B,C]``."""
        body = self.model(input_ids=input_ids, attention_mask=attention_mask, use_cache=False)
        return self.pooled(body.last_hidden_state, attention_mask)


class CosformerForMultipleChoice(PooledModel):
    """The transformer reads each choice alone, with the question; one score each, and a softmax over the choices."""

    def __init__(self, config: CosformerConfig) -> None:
        super().__init__(config, outputs=1)

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
        sharding.refuse(self, kwargs)
        rows = [
            None if x is None else x.flatten(0, 1)
            for x in (input_ids, attention_mask, position_ids, token_type_ids, inputs_embeds)
        ]
        body = self.model(*rows, use_cache=False, **kwargs)
        logits = self.classifier(self.pooled(body.last_hidden_state, rows[1])).view(-1, given.shape[1])
        loss = None if labels is None else F.cross_entropy(logits, labels.to(logits.device))
        return MultipleChoiceModelOutput(
            loss=loss,  # pyright: ignore[reportArgumentType]
            logits=logits,
            hidden_states=body.hidden_states,
        )


class CosformerForImageClassification(PooledModel):
    """The transformer over an image's patches, or single pixels, one pooled vector, and class scores."""

    main_input_name = "pixel_values"
    input_modalities: ClassVar[Any] = ("image",)

    def __init__(self, config: CosformerConfig) -> None:
        if config.image_size is None or config.image_size % config.patch_size:
            raise ValueError(
                f"image_size={config.image_size} and patch_size={config.patch_size}: give an image_size that is a "
                "multiple of patch_size"
            )
        patches = (config.image_size // config.patch_size) ** 2 + config.cls_token
        if patches > config.max_position_embeddings:
            raise ValueError(f"{patches} positions exceed max_position_embeddings={config.max_position_embeddings}")
        super().__init__(config)

    @can_return_tuple
    def forward(
        self, pixel_values: Tensor | None = None, labels: Tensor | None = None, **kwargs: Any
    ) -> ImageClassifierOutput:
        """``pixel_values [B, channels, height, width]``; ``labels`` as for a sequence."""
        if pixel_values is None:
            raise ValueError("give pixel_values [batch, channels, height, width]")
        body = self.model(pixel_values=pixel_values, use_cache=False, **kwargs)
        logits = self.classifier(self.pooled(body.last_hidden_state))
        loss = None
        if labels is not None:
            loss = self.loss_function(labels=labels, pooled_logits=logits, config=self.config, **kwargs)
        return ImageClassifierOutput(loss=loss, logits=logits, hidden_states=body.hidden_states)
