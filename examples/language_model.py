"""Train a byte-level language model on a text file and let it write on: python language_model.py book.txt"""

import sys
from pathlib import Path

import torch
from transformers import Trainer, TrainingArguments, default_data_collator

from cosformer.data.vocabulary import Bytes
from cosformer.hf import CosformerConfig, CosformerForCausalLM
from cosformer.train.vocabulary import as_transformers

path, steps = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1_000
tokenizer = as_transformers(Bytes(special=True), "lm", max_len=1_024)

ids = torch.tensor(tokenizer(Path(path).read_text(encoding="utf-8"))["input_ids"])
length = min(512, len(ids) // 8)
blocks = [{"input_ids": block, "labels": block} for block in ids.split(length) if len(block) == length]

config = CosformerConfig(
    vocab_size=len(tokenizer),
    hidden_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=512,
    max_position_embeddings=1_024,
    position_embedding_type="sinusoidal",
    is_decoder=True,
    pad_token_id=tokenizer.pad_token_id,
    eos_token_id=tokenizer.eos_token_id,
)
trainer = Trainer(
    CosformerForCausalLM(config),
    TrainingArguments(
        "language_model", max_steps=steps, learning_rate=2e-3, per_device_train_batch_size=8, report_to=[]
    ),
    train_dataset=blocks[:-1],
    eval_dataset=blocks[-1:],
    data_collator=default_data_collator,
    processing_class=tokenizer,
)
trainer.train()
print(trainer.evaluate())
prompt = tokenizer("The ", return_tensors="pt").input_ids
written = trainer.model.cpu().generate(
    prompt, max_new_tokens=60, do_sample=True
)  # a state of constant size, no cache of keys
print(tokenizer.decode(written[0]))
trainer.save_model()
