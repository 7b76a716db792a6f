"""Every number the paper reports (Qin et al., ICLR 2022), as data. Rows are named as in the zoo, ``softmax`` being its
vanilla transformer; columns come in the paper's order; None: out of memory, or not given. Tables are numbered in order
of appearance."""

Table = dict[str, dict[str, float]]

NAMES: dict[str, str] = {
    "softmax": "Transformer",
    "cosformer": "cosFormer",
    "relu": "ReLU, no re-weighting",
    "leaky_relu": "LeakyReLU",
    "identity": "identity",
    "linear": "Linear Trans.",
    "performer": "Performer",
    "rfa_gaussian": "RFA-Gaussian",
    "rfa_arccos": "RFA-arccos",
    "rfa_gate_gaussian": "RFA-Gate-Gaussian",
    "rfa_gate_arccos": "RFA-Gate-arccos",
    "local": "Local Attention",
    "longformer": "Longformer",
    "sparse": "Sparse Trans.",
    "bigbird": "BigBird",
    "reformer": "Reformer",
    "sinkhorn": "Sinkhorn Trans.",
    "linformer": "Linformer",
    "synthesizer": "Synthesizer",
}
"""How the paper prints a row's name (its misprints "across" and "BirBird" put right)."""

TITLES: dict[str, str] = {
    "table1": "What matters in softmax: validation loss of masked language modelling, then accuracy after fine-tuning "
    "(%)",
    "table2": "Language modelling, WikiText-103: perplexity",
    "table3": "Fine-tuning the bidirectional models: accuracy (%)",
    "table4": "Long-Range Arena: accuracy (%)",
    "table5": "Byte-level text classification: steps per second, one A6000",
    "table6": "Ablation of the cosine re-weighting: average accuracy (%)",
    "table7": "Sizes of the data sets",
}

TABLE1: Table = {
    "identity": {"loss": 2.343, "QQP": 84.23, "SST-2": 76.26, "MNLI": 58.27},
    "leaky_relu": {"loss": 2.246, "QQP": 84.46, "SST-2": 78.21, "MNLI": 74.26},
    "relu": {"loss": 1.993, "QQP": 88.86, "SST-2": 89.90, "MNLI": 77.86},
    "softmax": {"loss": 1.915, "QQP": 88.41, "SST-2": 92.31, "MNLI": 79.15},
}
"""RoBERTa pre-trained on WikiText-103. The base of the loss is not stated; in bits, 1.915 would be 1.327 nats."""

TABLE2: Table = {
    "softmax": {"valid": 24.5, "test": 26.2},
    "linear": {"valid": 28.7, "test": 30.2},
    "rfa_gaussian": {"valid": 25.8, "test": 27.5},
    "rfa_arccos": {"valid": 26.4, "test": 28.1},
    "rfa_gate_arccos": {"valid": 24.8, "test": 26.3},
    "rfa_gate_gaussian": {"valid": 23.2, "test": 25.0},
    "cosformer": {"valid": 23.5, "test": 23.1},
}
"""Lower is better. cosFormer's row is the only one whose test figure is below its validation figure."""

FINETUNE: dict[str, str] = {"qqp": "QQP", "sst2": "SST-2", "mnli": "MNLI", "imdb": "IMDB", "amazon": "AMAZON"}
"""The data sets of table 3: as in our recipes -> as in the table."""

TABLE3: Table = {
    "softmax": {"QQP": 88.41, "SST-2": 92.31, "MNLI": 79.15, "IMDB": 92.86, "AMAZON": 75.79, "average": 85.70},
    "performer": {"QQP": 69.92, "SST-2": 50.91, "MNLI": 35.37, "IMDB": 60.36, "AMAZON": 64.84, "average": 56.28},
    "reformer": {"QQP": 63.18, "SST-2": 50.92, "MNLI": 35.47, "IMDB": 50.01, "AMAZON": 64.28, "average": 52.77},
    "linear": {"QQP": 74.85, "SST-2": 84.63, "MNLI": 66.56, "IMDB": 91.48, "AMAZON": 72.50, "average": 78.00},
    "longformer": {"QQP": 85.51, "SST-2": 88.65, "MNLI": 77.22, "IMDB": 91.14, "AMAZON": 73.34, "average": 83.17},
    "rfa_gaussian": {"QQP": 75.28, "SST-2": 76.49, "MNLI": 57.6, "IMDB": 78.98, "AMAZON": 68.15, "average": 71.30},
    "cosformer": {"QQP": 89.26, "SST-2": 91.05, "MNLI": 76.70, "IMDB": 92.95, "AMAZON": 76.30, "average": 85.25},
}
"""The row ``rfa_gaussian`` is printed as "RFA". Performer and Reformer are at chance here."""

LRA = ("listops", "text", "retrieval", "image", "pathfinder")
"""The tasks of table 4, named as in our recipes."""

