"""Give a pretrained encoder (BERT and its kin) cosFormer attention and fine-tune it on a CSV file with the columns text
and label: python encoder_made_linear.py MODEL reviews.csv"""

import sys
from pathlib import Path

from datasets import load_dataset
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
)

from cosformer.hf import convert

source, path, steps = sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 1_000
linear = Path("linear-encoder")
if not linear.exists():
    print("\n".join(convert(source, linear)))  # every weight is kept; fine-tuning gets it used to the new attention

tokenizer = AutoTokenizer.from_pretrained(linear)
data = load_dataset("csv", data_files=path, split="train").class_encode_column("label")
names = data.features["label"].names
model = AutoModelForSequenceClassification.from_pretrained(
    linear, num_labels=len(names), id2label=dict(enumerate(names))
)
most = model.config.max_position_embeddings
data = data.map(lambda row: tokenizer(row["text"], truncation=True, max_length=most), remove_columns=["text"])
data = data.train_test_split(0.2, seed=0, stratify_by_column="label")

trainer = Trainer(
    model,
    TrainingArguments("tuned", max_steps=steps, learning_rate=1e-4, per_device_train_batch_size=16, report_to=[]),
    train_dataset=data["train"],
    eval_dataset=data["test"],
    data_collator=DataCollatorWithPadding(tokenizer),
    processing_class=tokenizer,
    compute_metrics=lambda found: {"accuracy": float((found.predictions.argmax(-1) == found.label_ids).mean())},
)
trainer.train()
print(trainer.evaluate())
trainer.save_model()
