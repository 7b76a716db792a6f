"""The gate of a task: the best table of counts on the same data. A model below it is not judged."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from cosformer.data import Dataset, load_dataset
from cosformer.recipes import recipe
from cosformer.report.table import Table
from studies.cosformer2022 import Request, read_lines, write_lines
from studies.cosformer2022.claims import MQAR

FILE = "gates.jsonl"
IGNORED = -100  # the label of a token that is not scored
OPERATORS, CLOSE, FIRST_DIGIT = ("[MIN", "[MAX", "[MED", "[SM"), 5, 6  # of ListOps: ids 1 to 4, and the first of ten


def _loaded(name: str, **changes: object) -> Dataset:
    data = recipe(name).data
    return load_dataset(data.name, **data.options | changes)


# --- language modelling


def trigram() -> float:
    """Every byte from the two before it: counts, mixed with those of one byte and none by Witten and Bell's rule."""
    data = _loaded("evidence-lm")
    start = data.vocabulary.eos_id
    assert start is not None
    train, test = (
        np.concatenate([[start, start], data.splits[s].tokens.flat]).astype(np.int64) for s in ("train", "test")
    )
    return trigram_nats(train, test, data.vocab_size)


def trigram_nats(train: np.ndarray, test: np.ndarray, size: int) -> float:
    """Nats a token of ``test``, its first two tokens apart."""
    unigram = np.bincount(train[2:], minlength=size)
    pairs = np.bincount(train[1:-1] * size + train[2:], minlength=size**2).reshape(size, size)
    bigram = witten_bell(pairs, ((unigram + 1) / (unigram.sum() + size))[None])
    code = (train[:-2] * size + train[1:-1]) * size + train[2:]
    triples = np.bincount(code, minlength=size**3).reshape(size**2, size)
    found = witten_bell(triples, np.tile(bigram, (size, 1)))
    return float(-np.log(found[test[:-2] * size + test[1:-1], test[2:]]).mean())


def witten_bell(counts: np.ndarray, lower: np.ndarray) -> np.ndarray:
    """[contexts, V] counts -> probabilities; unseen continuations share ``lower`` with the weight of the kinds seen."""
    total, kinds = counts.sum(1, keepdims=True), (counts > 0).sum(1, keepdims=True)
    mixed = (counts + kinds * lower) / np.maximum(total + kinds, 1)
    return np.where(total > 0, mixed, lower)


# --- masked language modelling


def neighbours() -> float:
    """A hidden token from its visible neighbours and from what is shown in its place."""
    from cosformer.tasks import build_task

    task: Any = build_task(recipe("evidence-mlm"))
    table = Neighbours(list(task.packed["train"]), task.vocab_size, task.mask_id, task.random_ids)
    nats, count = 0.0, 0
    for index in range(task.eval_size("test")):
        batch = task.eval_batch("test", index, index + 1)
        inputs, labels = (batch[name][0].numpy() for name in ("input_ids", "labels"))
        nats += table.nats(inputs, labels).sum()
        count += int((labels != IGNORED).sum())
    return float(nats / count)


