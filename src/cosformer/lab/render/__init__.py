"""One page with everything that was measured and trained, made from files alone."""

from cosformer.lab.render.page import write_report

__all__ = ["write_report"]
