"""Classes of images: patches, or single pixels, as the tokens of the one transformer."""

from typing import Any, ClassVar

from torch import Tensor
from transformers.modeling_outputs import ImageClassifierOutput
from transformers.utils.generic import can_return_tuple

from cosformer.models.classification import pooled, refuse_first_of_decoder
from cosformer.models.config import CosformerConfig
from cosformer.models.pooling import Classifier
from cosformer.models.pretrained import CosformerPreTrainedModel
from cosformer.models.transformer import CosformerModel


class CosformerForImageClassification(CosformerPreTrainedModel):
    """The transformer over an image's patches, one pooled vector, and class scores."""

    main_input_name = "pixel_values"
    input_modalities: ClassVar[Any] = ("image",)

    def __init__(self, config: CosformerConfig) -> None:
        super().__init__(config)
        refuse_first_of_decoder(config)
        if config.image_size is None or config.image_size % config.patch_size:
            raise ValueError(
                f"image_size={config.image_size} and patch_size={config.patch_size}: give an image_size that is a multiple of"
                " patch_size"
            )
        patches = (config.image_size // config.patch_size) ** 2 + config.cls_token
        if patches > config.max_position_embeddings:
            raise ValueError(f"{patches} positions exceed max_position_embeddings={config.max_position_embeddings}")
        self.model = CosformerModel(config)
        self.classifier = Classifier(config, config.hidden_size)
        self.post_init()

    @can_return_tuple
    def forward(
        self, pixel_values: Tensor | None = None, labels: Tensor | None = None, **kwargs: Any
    ) -> ImageClassifierOutput:
        """``pixel_values [B, channels, height, width]``; ``labels`` as for a sequence."""
        if pixel_values is None:
            raise ValueError("give pixel_values [batch, channels, height, width]")
        body = self.model(pixel_values=pixel_values, use_cache=False, **kwargs)
        logits = self.classifier(pooled(self.config, body.last_hidden_state, None))
        loss = None
        if labels is not None:
            loss = self.loss_function(labels=labels, pooled_logits=logits, config=self.config, **kwargs)
        return ImageClassifierOutput(loss=loss, logits=logits, hidden_states=body.hidden_states)