class Neighbours:
    """p(x | left, right): counts of the triple, mixed by Witten and Bell's rule with p(x|left) p(x|right) / p(x).

    Where a token is shown instead of the mask, it is the true one in half of the cases and otherwise any of
    ``random_ids``: Bayes' rule with what the neighbours say.
    """

    def __init__(self, rows: list[np.ndarray], size: int, mask_id: int, random_ids: np.ndarray) -> None:
        self.size, self.mask_id = size, mask_id
        self.chance_random = np.zeros(size)  # of being shown by chance, for a token that is shown
        self.chance_random[random_ids] = 1 / len(random_ids)
        unigram, after, before = np.zeros(size), np.zeros((size, size)), np.zeros((size, size))
        triples: list[np.ndarray] = []
        for row in rows:
            unigram += np.bincount(row[1:], minlength=size)
            np.add.at(after, (row[:-1], row[1:]), 1)
            np.add.at(before, (row[1:], row[:-1]), 1)
            triples.append((row[:-2] * size + row[2:]) * size + row[1:-1])
        self.unigram = (unigram + 1) / (unigram.sum() + size)
        self.after, self.before = witten_bell(after, self.unigram[None]), witten_bell(before, self.unigram[None])
        # a masked neighbour says nothing
        self.after[mask_id] = self.before[mask_id] = self.unigram
        self.codes, self.counts = np.unique(np.concatenate(triples), return_counts=True)

    def nats(self, inputs: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """-log p of every label that counts."""
        places = np.flatnonzero(labels != IGNORED)
        left = inputs[places - 1]
        right = np.where(places + 1 < len(inputs), inputs[np.minimum(places + 1, len(inputs) - 1)], self.mask_id)
        mixed = self.after[left] * self.before[right] / self.unigram
        mixed /= mixed.sum(1, keepdims=True)
        context = (left * self.size + right) * self.size
        first, last = np.searchsorted(self.codes, context), np.searchsorted(self.codes, context + self.size)
        for i in np.flatnonzero(last > first):
            seen, count = self.codes[first[i] : last[i]] - context[i], self.counts[first[i] : last[i]]
            mixed[i] *= len(seen)
            mixed[i, seen] += count
            mixed[i] /= mixed[i].sum()
        for i in np.flatnonzero(inputs[places] != self.mask_id):
            shown = inputs[places[i]]
            mixed[i] *= (np.arange(self.size) == shown) + self.chance_random[shown]
            mixed[i] /= mixed[i].sum()
        return -np.log(mixed[np.arange(len(places)), labels[places]])


# --- classification


def naive_bayes() -> float:
    """Words of a phrase, each on its own, with add-one smoothing."""
    data = _loaded("evidence-sst2-reviews", tokenizer="bytes", max_length=512)
    words = {
        name: [data.vocabulary.decode(row[1:-1]).split() for row in data.splits[name].tokens]
        for name in ("train", "valid")
    }
    labels = {name: data.splits[name].labels for name in words}
    assert labels["train"] is not None and labels["valid"] is not None
    known = {word: i for i, word in enumerate(dict.fromkeys(w for row in words["train"] for w in row))}
    counts = np.ones((2, len(known)))
    for row, label in zip(words["train"], labels["train"].tolist(), strict=True):
        for word in row:
            counts[label, known[word]] += 1
    weights = np.log(counts / counts.sum(1, keepdims=True))
    prior = np.log(np.bincount(labels["train"]) / len(labels["train"]))
    scores = np.array([prior + weights[:, [known[w] for w in row if w in known]].sum(1) for row in words["valid"]])
    return 100 * float((scores.argmax(1) == labels["valid"]).mean())


def disc_distance() -> float:
    """Whether two discs are joined, from how far apart they are: near ones more often are."""
    data = _loaded("evidence-pathfinder")
    assert data.image_size is not None
    found = {}
    for name in ("train", "test"):
        part = data.splits[name]
        assert part.labels is not None
        images = np.asarray(part.tokens.flat).reshape(-1, *data.image_size)
        found[name] = (disc_gaps(images), np.asarray(part.labels))
    size = 1 + max(int(gaps.max()) for gaps, _ in found.values())
    gaps, labels = found["train"]
    joined, all_of = (np.bincount(gaps[labels >= least], minlength=size) for least in (1, 0))
    gaps, labels = found["test"]
    return 100 * float(((2 * joined > all_of)[gaps] == labels).mean())


def disc_gaps(images: np.ndarray) -> np.ndarray:
    """uint8 [B, H, W] -> the squared distance of the two brightest 3x3 crosses that do not overlap, int64 [B]."""
    padded = np.pad(images.astype(np.int64), ((0, 0), (1, 1), (1, 1)))
    height, width = images.shape[1:]
    steps = ((1, 1), (0, 1), (2, 1), (1, 0), (1, 2))
    bright = np.sum([padded[:, y : y + height, x : x + width] for y, x in steps], axis=0)
    rows = np.arange(len(images))
    first = bright.reshape(len(images), -1).argmax(1)
    y, x = np.divmod(first, width)
    grid_y, grid_x = np.mgrid[:height, :width]
    apart = (grid_y - y[:, None, None]) ** 2 + (grid_x - x[:, None, None]) ** 2
    second = np.where(apart > 4, bright, -1).reshape(len(images), -1).argmax(1)
    return apart.reshape(len(images), -1)[rows, second]


def root_operator(recipe_name: str = "evidence-listops") -> float:
    """The outermost operator and its own digits: what they give without any nested list."""
    data = _loaded(recipe_name)
    votes: dict[tuple[int, int], np.ndarray] = {}
    train, test = data.splits["train"], data.splits["test"]
    assert train.labels is not None and test.labels is not None
    for tokens, label in zip(train.tokens, train.labels.tolist(), strict=True):
        votes.setdefault(root_value(tokens), np.zeros(10))[label] += 1
    found = [votes.get(root_value(tokens), np.zeros(10)).argmax() for tokens in test.tokens]
    return 100 * float((np.array(found) == test.labels).mean())


def root_value(tokens: np.ndarray) -> tuple[int, int]:
    """The first operator's id, and its value over the digits that stand directly in its list; -1 without any."""
    depth = np.cumsum((tokens < CLOSE).astype(int) - (tokens == CLOSE))
    digits = np.sort(tokens[(depth == 1) & (tokens >= FIRST_DIGIT)].astype(int)) - FIRST_DIGIT
    if not len(digits):
        return int(tokens[0]), -1
    middle = digits[(len(digits) - 1) // 2] + digits[len(digits) // 2]
    values = {"[MIN": digits[0], "[MAX": digits[-1], "[MED": middle // 2, "[SM": digits.sum() % 10}
    return int(tokens[0]), int(values[OPERATORS[int(tokens[0]) - 1]])


def byte_counts() -> float:
    """Naive Bayes of a review's bytes, the first 1,024 of it, on the rows that the runs are scored on."""
    from cosformer.tasks import build_task

    task: Any = build_task(recipe("evidence-arena-text-1k"))
    train = task.dataset.splits["train"]
    assert train.labels is not None
    size = task.dataset.vocab_size
    counts = np.ones((2, size))
    for row, label in zip(train.tokens, train.labels.tolist(), strict=True):
        counts[label] += np.bincount(row, minlength=size)
    weights = np.log(counts / counts.sum(1, keepdims=True))
    prior = np.log(np.bincount(train.labels) / len(train.labels))
    right, rows = 0, task.eval_size("test")
    for index in range(rows):
        batch = task.eval_batch("test", index, index + 1)
        ids = batch["input_ids"][0].numpy()
        said = np.bincount(ids[ids != task.dataset.vocabulary.pad_id], minlength=size)
        right += int((prior + weights @ said).argmax() == int(batch["labels"][0]))
    return 100 * right / rows


def ridge() -> float:
    """A linear map of the pixels to the classes, least squares with a penalty that is best on the validation split."""
    data = _loaded("evidence-arena-image")
    parts = {name: data.splits[name] for name in ("train", "valid", "test")}
    labels = {name: np.asarray(part.labels) for name, part in parts.items()}
    pixels = {name: np.asarray(part.tokens.flat, np.float64).reshape(len(part), -1) for name, part in parts.items()}
    return ridge_accuracy(pixels, labels, [10.0**k for k in range(4, 10)])


def ridge_accuracy(inputs: dict[str, np.ndarray], labels: dict[str, np.ndarray], penalties: list[float]) -> float:
    """Percent of the test rows; the inputs [rows, width] are centred, the classes one-hot."""
    mean, wanted = inputs["train"].mean(0), np.eye(labels["train"].max() + 1)[labels["train"]]
    x = inputs["train"] - mean
    gram, cross, base = x.T @ x, x.T @ (wanted - wanted.mean(0)), wanted.mean(0)

    def accuracy(split: str, weights: np.ndarray) -> float:
        return 100 * float((((inputs[split] - mean) @ weights + base).argmax(1) == labels[split]).mean())

    fitted = [np.linalg.solve(gram + penalty * np.eye(len(gram)), cross) for penalty in penalties]
    return accuracy("test", max(fitted, key=lambda weights: accuracy("valid", weights)))


# recipe -> what its gate is, and what computes it: fitted on the training split and scored on the split that the runs
# are scored on, in the unit of the claims, nats or percent
_GATES: dict[str, tuple[str, Callable[[], float]]] = {
    "evidence-pathfinder": ("distance of the two discs", disc_distance),
    "evidence-lm": ("trigram table", trigram),
    "evidence-mlm": ("table of the two neighbours", neighbours),
    "evidence-sst2-reviews": ("naive Bayes of the words", naive_bayes),
    "evidence-listops": ("root operator and its own digits", root_operator),
    **dict.fromkeys(("evidence-recall-16", "evidence-recall-32"), ("fixed: what softmax must reach", lambda: 95.0)),
    "evidence-parity": ("trigram table", trigram),
    "evidence-parity-mlm": ("table of the two neighbours", neighbours),
    "evidence-arena-listops": ("root operator and its own digits", lambda: root_operator("evidence-arena-listops")),
    "evidence-arena-text-1k": ("naive Bayes of single bytes", byte_counts),
    "evidence-arena-image": ("ridge regression of the pixels", ridge),
    **dict.fromkeys(MQAR.values(), ("fixed: what softmax must reach", lambda: 95.0)),
}


def show(request: Request, lines: object) -> None:
    """Compute every gate that is not among the ``records``, and print all; with ``write`` into results/gates.jsonl of
    that folder."""
    known = {recipe: gate["score"] for recipe, gate in read(request.records).items()}
    found = [
        (recipe, name, known[recipe] if recipe in known else compute()) for recipe, (name, compute) in _GATES.items()
    ]
    print(Table("", ["recipe", "gate", "score"], [[*names, f"{score:.4g}"] for *names, score in found]).text)
    if request.write is not None:
        values = ({"recipe": recipe, "name": name, "score": float(f"{x:.6g}")} for recipe, name, x in found)
        write_lines(request.write / "results" / FILE, values)


def read(folder: Path) -> dict[str, dict[str, Any]]:
    """What ``show`` wrote into ``folder``, by recipe; nothing before it has."""
    return {line.pop("recipe"): line for line in read_lines(folder / FILE)}
