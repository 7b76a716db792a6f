"""``cosformer predict``: a trained model's answers to the rows of a file."""

import argparse
import sys

from cosformer.commands import output, positive
from cosformer.suggest import check_model_path


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("model", metavar="MODEL", help="a run's folder, a directory with a saved model, or a name on the hub")
    add(
        "file",
        metavar="FILE",
        help="a .csv, .tsv, .jsonl, .parquet, .arrow, .txt (a text a line), .fasta, .npy or .npz file, text also "
        "compressed (.gz, .xz, .bz2); - is standard input",
    )
    add(
        "-o",
        "--out",
        type=output,
        metavar="OUT",
        required=True,
        help="a .csv, .tsv, .jsonl or .parquet file; - is standard output",
    )
    add("--text", metavar="COLUMN", help="the column of the texts (default: one with a usual name, or the only one)")
    add(
        "--second",
        metavar="COLUMN",
        help="the second texts, for a model of pairs (default: as in training)",
    )
    add(
        "--steps",
        type=positive,
        metavar="N",
        help="how many steps to forecast (default: a quarter of a window, at most 24)",
    )
    add("--only", action="store_true", help="write only the predictions, without the columns of FILE")
    add(
        "--bad-rows",
        choices=("stop", "skip"),
        default="stop",
        help="at a row that cannot be read: stop and write nothing, or say its number and leave its answer empty "
        "(default: stop)",
    )
    add(
        "--reads",
        choices=("csv", "tsv", "jsonl", "parquet", "arrow", "txt", "fasta", "arrays"),
        help="the form of FILE (default: by its ending)",
    )
    add("--writes", choices=("csv", "tsv", "jsonl", "parquet"), help="the form of OUT (default: by its ending)")
    add("--batch", type=positive, default=64, metavar="N", help="texts of one forward pass (default: 64)")
    add("--threads", type=positive, metavar="N", help="of torch (default: its own choice)")
    add("--device", default="cpu", help="where to run: cpu, cuda, cuda:1 (default: cpu)")
    parser.epilog = (
        "Every row of FILE becomes a row of OUT, in order, with the predicted class and each class's probability, or a "
        "number, or the likelihood of its text, or the next steps of its series. Longer texts are cut, or read in "
        "windows, as in training. OUT is there whole or not at all."
    )


def run(args: argparse.Namespace) -> int:
    check_model_path(args.model)
    import torch
    import transformers

    from cosformer.prediction.files import predict_file
    from cosformer.prediction.model import Predictor

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    predictor = Predictor(args.model, device=args.device, batch=args.batch, steps=args.steps)
    rows, bad = predict_file(
        predictor,
        args.file,
        args.out,
        text=args.text,
        second=args.second,
        skip_bad=args.bad_rows == "skip",
        only=args.only,
        reads=args.reads,
        writes=args.writes,
    )
    skipped = f", {bad:,} of them skipped" if bad else ""
    cut = (
        f", {predictor.read.cut:,} longer than {predictor.read.max_len:,} tokens and cut" if predictor.read.cut else ""
    )
    print(f"{args.out}: {rows:,} rows{skipped}{cut}", file=sys.stderr)
    return 0
