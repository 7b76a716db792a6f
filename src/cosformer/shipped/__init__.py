"""What comes with the package besides code: one small trained model, as a run's folder without its checkpoints."""

from pathlib import Path

STDLIB_MODEL = Path(__file__).parent / "lm-stdlib"  # of bytes of Python sources; its card is best/README.md
