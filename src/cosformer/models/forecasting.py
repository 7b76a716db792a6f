"""Forecasting of real-valued series: the next step from the past; further steps one at a time from the state."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils.generic import can_return_tuple

from cosformer.models import sharding
from cosformer.models.config import CosformerConfig
from cosformer.models.embeddings import Readings
from cosformer.models.pretrained import CosformerPreTrainedModel
from cosformer.models.state_cache import StateCache
from cosformer.models.transformer import CosformerModel


class CosformerForForecasting(CosformerPreTrainedModel):
    """The transformer over a series of readings, and a linear map to the change from each step to the next.

    The map starts at zero, so an untrained model forecasts the last value. ``logits [B,N,channels]`` are the forecasts
    of the step after each position, in the units of the input.
    """

    main_input_name = "input_values"
    accepts_loss_kwargs = False  # the loss is a mean: the Trainer divides by the number of accumulated batches

    def __init__(self, config: CosformerConfig) -> None:
        super().__init__(config)
        if config.num_input_channels is None or not config.is_decoder:
            raise ValueError(
                f"forecasting needs num_input_channels and is_decoder=True in its config, which has num_input_channels="
                f"{config.num_input_channels} and is_decoder={config.is_decoder}"
            )
        self.model = CosformerModel(config)
        self.change = nn.Linear(config.hidden_size, config.num_input_channels)
        self.post_init()

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if module is self.change and not getattr(module.weight, "_is_hf_initialized", False):
            self.change.weight.zero_()

    @can_return_tuple
    def forward(
        self,
        input_values: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: StateCache | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """``labels [B,N,channels]`` are the readings themselves (shifted here); NaN where none counts. The loss is the
        smooth L1 distance in units of ``channel_scale``."""
        sharding.refuse(self, kwargs)
        body = self.model(
            input_values=input_values,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            use_cache=use_cache if labels is None else False,
            **kwargs,
        )
        readings = self._readings
        scaled = readings.standardized(input_values) + self.change(body.last_hidden_state).float()
        loss = None
        if labels is not None:
            targets = readings.standardized(labels.to(scaled.device)[:, 1:])
            counted = targets.isfinite()
            distances = F.smooth_l1_loss(
                scaled[:, :-1], targets.where(counted, scaled[:, :-1].detach()), reduction="sum"
            )
            loss = distances / counted.sum().clamp(min=1)
        return CausalLMOutputWithPast(
            loss=loss,  # pyright: ignore[reportArgumentType]
            logits=readings.in_units(scaled),  # pyright: ignore[reportArgumentType]
            past_key_values=body.past_key_values,
            hidden_states=body.hidden_states,
        )

    @torch.no_grad()
    def forecast(self, input_values: Tensor, steps: int, attention_mask: Tensor | None = None) -> Tensor:
        """The next ``steps`` readings, ``[B,steps,channels]``, each from those before it and the forecasts so far.

        Only the state and the last reading are kept, so a step costs the same after any number of steps. Shorter series
        are padded on the left, with ``attention_mask [B,N]`` 0 there.
        """
        if steps < 1:
            raise ValueError(f"steps={steps}; it must be at least 1")
        if attention_mask is not None and not bool(attention_mask[:, -1].all()):
            raise ValueError("forecast starts after the last position; pad shorter series on the left")
        most, length = self.config.max_position_embeddings, input_values.shape[1]
        if length + steps - 1 > most:
            raise ValueError(
                f"{length} readings and {steps} steps exceed max_len={most} (max_position_embeddings); give the last"
                f" {most - steps + 1} readings, or forecast fewer steps"
            )
        streaming, values, past = self.model.streaming, input_values, None
        found: list[Tensor] = []
        for _ in range(steps):
            out = self(values, attention_mask, past_key_values=past, use_cache=streaming)
            past, following = out.past_key_values, out.logits[:, -1:]
            found.append(following)
            values = following if streaming else torch.cat((values, following), dim=1)
            if attention_mask is not None:
                attention_mask = F.pad(attention_mask, (0, 1), value=1)
        return torch.cat(found, dim=1)

    @property
    def _readings(self) -> Readings:
        return self.model.embeddings.tokens  # pyright: ignore[reportReturnType]
