#!/usr/bin/env python3
"""Makes the recorded files of this folder with PyTorch: python3 make_torch_files.py

A ResNet of two blocks, 4 and 8 channels wide, with torchvision's names, after a few training steps
(so that its running statistics are its own):

  resnet.safetensors       its state dict as it is: F32, num_batches_tracked as I64 scalars
  wrapped.safetensors      the same in F16, under the names of a model inside
                           DistributedDataParallel ("module." before each), counters left out
  logits.safetensors       inputs [4][3][16][16]; logits of resnet, and wrapped_logits of the
                           rounded values, both [4][5], in evaluation mode

tests/unit/test_weights_torch.c reads them. The network and the writer are in tests/torch.
"""

import pathlib
import sys

import torch

here = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(here.parent.parent / "torch"))

import resnet_reference  # noqa: E402
import safetensors_io  # noqa: E402

CLASSES = 5


def make():
    return resnet_reference.ResNet([1, 1], False, CLASSES, width=4)


def train(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model.train()
    for _ in range(3):
        images = torch.randn(8, 3, 16, 16)
        labels = torch.randint(CLASSES, (8,))
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()


def logits_of(model, inputs):
    model.eval()
    with torch.no_grad():
        return model(inputs)


def main():
    torch.manual_seed(7)
    model = make()
    train(model)
    state = model.state_dict()
    inputs = torch.randn(4, 3, 16, 16)
    halves = {f"module.{name}": value.half() for name, value in state.items() if value.is_floating_point()}

    rounded = make()
    plain = {name[len("module.") :]: value.float() for name, value in halves.items()}
    rounded.load_state_dict(plain, strict=False)

    safetensors_io.save(here / "resnet.safetensors", state)
    safetensors_io.save(here / "wrapped.safetensors", halves)
    safetensors_io.save(
        here / "logits.safetensors",
        {
            "inputs": inputs,
            "logits": logits_of(model, inputs),
            "wrapped_logits": logits_of(rounded, inputs),
        },
    )


if __name__ == "__main__":
    main()
