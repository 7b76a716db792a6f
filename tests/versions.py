"""Marks for tests of what older versions do not have; `make test-versions` runs the others there."""

from importlib.metadata import version

import pytest
from packaging.version import Version


def needs(package: str, minimum: str, why: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(Version(version(package)) < Version(minimum), reason=f"{package} {minimum}: {why}")


#: for tests that call torch.compile or torch.export
traces = needs("torch", "2.12", "what compiles and exports the attention")
rewinds = needs("transformers", "5.15", "assisted decoding takes tokens back from a state")
serves = needs("transformers", "5.16", "a server whose loading code runs without the package openai")
