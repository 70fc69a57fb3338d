"""The networks of `workloads.WORKLOADS` in plain PyTorch, with the layers of tfdist.zoo and Keras."""

import torch
from torch import nn
from torch.nn import functional


def network(name: str, num_classes: int = 10) -> nn.Module:
    """The network of a workload, float32 [n, channels, height, width] -> logits, with as many weights as Keras'."""
    return {"mlp": _mlp, "resnet20": _resnet20, "resnet50v2": _resnet50v2}[name](num_classes)


def _mlp(num_classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, num_classes))


def _resnet20(num_classes: int) -> nn.Module:
    blocks = []
    for stage, width in enumerate((16, 32, 64)):
        for i in range(3):
            blocks.append(_Basic(width // 2 if stage and not i else width, width))
    stem = (nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True))
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, num_classes))


class _Basic(nn.Module):
    """Two 3x3 convolutions; with more channels, the shortcut is every second pixel, padded with zero channels."""

    def __init__(self, channels: int, filters: int):
        super().__init__()
        self.new, self.stride = filters - channels, 1 + (filters > channels)
        self.conv1 = nn.Conv2d(channels, filters, 3, self.stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(filters)
        self.conv2 = nn.Conv2d(filters, filters, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(filters)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs = functional.relu(self.norm1(self.conv1(inputs)), inplace=True)
        outputs = self.norm2(self.conv2(outputs))
        if self.new:
            inputs = functional.pad(inputs[:, :, ::2, ::2], (0, 0, 0, 0, 0, self.new))
        return functional.relu(outputs + inputs, inplace=True)


def _resnet50v2(num_classes: int) -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, padding=3), nn.MaxPool2d(3, 2, padding=1)]
    channels = 64
    for width, blocks, stride in ((64, 3, 2), (128, 4, 2), (256, 6, 2), (512, 3, 1)):
        for i in range(blocks):
            last = i == blocks - 1
            layers.append(_Bottleneck(channels, width, stride if last else 1, convolve=i == 0))
            channels = 4 * width
    layers += [nn.BatchNorm2d(channels), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(channels, num_classes))


class _Bottleneck(nn.Module):
    """Keras' `residual_block_v2`: normalisation before convolution, and the stride in the last block of a stage."""

    def __init__(self, channels: int, width: int, stride: int, *, convolve: bool):
        super().__init__()
        self.stride = stride
        self.norm0 = nn.BatchNorm2d(channels)
        self.shortcut = nn.Conv2d(channels, 4 * width, 1, stride) if convolve else None
        self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        ready = functional.relu(self.norm0(inputs), inplace=True)
        shortcut = inputs[:, :, :: self.stride, :: self.stride] if self.shortcut is None else self.shortcut(ready)
        outputs = functional.relu(self.norm1(self.conv1(ready)), inplace=True)
        outputs = functional.relu(self.norm2(self.conv2(outputs)), inplace=True)
        return shortcut + self.conv3(outputs)
