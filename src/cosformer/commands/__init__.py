"""The subcommands, one file each, and the numbers that several of them take as options."""

import argparse


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: a whole number of at least 1")
    return int(text)


def numbers(text: str) -> tuple[int, ...]:
    """``"512,2048"``, sorted."""
    try:
        found = tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: whole numbers with commas, like 1024,4096") from None
    if found[0] < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: numbers start at 1")
    return found
