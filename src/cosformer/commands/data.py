"""``cosformer data``: list, get, show and clean data sets."""

import argparse
import inspect
import math
import sys
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cosformer.commands.options import free_value
from cosformer.data import DATASETS, dataset_function, load_dataset
from cosformer.output_file import open_output

if TYPE_CHECKING:
    from cosformer.data import Dataset


def configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    actions.add_parser("list", help="the data sets there are, and which are prepared on this machine")

    get = actions.add_parser("get", help="download or make a set and prepare it for training")
    get.add_argument("name", metavar="NAME", help="a name of 'cosformer data list'")
    get.add_argument("--from", dest="path", type=Path, metavar="PATH", help="use these files (folder, archive or file)")
    get.add_argument(
        "--write", type=Path, metavar="FOLDER", help="also write the benchmark's own files (listops, pathfinder)"
    )
    _add_options(get)

    show = actions.add_parser("show", help="sizes, decoded samples, lengths; of images a contact sheet")
    show.add_argument("name", metavar="NAME")
    show.add_argument(
        "--from", dest="path", type=Path, metavar="PATH", help="files to use instead of those of 'data get'"
    )
    show.add_argument("--split", help="the split to show (default: the first)")
    show.add_argument("--rows", type=int, default=3, help="how many samples (default: %(default)s)")
    show.add_argument("--sheet", type=Path, metavar="FILE", help="where to write the contact sheet (default: NAME.png)")
    _add_options(show)

    clean = actions.add_parser("clean", help="remove prepared sets; they can be made again")
    clean.add_argument("name", metavar="NAME", nargs="?", help="only this set (default: all)")
    clean.add_argument("--downloads", action="store_true", help="remove all downloaded files too")


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--set",
        dest="options",
        metavar="OPTION=VALUE",
        action="append",
        default=[],
        help="an option of the set, as max_length=1000 or resplit=[80,10,10]; may be given more than once",
    )


def run(args: argparse.Namespace) -> int:
    actions = {"list": _list, "get": _get, "show": _show, "clean": _clean}
    try:
        return actions[args.action](args)
    except (FileNotFoundError, FileExistsError):
        raise
    except OSError as error:
        print(f"cosformer data: {error}", file=sys.stderr)
        return 1


def _options(args: argparse.Namespace) -> dict[str, Any]:
    """The ``--set`` options; values are JSON where they parse, else text."""
    options: dict[str, Any] = {}
    for entry in args.options:
        name, equals, value = entry.partition("=")
        if not equals:
            raise ValueError(f"--set {entry!r}: wanted OPTION=VALUE")
        options[name] = free_value(value)
    if args.path is not None:
        options["path"] = str(args.path)
    return options


def _list(args: argparse.Namespace) -> int:
    from cosformer.data.cache import folder_size, home, prepared_sets

    sizes: dict[str, int] = {}
    for folder in prepared_sets():
        name = folder.name.rpartition("-")[0]
        sizes[name] = sizes.get(name, 0) + folder_size(folder)
    for name, (_, _, summary) in DATASETS.items():
        state = f"prepared, {_bytes(sizes[name])}" if name in sizes else ""
        print(f"{name:<17} {summary}{f'  [{state}]' if state else ''}")
    print(f"\nfolder: {home()} (set COSFORMER_HOME to change it)")
    return 0


def _get(args: argparse.Namespace) -> int:
    from cosformer.data.download import DOWNLOADS, NotDownloaded, fetch, remember

    options = _options(args)
    module = import_module(dataset_function(args.name).__module__)
    if args.write is not None and not hasattr(module, "write_official"):
        raise ValueError(f"--write: {args.name!r} has no form to be written in; listops and pathfinder have")
    try:
        dataset = load_dataset(args.name, **options)
    except NotDownloaded as missing:
        print(f"downloading {DOWNLOADS[missing.key].url}", file=sys.stderr)
        fetch(DOWNLOADS[missing.key])
        dataset = load_dataset(args.name, **options)
    _print_sizes(dataset)
    print(f"prepared in {dataset.folder}")
    if args.path is not None and "train" in inspect.signature(dataset_function(args.name)).parameters:
        print(f"{args.name} is made here unless told otherwise: load these files with the option path={args.path}")
    elif args.path is not None:
        remember(args.name, args.path)
    if args.write is not None:
        for file in module.write_official(dataset, args.write):
            print(f"wrote {file}")
    return 0


