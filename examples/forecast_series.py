"""Forecast real-valued series, an array [rows, steps, channels] of numpy: python forecast_series.py sensor.npy"""

import sys

import numpy as np
import torch
from transformers import Trainer, TrainingArguments, default_data_collator

from cosformer.hf import CosformerConfig, CosformerForForecasting

path, steps = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1_000
series = torch.tensor(np.load(path), dtype=torch.float32)
held_out = series.shape[1] // 5  # the last steps of every series
known = series[:, :-held_out]

config = CosformerConfig(
    num_input_channels=series.shape[2],
    channel_mean=known.mean((0, 1)).tolist(),
    channel_scale=known.std((0, 1)).clamp(min=1e-6).tolist(),
    vocab_size=1,
    hidden_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=512,
    max_position_embeddings=series.shape[1],
    position_embedding_type="sinusoidal",
    is_decoder=True,
    hidden_dropout_prob=0.0,
)
trainer = Trainer(
    CosformerForForecasting(config),
    TrainingArguments("forecaster", max_steps=steps, learning_rate=1e-3, per_device_train_batch_size=16, report_to=[]),
    train_dataset=[{"input_values": row, "labels": row} for row in known],
    data_collator=default_data_collator,
)
trainer.train()
model = trainer.model.cpu().eval()
found, true = model.forecast(known, held_out), series[:, -held_out:]
print(
    f"mean absolute error {(found - true).abs().mean():.4f}, of the last value "
    f"{(known[:, -1:] - true).abs().mean():.4f}"
)
trainer.save_model()
