"""The model card written next to saved weights."""

from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard, ModelCardData

from cosformer._version import __version__
from cosformer.models.config import AUTO_CLASSES

UNSTATED = "Data, training and evaluation: not stated. Fill this in before sharing the model."


def model_card(title: str, body: str, auto_class: str, tag: str, missing: str = UNSTATED) -> ModelCard:
    """A card with our metadata, ``body``, how the model is loaded, and what is ``missing`` in it."""
    data = ModelCardData(library_name="transformers", tags=["cosformer", tag])
    return ModelCard(
        f"""---
{data.to_yaml()}
---
# {title}

{body}

Load it with the `cosformer` package installed (`pip install 'cosformer[hf]'`):

```python
import cosformer.hf
from transformers import {auto_class}

model = {auto_class}.from_pretrained("PATH")
```

{missing}
"""
    )


def write_card(directory: Path, model_class: str, config: Any, parameters: int) -> None:
    """Write ``README.md`` about a saved model; a README that is there already stays."""
    path = directory / "README.md"
    if path.exists() or not directory.is_dir():
        return
    attention = config.attention if isinstance(config.attention, str) else ", ".join(config.attention)
    kind = "left to right" if config.is_decoder else "encoder-decoder" if config.is_encoder_decoder else "bidirectional"
    rows = {
        "class": f"`{model_class}`",
        "attention": f"`{attention}`",
        "attention options": f"`{config.attention_options}`" if config.attention_options else "defaults",
        "direction": kind,
        "layers / width / heads / feed-forward": (
            f"{config.num_hidden_layers} / {config.hidden_size} / {config.num_attention_heads} / "
            f"{config.intermediate_size}"
        ),
        "longest sequence": config.max_position_embeddings,
        "vocabulary": config.vocab_size,
        "parameters": f"{parameters:,}",
        "saved with": f"cosformer {__version__}",
    }
    table = "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())])
    title = f"A {kind} transformer with {attention} attention"
    auto_class = next((auto for auto, made in AUTO_CLASSES.items() if made == model_class), "AutoModel")
    model_card(title, table, auto_class, "linear-attention").save(path)
