"""A run keeps what its ids mean beside its best weights, so that it can be used without the data it was trained on."""

import json
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerFast

from cosformer.data.subwords import Subwords
from cosformer.data.vocabulary import SPECIAL_NAMES, Bytes, Ids, Letters, Vocabulary, Words, vocabulary_from_json
from cosformer.experiment import load_experiment
from cosformer.json_files import read_object
from cosformer.tasks import build_task

VOCABULARY_FILE = "vocabulary.json"
_Readable = Bytes | Letters | Ids | Words | Subwords  # what transformers' tokenizers can read, too


def save_vocabulary(vocabulary: Vocabulary, folder: Path, task: str, max_len: int) -> None:
    """Write ``vocabulary`` into ``folder``; one of text also as ``AutoTokenizer.from_pretrained(folder)`` wants it.

    That tokenizer makes of a text the ids that a row of ``task`` has: between start and end tokens, except in a
    language model's stream, and with ``truncation=True`` at most ``max_len`` of them (where two texts share an odd
    number of places, transformers gives the odd one to the second, our data to the first).
    """
    entry = vocabulary.save(folder)
    (folder / VOCABULARY_FILE).write_text(json.dumps(entry), encoding="utf-8")
    if isinstance(vocabulary, _Readable):
        as_transformers(vocabulary, task, max_len).save_pretrained(folder)


def load_vocabulary(run: Path) -> Vocabulary:
    """The vocabulary of the run in folder ``run``; runs of earlier versions prepare their data for it."""
    best = run / "best"
    if not (best / VOCABULARY_FILE).is_file():
        return build_task(load_experiment(run)).dataset.vocabulary
    problems: list[str] = []
    entry = read_object(best / VOCABULARY_FILE, problems, required=True)
    try:
        if entry is not None:
            return vocabulary_from_json(entry, best)
    except ValueError as error:
        problems.append(f"{best / VOCABULARY_FILE}: {error}")
    raise ValueError(
        f"{problems[0]}; without it the run's ids have no meaning. Remove it, and the data is prepared again for it"
    )


def as_transformers(vocabulary: _Readable, task: str, max_len: int) -> PreTrainedTokenizerFast:
    """The same tokenizer for transformers, its special tokens by the names that it has for them."""
    from tokenizers.processors import TemplateProcessing

    tokenizer = _backend(vocabulary)
    ids = {"bos_token": vocabulary.bos_id, "eos_token": vocabulary.eos_id, "pad_token": vocabulary.pad_id}
    ids |= {"mask_token": vocabulary.mask_id, "unk_token": vocabulary.unk_id}
    names = {key: tokenizer.id_to_token(i) for key, i in ids.items() if i is not None}
    if task != "lm" and vocabulary.bos_id is not None and vocabulary.eos_id is not None:
        start, end = names["bos_token"], names["eos_token"]
        between = end if isinstance(vocabulary, Words) or not vocabulary.double_separator else f"{end} {end}"
        tokenizer.post_processor = TemplateProcessing(
            single=f"{start} $A {end}",
            pair=f"{start} $A {between} $B {end}",
            special_tokens=[(start, vocabulary.bos_id), (end, vocabulary.eos_id)],
        )
    # bytes and words know no special token in a text; sub-words do, and whoever fills masks has to write them
    plain = task != "mlm" and not isinstance(vocabulary, Subwords)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_max_length=max_len, split_special_tokens=plain, **names
    )


def _backend(vocabulary: _Readable) -> Any:
    """A new ``tokenizers.Tokenizer`` with the ids of ``vocabulary``."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    if isinstance(vocabulary, Subwords):
        return Tokenizer.from_str(vocabulary.tokenizer.to_str())
    if isinstance(vocabulary, Words):
        # without an <unk> among the words one that is unknown raises, as it does when data is prepared
        tokenizer = Tokenizer(models.WordLevel(vocabulary.index, unk_token="<unk>"))
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        return tokenizer
    if isinstance(vocabulary, Letters):
        entries = {name: i for i, name in enumerate([*vocabulary.alphabet, *SPECIAL_NAMES])}
        tokenizer = Tokenizer(models.WordLevel(entries, unk_token="<unk>"))  # there is none: a strange letter raises
        small = [letter for letter in vocabulary.alphabet if letter.lower() != letter]
        tokenizer.normalizer = normalizers.Sequence([normalizers.Replace(letter.lower(), letter) for letter in small])
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
        tokenizer.decoder = decoders.Fuse()
        return tokenizer
    if isinstance(vocabulary, Ids):  # written as numbers with spaces between
        entries = {str(i): i for i in range(vocabulary.count)}
        entries |= {name: i for i, name in enumerate(SPECIAL_NAMES, start=vocabulary.count)}
        tokenizer = Tokenizer(models.WordLevel(entries, unk_token="<unk>"))  # there is none: a strange id raises
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        return tokenizer
    special = {"<s>": vocabulary.bos_id, "</s>": vocabulary.eos_id, "<mask>": vocabulary.mask_id}
    entries = {"<pad>": 0, **{letter: byte + 1 for byte, letter in bytes_to_unicode().items()}}
    entries |= {name: i for name, i in special.items() if i is not None}
    tokenizer = Tokenizer(models.BPE(vocab=entries, merges=[]))  # a BPE that has learnt nothing knows bytes
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer
