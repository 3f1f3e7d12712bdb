#!/usr/bin/env python3
"""Writes the seed inputs of the binary formats into corpus/: valid files, and near misses of each."""

import json
import pathlib
import struct

HERE = pathlib.Path(__file__).resolve().parent / "corpus"


def keep(target, name, data):
    folder = HERE / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data)


def safetensors(header, data, length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def tensor(dtype, shape, begin, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def safetensors_seeds():
    two = {
        "__metadata__": {"format": "pt"},
        "h.0.q.weight": tensor("F32", [2, 3], 0, 24),
        "h.0.norm": tensor("BF16", [4], 24, 32),
    }
    keep("safetensors_header", "two", safetensors(two, bytes(32)))
    keep("safetensors_header", "padded", safetensors(json.dumps(two).encode() + b"   ", bytes(32)))
    keep("safetensors_header", "empty", safetensors({}, b""))
    keep("safetensors_header", "scalar", safetensors({"s": tensor("I64", [], 0, 8)}, bytes(8)))
    keep("safetensors_header", "zero_dim", safetensors({"z": tensor("U8", [0, 5], 0, 0)}, b""))
    for dtype, size in [("F64", 8), ("F16", 2), ("F8_E4M3", 1), ("F8_E5M2", 1), ("I32", 4),
                        ("I16", 2), ("I8", 1), ("U8", 1), ("BOOL", 1), ("U64", 8)]:
        keep("safetensors_header", dtype.lower(),
             safetensors({"t": tensor(dtype, [1], 0, size)}, bytes(size)))
    keep("safetensors_header", "overlap", safetensors(
        {"a": tensor("U8", [4], 0, 4), "b": tensor("U8", [4], 2, 6)}, bytes(6)))
    keep("safetensors_header", "hole", safetensors(
        {"a": tensor("U8", [2], 0, 2), "b": tensor("U8", [2], 4, 6)}, bytes(6)))
    keep("safetensors_header", "huge_shape",
         safetensors({"a": tensor("F64", [2**62, 2**62], 0, 8)}, bytes(8)))
    keep("safetensors_header", "long_length", safetensors(two, bytes(32), length=2**63))
    keep("safetensors_header", "duplicate",
         safetensors(b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},'
                     b'"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', bytes(1)))
    keep("safetensors_header", "deep", safetensors(b'{"a":' + b"[" * 500 + b"]" * 500 + b"}", b""))
    keep("safetensors_header", "negative",
         safetensors({"a": tensor("U8", [-1], 0, 1)}, bytes(1)))
    keep("safetensors_header", "fraction",
         safetensors({"a": tensor("U8", [1.5], 0, 1)}, bytes(1)))


def ctok(token_bytes, vocabulary, count, data, eot=-1, name=b"bytes"):
    # The last 8 bytes are a checksum; the target also seals each input with the right one.
    header = struct.pack("<8sIIIIQQQqQ128s56xQ", b"CTOK\r\n\x1a\n", 1, 256, token_bytes, 0, vocabulary,
                         count, 0, eot, 0, name, 0)
    return header + data


def token_seeds():
    keep("token_shard", "ctok_u16", ctok(2, 256, 4, bytes(8)))
    keep("token_shard", "ctok_u32", ctok(4, 100000, 2, bytes(8), eot=5, name=b"bpe"))
    keep("token_shard", "ctok_short", ctok(2, 256, 5, bytes(8)))
    keep("token_shard", "llmc_u16", struct.pack("<3i", 20240520, 1, 3) + bytes(1012) + bytes(6))
    keep("token_shard", "llmc_u32", struct.pack("<3i", 20240801, 7, 3) + bytes(1012) + bytes(12))
    keep("token_shard", "llmc_forged", struct.pack("<3i", 20240520, 1, -1) + bytes(1012))
    keep("token_shard", "llmc_eval", struct.pack("<3i", 20240522, 1, 3) + bytes(1012))
    keep("token_shard", "raw", struct.pack("<6H", 1, 2, 3, 4, 5, 6))
    keep("token_shard", "odd", bytes(7))


if __name__ == "__main__":
    safetensors_seeds()
    token_seeds()
