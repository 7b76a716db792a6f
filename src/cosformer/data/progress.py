"""A progress bar on a terminal, and nothing at all elsewhere."""

from typing import Any

from cosformer.extras import require


def progress_bar(label: str, total: int | None, unit: str = "rows", **options: Any) -> Any:
    """``with progress_bar("listops", total) as bar: bar.update(n)``: a tqdm bar on stderr, gone when it ends."""
    tqdm = require("data", "tqdm").tqdm
    # disable=None: tqdm itself looks whether stderr is a terminal
    return tqdm(desc=label, total=total, unit=f" {unit}", disable=None, leave=False, dynamic_ncols=True, **options)
