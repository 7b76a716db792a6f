"""Tag the words of a JSON lines file (lists words and tags) with a byte-level encoder: python tag_words.py FILE"""

import sys

from datasets import load_dataset
from transformers import DataCollatorForTokenClassification, Trainer, TrainingArguments

from cosformer.data.vocabulary import Bytes
from cosformer.hf import CosformerConfig, CosformerForTokenClassification
from cosformer.train.vocabulary import as_transformers

path, steps = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1_000
tokenizer = as_transformers(Bytes(special=True), "tag", max_len=512)

data = load_dataset("json", data_files=path, split="train")
names = sorted({tag for tags in data["tags"] for tag in tags})


def encode(row: dict) -> dict:
    """A word's tag is that of its first byte; -100 is not scored."""
    ids, labels = [tokenizer.bos_token_id], [-100]
    for word, tag in zip(row["words"], row["tags"], strict=True):
        pieces = (
            tokenizer(word, add_special_tokens=False)["input_ids"]
            + tokenizer(" ", add_special_tokens=False)["input_ids"]
        )
        ids += pieces
        labels += [names.index(tag)] + [-100] * (len(pieces) - 1)
    return {"input_ids": ids[:512], "labels": labels[:512]}


data = data.map(encode, remove_columns=data.column_names).train_test_split(0.2, seed=0)
config = CosformerConfig(
    vocab_size=len(tokenizer),
    hidden_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=512,
    max_position_embeddings=512,
    position_embedding_type="sinusoidal",
    pad_token_id=tokenizer.pad_token_id,
    id2label=dict(enumerate(names)),
    label2id={name: i for i, name in enumerate(names)},
)
trainer = Trainer(
    CosformerForTokenClassification(config),
    TrainingArguments("tagger", max_steps=steps, learning_rate=1e-3, per_device_train_batch_size=16, report_to=[]),
    train_dataset=data["train"],
    eval_dataset=data["test"],
    data_collator=DataCollatorForTokenClassification(tokenizer),
    processing_class=tokenizer,
)
trainer.train()
print(trainer.evaluate())
trainer.save_model()
