"""The networks of `workloads.WORKLOADS` in plain PyTorch, with the layers of tfdist.zoo and Keras."""

import torch
from torch import nn
from torch.nn import functional


def network(name: str, num_classes: int = 10) -> nn.Module:
    """The network of a workload, float32 [n, channels, height, width] -> logits, with as many weights as Keras'."""
    networks = {"mlp": _mlp, "mnist": _mnist, "resnet20": _resnet20, "resnet50v2": _resnet50v2}
    return (networks | {"transformer": _Transformer})[name](num_classes)


def _mlp(num_classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, num_classes))


def _mnist(num_classes: int) -> nn.Module:
    layers: list[nn.Module] = []
    for channels, filters in ((1, 32), (32, 64)):
        layers += [nn.Conv2d(channels, filters, 5, padding=2), nn.ReLU(inplace=True), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(7 * 7 * 64, num_classes))


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


class _Transformer(nn.Module):
    """The network of tests/benchmark/transformer.py, for images of 32x32 with 3 channels."""

    def __init__(self, num_classes: int, width: int = 256, layers: int = 4):
        super().__init__()
        self.patches, self.positions = (
            nn.Conv2d(3, width, 4, 4, bias=False),
            nn.Parameter(0.05 * torch.randn(64, width)),
        )
        self.blocks = nn.Sequential(*(_Block(width) for _ in range(layers)))
        self.norm, self.logits = nn.LayerNorm(width), nn.Linear(width, num_classes)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        x = self.patches(inputs).flatten(2).transpose(1, 2) + self.positions
        return self.logits(self.norm(self.blocks(x)).mean(dim=1))


class _Block(nn.Module):
    """Attention and two dense layers, each with normalisation first."""

    def __init__(self, width: int, heads: int = 4):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.projection = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.expand, self.contract = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, count, width = x.shape
        parts = self.attention(self.norm1(x)).split(width, dim=2)
        parts = [one.view(n, count, self.heads, width // self.heads).transpose(1, 2) for one in parts]
        y = functional.scaled_dot_product_attention(*parts).transpose(1, 2).reshape(n, count, width)
        x = x + self.projection(y)
        return x + self.contract(functional.gelu(self.expand(self.norm2(x))))
