"""ResNet-18 and ResNet-50 from torch.nn alone, with the names that torchvision gives their tensors.

For machines that have torch but not torchvision: a state dict of one loads into the other with
strict=True. The networks are those of He et al. (CVPR 2016), the stride of a bottleneck in its 3x3
convolution.
"""

import torch
from torch import nn


def conv(inputs, outputs, kernel, stride=1):
    return nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)


class Block(nn.Module):
    """Convolutions with norms, relu between, the input added before the last relu."""

    def __init__(self, inputs, width, stride, bottleneck):
        super().__init__()
        outputs = 4 * width if bottleneck else width
        kernels = [(1, 1, width), (3, stride, width), (1, 1, outputs)] if bottleneck else [(3, stride, width), (3, 1, width)]
        self.depth = len(kernels)
        for i, (kernel, step, channels) in enumerate(kernels, start=1):
            setattr(self, f"conv{i}", conv(inputs if i == 1 else width, channels, kernel, step))
            setattr(self, f"bn{i}", nn.BatchNorm2d(channels))
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))

    def forward(self, x):
        around = x if self.downsample is None else self.downsample(x)
        for i in range(1, self.depth + 1):
            x = getattr(self, f"bn{i}")(getattr(self, f"conv{i}")(x))
            x = torch.relu(x if i < self.depth else x + around)
        return x


class ResNet(nn.Module):
    def __init__(self, blocks, bottleneck, classes, width=64):
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, 2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.maxpool = nn.MaxPool2d(3, 2, padding=1)
        inputs = width
        for stage, count in enumerate(blocks):
            layers = []
            for i in range(count):
                stride = 2 if stage > 0 and i == 0 else 1
                layers.append(Block(inputs, width << stage, stride, bottleneck))
                inputs = (width << stage) * (4 if bottleneck else 1)
            setattr(self, f"layer{stage + 1}", nn.Sequential(*layers))
        self.stages = len(blocks)
        self.fc = nn.Linear(inputs, classes)

    def forward(self, x):
        x = self.maxpool(torch.relu(self.bn1(self.conv1(x))))
        for stage in range(1, self.stages + 1):
            x = getattr(self, f"layer{stage}")(x)
        return self.fc(x.mean(dim=(2, 3)))


def make(name, classes):
    """torchvision's model where it is installed, else this file's."""
    try:
        import torchvision
    except ImportError:
        blocks = {"resnet18": [2, 2, 2, 2], "resnet34": [3, 4, 6, 3], "resnet50": [3, 4, 6, 3], "resnet101": [3, 4, 23, 3]}
        return ResNet(blocks[name], name in ("resnet50", "resnet101"), classes)
    return getattr(torchvision.models, name)(weights=None, num_classes=classes)