def _show(args: argparse.Namespace) -> int:
    dataset = load_dataset(args.name, **_options(args))
    split = args.split or next(iter(dataset.splits))
    if split not in dataset.splits:
        raise ValueError(f"--split {split!r}: {args.name} has {', '.join(dataset.splits)}")
    _print_sizes(dataset)
    part = dataset.splits[split]
    print(f"\nlengths in {split!r} (tokens):")
    _print_histogram(part.tokens.lengths.tolist())
    if dataset.image_size is not None:
        sheet = args.sheet or Path(f"{args.name}.png")
        with open_output(sheet) as file:
            _contact_sheet(dataset, split).save(file, sheet.suffix.removeprefix(".") or "png")
        print(f"\ncontact sheet of the first images: {sheet}")
        return 0
    if args.sheet is not None:
        raise ValueError(f"--sheet: {args.name!r} holds no images")
    for row in range(min(args.rows, len(part))):
        label = "" if part.labels is None else f", label {_label(dataset, int(part.labels[row]))}"
        print(f"\n{split} row {row}, {len(part.tokens[row])} tokens{label}:")
        for column in (part.tokens, part.second):
            if column is not None:
                print("  " + _shortened(dataset.vocabulary.decode(column[row][:400])))
    return 0


def _clean(args: argparse.Namespace) -> int:
    from cosformer.data.cache import clean
    from cosformer.data.download import forget

    if args.name is not None:
        if args.downloads:
            raise ValueError("--downloads removes the files of all sets (some share one): leave out NAME")
        dataset_function(args.name)  # raises on an unknown name
        forget(args.name)
    print(f"freed {_bytes(clean(args.name, downloads=args.downloads))}")
    return 0


def _print_sizes(dataset: "Dataset") -> None:
    padding = "none" if dataset.pad_id is None else f"id {dataset.pad_id}"
    classes = "" if dataset.num_classes is None else f", {dataset.num_classes} classes"
    print(f"{dataset.name}: vocabulary {dataset.vocab_size:,}, padding {padding}{classes}")
    for name, split in dataset.splits.items():
        tokens = len(split.tokens.flat) + (0 if split.second is None else len(split.second.flat))
        unlabelled = ", without labels" if dataset.num_classes is not None and split.labels is None else ""
        print(f"  {name:<17} {len(split):>10,} rows {tokens:>14,} tokens{unlabelled}")
    for note, count in dataset.notes.items():
        if count:
            print(f"  {note}: {count:,}")


def _print_histogram(lengths: list[int]) -> None:
    """Ten equal bins from the shortest to the longest row."""
    if not lengths:
        print("  no rows")
        return
    low, high = min(lengths), max(lengths)
    width = math.ceil((high - low + 1) / 10)
    counts = Counter((length - low) // width for length in lengths)
    for first in range(low, high + 1, width):
        count = counts[(first - low) // width]
        bar = "█" * round(40 * count / max(counts.values()))
        print(f"  {first:>6,} to {min(first + width - 1, high):>6,} {count:>9,} {bar}")


def _contact_sheet(dataset: "Dataset", split: str, columns: int = 12, rows: int = 8) -> Any:
    """The first images of a split side by side, three times enlarged, as a PIL image."""
    import numpy as np

    from cosformer.extras import require

    assert dataset.image_size is not None
    height, width = dataset.image_size
    sheet = np.full((rows * (height + 1) + 1, columns * (width + 1) + 1), 64, np.uint8)
    part = dataset.splits[split]
    for i in range(min(len(part), rows * columns)):
        y, x = (1 + n * (size + 1) for n, size in zip(divmod(i, columns), (height, width), strict=True))
        sheet[y : y + height, x : x + width] = part.tokens[i].reshape(height, width)
    image = require("data", "PIL.Image")
    return image.fromarray(sheet).resize((sheet.shape[1] * 3, sheet.shape[0] * 3), image.Resampling.NEAREST)


def _label(dataset: "Dataset", label: int) -> str:
    return f"{label} ({dataset.class_names[label]})" if dataset.class_names else str(label)


def _shortened(text: str, width: int = 300) -> str:
    text = text.replace("\n", "\\n")
    return text if len(text) <= width else text[: width - 1] + "…"


def _bytes(size: float) -> str:
    for unit in ("bytes", "KB", "MB"):
        if size < 1000:
            return f"{size:,.0f} {unit}"
        size /= 1000
    return f"{size:,.1f} GB"
