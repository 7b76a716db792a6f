"""Classify the texts of a CSV file with a byte-level cosFormer encoder: python classify_texts.py reviews.csv"""

import sys

from datasets import load_dataset
from transformers import DataCollatorWithPadding, Trainer, TrainingArguments

from cosformer.data.vocabulary import Bytes
from cosformer.hf import CosformerConfig, CosformerForSequenceClassification
from cosformer.train.vocabulary import as_transformers

path, steps = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1_000
tokenizer = as_transformers(Bytes(special=True), "classify", max_len=2_048)  # or AutoTokenizer.from_pretrained(...)

data = load_dataset("csv", data_files=path, split="train").class_encode_column("label")
names = data.features["label"].names
data = data.map(lambda row: tokenizer(row["text"], truncation=True), remove_columns=["text"])
data = data.train_test_split(0.2, seed=0, stratify_by_column="label")

config = CosformerConfig(
    vocab_size=len(tokenizer),
    hidden_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=512,
    max_position_embeddings=2_048,
    position_embedding_type="sinusoidal",
    pooling="mean",
    pad_token_id=tokenizer.pad_token_id,
    id2label=dict(enumerate(names)),
    label2id={name: i for i, name in enumerate(names)},
)
trainer = Trainer(
    CosformerForSequenceClassification(config),
    TrainingArguments("classifier", max_steps=steps, learning_rate=1e-3, per_device_train_batch_size=16, report_to=[]),
    train_dataset=data["train"],
    eval_dataset=data["test"],
    data_collator=DataCollatorWithPadding(tokenizer),
    processing_class=tokenizer,
    compute_metrics=lambda found: {"accuracy": float((found.predictions.argmax(-1) == found.label_ids).mean())},
)
trainer.train()
print(trainer.evaluate())
trainer.save_model()  # pipeline("text-classification", model="classifier") reads it, after `import cosformer.hf`
