"""Pixels to the bytes of a PNG, with numpy and zlib alone."""

import struct
import zlib

import numpy as np


def png(pixels: np.ndarray) -> bytes:
    """``pixels`` uint8 [rows, columns, 4]: red, green, blue, opacity."""
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 4 or 0 in pixels.shape:
        raise ValueError(f"pixels are uint8 [rows, columns, 4]; got {pixels.dtype} {pixels.shape}")
    rows, columns, _ = pixels.shape
    lines = np.zeros((rows, 1 + 4 * columns), np.uint8)  # each line begins with its filter: 0, none
    lines[:, 1:] = pixels.reshape(rows, -1)
    header = struct.pack(">IIBBBBB", columns, rows, 8, 6, 0, 0, 0)
    body = zlib.compress(lines.tobytes(), 9)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _chunk(b"IDAT", body) + _chunk(b"IEND", b"")


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