_LRA_ROWS = {
    "local": (15.82, 52.98, 53.39, 41.46, 66.63, 46.06),
    "linear": (16.13, 65.9, 53.09, 42.34, 75.3, 50.55),
    "reformer": (37.27, 56.1, 53.4, 38.07, 68.5, 50.67),
    "sparse": (17.07, 63.58, 59.59, 44.24, 71.71, 51.24),
    "sinkhorn": (33.67, 61.2, 53.83, 41.23, 67.45, 51.29),
    "linformer": (35.7, 53.94, 52.27, 38.56, 76.34, 51.36),
    "performer": (18.01, 65.4, 53.82, 42.77, 77.05, 51.41),
    "synthesizer": (36.99, 61.68, 54.67, 41.61, 69.45, 52.88),
    "longformer": (35.63, 62.85, 56.89, 42.22, 69.71, 53.46),
    "softmax": (36.37, 64.27, 57.46, 42.44, 71.4, 54.39),
    "bigbird": (36.05, 64.02, 59.29, 40.83, 74.87, 55.01),
    "cosformer": (37.9, 63.41, 61.36, 43.17, 70.33, 55.23),
}

TABLE4: Table = {name: dict(zip((*LRA, "average"), row, strict=True)) for name, row in _LRA_ROWS.items()}
"""Every row but cosFormer's equals the public leaderboard. Sinkhorn's average is as printed (mean: 51.48)."""

_LENGTHS = (1000, 2000, 3000, 4000)
_INFERENCE = {
    "softmax": (25.37, 7.83, None, None),
    "local": (57.73, 33.19, 23.36, 17.79),
    "linformer": (70.09, 39.1, 27.05, 20.62),
    "reformer": (44.21, 21.58, 12.74, 8.37),
    "sinkhorn": (43.29, 23.58, 16.53, 12.7),
    "synthesizer": (20.89, 6.24, None, None),
    "bigbird": (20.96, 11.5, 8.12, 6.15),
    "linear": (67.85, 38.24, 26.28, 19.98),
    "performer": (74.15, 42.31, 29.5, 22.44),
    "longformer": (22.99, 6.72, None, None),
    "sparse": (24.87, 7.5, None, None),
    "cosformer": (58.82, 33.45, 22.77, 17.42),
}
_TRAINING = {
    "softmax": (6.95, 2.23, None, None),
    "local": (13.45, 6.71, 4.32, 3.09),
    "linformer": (14.75, 7.09, 4.52, 3.21),
    "reformer": (11.58, 4.98, 2.94, 1.95),
    "sinkhorn": (11.09, 5.57, 3.68, 2.68),
    "synthesizer": (6.36, 2.01, None, None),
    "bigbird": (6.46, 3.2, 2.13, 1.53),
    "linear": (11.86, 5.54, 3.53, 2.56),
    "performer": (14.0, 6.49, 4.1, 2.94),
    "longformer": (4.4, 1.3, None, None),
    "sparse": (6.77, 2.2, None, None),
    "cosformer": (12.27, 5.72, 3.62, 2.64),
}

TABLE5: dict[str, dict[str, dict[int, float | None]]] = {
    "inference": {name: dict(zip(_LENGTHS, row, strict=True)) for name, row in _INFERENCE.items()},
    "training": {name: dict(zip(_LENGTHS, row, strict=True)) for name, row in _TRAINING.items()},
}
"""Higher is better; None: out of memory. Lengths 1K to 4K. Memory appears in figure 1 only."""

TABLE6: Table = {
    "relu": {"fine-tuning": 85.12, "lra": 54.20},
    "cosformer": {"fine-tuning": 85.25, "lra": 55.23},
}
"""Averages over the five sets of table 3 and the five tasks of table 4."""

TABLE7: dict[str, dict[str, int | None]] = {
    "WikiText-103": {"train": 103_000_000, "valid": 218_000, "test": 246_000},
    "QQP": {"train": 364_000, "valid": None, "test": 391_000},
    "SST-2": {"train": 67_000, "valid": None, "test": 1_800},
    "MNLI": {"train": 393_000, "valid": None, "test": 20_000},
    "IMDB": {"train": 25_000, "valid": None, "test": 25_000},
    "AMAZON": {"train": 3_000_000, "valid": 168_000, "test": 168_000},
    "ListOps": {"train": 90_000, "valid": None, "test": 10_000},
    "AAN": {"train": 147_000, "valid": 18_000, "test": 17_000},
    "CIFAR-10": {"train": 50_000, "valid": None, "test": 10_000},
    "Pathfinder": {"train": 160_000, "valid": None, "test": 20_000},
}
"""Rows (WikiText-103: tokens) as printed, rounded. None: not given. The ListOps benchmark has 96K/2K/2K."""

FIGURE4 = ("softmax", "cosformer", "relu")
"""The models of figures 3 and 4: vanilla, cosFormer, and without re-weighting."""
