"""The safetensors format in two functions, for tests on machines without the safetensors package.

Format: 8 bytes little-endian header length, a JSON header {name: {dtype, shape, data_offsets}}, the
tensors' bytes without gaps (https://huggingface.co/docs/safetensors).
"""

import json
import struct

import torch

TYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "U8": torch.uint8,
}
NAMES = {dtype: name for name, dtype in TYPES.items()}


def save(path, tensors):
    header, data, end = {}, [], 0
    for name, tensor in tensors.items():
        plain = tensor.detach().cpu().contiguous()
        # numpy has no bfloat16, but integers of the same size
        raw = plain.view(torch.int16) if plain.dtype == torch.bfloat16 else plain
        raw = raw.numpy().tobytes()
        header[name] = {
            "dtype": NAMES[plain.dtype],
            "shape": list(plain.shape),
            "data_offsets": [end, end + len(raw)],
        }
        data.append(raw)
        end += len(raw)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(data))


def load(path):
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
        data = bytearray(file.read())
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        dtype = TYPES[entry["dtype"]]
        flat = torch.frombuffer(bytearray(data[begin:end]), dtype=dtype) if end > begin else torch.empty(0, dtype=dtype)
        tensors[name] = flat.reshape(entry["shape"])
    return tensors
