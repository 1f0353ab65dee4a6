#!/usr/bin/env python3
"""The torch side of tests/train/torch_weights.sh: check_weights.py COMMAND [+ COMMAND]...

  make MODEL WEIGHTS LOGITS           draws a model, writes its state dict and its logits
  load MODEL WEIGHTS LOGITS BATCHES   WEIGHTS load with strict=True, give LOGITS, and have counted
                                      so many batches
  same LOGITS LOGITS                  both files have the same logits and labels

All are about the test set of --dataset synthetic: SEED COUNT CLASSES CxHxW in the variable
SYNTHETIC.
"""

import os
import sys

import torch

import resnet_reference
import safetensors_io
import synthetic

TOLERANCE = 1e-4


def data():
    seed, count, classes, shape = os.environ["SYNTHETIC"].split()
    images, labels = synthetic.test_set(int(seed), int(count), int(classes), [int(d) for d in shape.split("x")])
    return torch.from_numpy(images), torch.from_numpy(labels), int(classes)


def evaluate(model, images):
    model.eval()
    with torch.no_grad():
        return model(images)


def compare(what, found, wanted):
    if not torch.equal(found["labels"], wanted["labels"]):
        sys.exit(f"{what}: labels differ")
    if found["logits"].shape != wanted["logits"].shape:
        sys.exit(f"{what}: logits are {list(found['logits'].shape)} and {list(wanted['logits'].shape)}")
    difference = (found["logits"] - wanted["logits"]).abs().max().item()
    spread = wanted["logits"].std().item()
    print(f"{what}: largest difference of logits {difference:.2e}, their deviation {spread:.2f}")
    if not difference <= TOLERANCE:
        sys.exit(f"{what}: logits differ by more than {TOLERANCE}")
    if not spread > 0.01:
        sys.exit(f"{what}: logits are all alike: nothing was compared")


def load(name, weights, logits, batches):
    images, labels, classes = data()
    model = resnet_reference.make(name, classes)
    state = safetensors_io.load(weights)
    model.load_state_dict(state, strict=True)
    counts = {int(value) for key, value in state.items() if key.endswith(".num_batches_tracked")}
    if counts != {int(batches)}:
        sys.exit(f"{weights}: num_batches_tracked {counts}, expected {batches}")
    compare(weights, safetensors_io.load(logits), {"logits": evaluate(model, images), "labels": labels})


def make(name, weights, logits):
    images, labels, classes = data()
    torch.manual_seed(1)
    model = resnet_reference.make(name, classes)
    model.train()
    model(images)  # statistics of its own
    safetensors_io.save(weights, model.state_dict())
    safetensors_io.save(logits, {"logits": evaluate(model, images), "labels": labels})


def same(first, second):
    compare(first, safetensors_io.load(first), safetensors_io.load(second))


def main(arguments):
    torch.set_num_threads(1)
    while arguments:
        end = arguments.index("+") if "+" in arguments else len(arguments)
        {"load": load, "make": make, "same": same}[arguments[0]](*arguments[1:end])
        arguments = arguments[end + 1 :]


if __name__ == "__main__":
    main(sys.argv[1:])
