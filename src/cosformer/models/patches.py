"""The tokens of an image: patches, or single pixels."""

from torch import Tensor, nn

from cosformer.models.config import CosformerConfig


class Patches(nn.Module):
    """Square patches, row by row, each through one linear map; patches of one pixel are pixels."""

    def __init__(self, config: CosformerConfig) -> None:
        super().__init__()
        size, self.image_size = config.patch_size, config.image_size
        self.num_channels = config.num_channels
        self.project = nn.Conv2d(config.num_channels, config.hidden_size, kernel_size=size, stride=size)

    def forward(self, pixels: Tensor) -> Tensor:
        """[B, channels, height, width] -> [B, patches, C]"""
        expected = (self.num_channels, self.image_size, self.image_size)
        if pixels.shape[1:] != expected:
            raise ValueError(
                f"pixel_values have shape {tuple(pixels.shape)}; expected [batch, {', '.join(map(str, expected))}]"
            )
        return self.project(pixels.to(self.project.weight.dtype)).flatten(2).transpose(1, 2)
