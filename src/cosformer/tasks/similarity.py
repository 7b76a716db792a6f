"""Similarity: a number for two texts, each encoded on its own."""

from cosformer.tasks.match import Match
from cosformer.tasks.regress import Regress


class Similarity(Match, Regress):
    """As matching, of numbers: how similar, how relevant."""

    name = "similarity"
