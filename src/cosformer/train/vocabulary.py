"""A run keeps what its ids mean beside its best weights, so that it can be used without the data it was trained on."""

import json
from pathlib import Path

from transformers import PreTrainedTokenizerFast

from cosformer.data.subwords import Subwords
from cosformer.data.vocabulary import Vocabulary, vocabulary_from_json
from cosformer.experiment import load_experiment
from cosformer.tasks import build_task

VOCABULARY_FILE = "vocabulary.json"


def save_vocabulary(vocabulary: Vocabulary, folder: Path, specials: bool) -> None:
    """Write ``vocabulary`` into ``folder``; one of sub-words also as ``AutoTokenizer.from_pretrained(folder)`` wants it.

    ``specials``: that tokenizer puts a text between its start and end tokens, as the rows of the run are.
    """
    entry = vocabulary.save(folder)
    (folder / VOCABULARY_FILE).write_text(json.dumps(entry), encoding="utf-8")
    if isinstance(vocabulary, Subwords):
        as_transformers(vocabulary, specials).save_pretrained(folder)


def load_vocabulary(run: Path) -> Vocabulary:
    """The vocabulary of the run in the folder ``run``; runs that were made before it was kept there prepare their data."""
    best = run / "best"
    if (best / VOCABULARY_FILE).is_file():
        return vocabulary_from_json(json.loads((best / VOCABULARY_FILE).read_text(encoding="utf-8")), best)
    return build_task(load_experiment(run)).dataset.vocabulary


def as_transformers(vocabulary: Subwords, specials: bool) -> PreTrainedTokenizerFast:
    """The same tokenizer for transformers, its special tokens by the names that it has for them."""
    from tokenizers import Tokenizer
    from tokenizers.processors import TemplateProcessing

    ids = {"bos_token": vocabulary.bos_id, "eos_token": vocabulary.eos_id, "pad_token": vocabulary.pad_id}
    ids |= {"mask_token": vocabulary.mask_id, "unk_token": vocabulary.unk_id}
    names = {key: vocabulary.tokenizer.id_to_token(i) for key, i in ids.items() if i is not None}
    tokenizer = Tokenizer.from_str(vocabulary.tokenizer.to_str())  # a copy: the data's own stays as it is
    if specials and vocabulary.bos_id is not None and vocabulary.eos_id is not None:
        start, end = names["bos_token"], names["eos_token"]
        between = f"{end} {end}" if vocabulary.double_separator else end
        tokenizer.post_processor = TemplateProcessing(
            single=f"{start} $A {end}",
            pair=f"{start} $A {between} $B {end}",
            special_tokens=[(start, vocabulary.bos_id), (end, vocabulary.eos_id)],
        )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)
